from __future__ import annotations

import dataclasses
import io

from rich.console import Console

from slomofast.bench import Job, Progress, resolve
from slomofast.bench.estimate import Estimator
from slomofast.cli._dashboard import Dashboard, plan_table
from slomofast.cli._options import short_time


def screen() -> Console:
    return Console(file=io.StringIO(), width=160, force_terminal=False)


def text_of(console: Console, thing: object) -> str:
    with console.capture() as capture:
        console.print(thing)
    return capture.get()


def test_the_dashboard_shows_what_is_going_on(tiny: Job) -> None:
    jobs = [resolve(dataclasses.replace(tiny, method=m)) for m in ("source", "bn", "tent")]
    console = screen()
    board = Dashboard({job.id: job for job in jobs}, skipped=4, console=console)
    board.started(jobs[0].id, "here")
    assert "loading" in text_of(console, board)
    board.progressed(Progress(jobs[0].id, 2, 6, 41.25, "fog", 1))
    shown = text_of(console, board)
    assert "0/3 jobs" in shown and "4 there already" in shown
    assert "source · continual · glyphs · seed 0" in shown and "2/6" in shown and "41.2" in shown and "fog (2)" in shown
    metrics = {"error": {"mean": 40.0}}
    board.finished({"id": jobs[0].id, "status": "done", "seconds": 12.0, "metrics": metrics, "job": {}})
    board.finished({"id": jobs[1].id, "status": "failed", "reason": "no [luck]", "job": {}})
    shown = text_of(console, board)
    assert "2/3 jobs" in shown and "1 done" in shown and "1 failed" in shown and "no [luck]" in shown
    assert "12 s left" in shown  # the third takes as long as the first, for want of better knowledge


def test_without_a_terminal_it_writes_lines(tiny: Job) -> None:
    console = screen()
    with Dashboard({resolve(tiny).id: resolve(tiny)}, 0, console) as board:
        record = {
            "id": resolve(tiny).id,
            "status": "done",
            "seconds": 1.0,
            "metrics": {"error": {"mean": 7.5}},
            "job": {},
        }
        board.finished(record)
    assert "7.50 %" in console.file.getvalue()  # type: ignore[attr-defined]


def test_long_plans_are_cut_in_the_middle(tiny: Job) -> None:
    jobs = [resolve(dataclasses.replace(tiny, seed=seed)) for seed in range(12)]
    shown = text_of(screen(), plan_table(jobs, Estimator(), limit=4))
    assert "8 more" in shown and jobs[0].id[:8] in shown and jobs[-1].id[:8] in shown
    assert jobs[6].id[:8] not in shown


def test_durations_for_people() -> None:
    assert [short_time(s) for s in (0, 99, 200, 7260, float("nan"))] == ["0 s", "99 s", "3 min 20 s", "2 h 1 min", "?"]
