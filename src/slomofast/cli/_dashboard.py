"""A sweep as it runs: jobs in progress with their error so far, what is done, what failed, time left."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from slomofast.bench.estimate import Estimator
from slomofast.bench.job import Resolved
from slomofast.bench.run import Progress, Stopped
from slomofast.bench.store import Record
from slomofast.cli._options import short_time

_RECENT = 6


@dataclass
class _Running:
    worker: str
    since: float
    progress: Progress | None = None
    first: tuple[float, int] | None = None  # when the first message came, and its step

    def seconds_left(self) -> float | None:
        """From its own pace, once it has one."""
        if self.progress is None or self.first is None or self.progress.step <= self.first[1]:
            return None
        pace = (time.monotonic() - self.first[0]) / (self.progress.step - self.first[1])
        return pace * (self.progress.steps - self.progress.step)


@dataclass
class Dashboard:
    """A listener that draws itself. In a pipe or a log it writes one line per finished job instead."""

    jobs: Mapping[str, Resolved]
    skipped: int
    console: Console
    workers: int = 1
    estimator: Estimator = field(default_factory=Estimator)
    running: dict[str, _Running] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    done: int = 0
    failed: int = 0
    recent: list[str] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)
    live: Live | None = None

    def __enter__(self) -> Dashboard:
        if self.console.is_terminal:
            self.live = Live(self, console=self.console, refresh_per_second=4, transient=True)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    # what happens

    def started(self, id: str, worker: str) -> None:
        self.running[id] = _Running(worker, time.monotonic())

    def progressed(self, progress: Progress) -> None:
        entry = self.running.setdefault(progress.id, _Running("", time.monotonic()))
        entry.first = entry.first or (time.monotonic(), progress.step)
        entry.progress = progress

    def finished(self, record: Record) -> None:
        self.running.pop(record["id"], None)
        self.over.add(record["id"])
        resolved = self.jobs.get(record["id"])
        title = resolved.job.title if resolved else f"{record['job']['method']} ({record['id']})"
        if record["status"] == "done":
            self.done += 1
            if resolved is not None:
                self.estimator.learn(resolved, record["seconds"])
            error = record["metrics"]["error"]["mean"]
            line = f"[green]done[/]   {escape(title)}  [bold]{error:.2f} %[/]  {short_time(record['seconds'])}"
        else:
            self.failed += 1
            line = f"[red]failed[/] {escape(title)}  {escape(str(record['reason']))}"
        self.recent = [*self.recent, line][-_RECENT:]
        if self.live is None:
            self.console.print(line, highlight=False, soft_wrap=True)

    def stopped(self, job: Stopped) -> None:
        self.running.pop(job.id, None)
        title = self.jobs[job.id].job.title if job.id in self.jobs else job.id
        line = f"[yellow]stopped[/] {escape(title)}  at step {job.step} of {job.steps}"
        self.recent = [*self.recent, line][-_RECENT:]
        if self.live is None:
            self.console.print(line, highlight=False, soft_wrap=True)

    # how it looks

    def seconds_left(self) -> float:
        """Work that remains, spread over the workers; NaN while nothing is known."""
        waiting = [job for id, job in self.jobs.items() if id not in self.running and id not in self.over]
        going = [entry.seconds_left() for entry in self.running.values()]
        known = [seconds for seconds in going if seconds is not None]
        if self.running and not known:
            return float("nan")
        return (sum(map(self.estimator.seconds, waiting)) + sum(known)) / max(1, self.workers)

    def __rich__(self) -> RenderableType:
        head = Text.assemble(
            (f"{len(self.over)}/{len(self.jobs)} jobs", "bold"),
            f"  {self.done} done  ",
            (f"{self.failed} failed  ", "red" if self.failed else ""),
            f"{self.skipped} there already  ",
            f"{short_time(time.monotonic() - self.begun)} so far, {short_time(self.seconds_left())} left",
        )
        table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
        for name, justify in (
            ("running", "left"),
            ("", "left"),
            ("step", "right"),
            ("error %", "right"),
            ("domain", "left"),
        ):
            table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
        for id, entry in list(self.running.items()):
            title = self.jobs[id].job.title if id in self.jobs else id
            progress = entry.progress
            if progress is None:
                table.add_row(Text(title), Text("loading", style="dim"), "", "", "")
                continue
            place = f"{progress.place} ({progress.cycle + 1})" if progress.cycle else progress.place
            bar = ProgressBar(total=progress.steps, completed=progress.step, width=20)
            table.add_row(Text(title), bar, f"{progress.step}/{progress.steps}", f"{progress.error:.1f}", place)
        lines = [Text.from_markup(line, overflow="ellipsis") for line in self.recent]
        return Group(head, table, *lines)


def plan_table(jobs: Sequence[Resolved], estimator: Estimator, limit: int = 40) -> Table:
    """Jobs to run with steps and expected time; long lists are cut in the middle."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "method", "setting", "data", "model"):
        table.add_column(name, overflow="fold")
    for name in ("seed", "steps", "time"):
        table.add_column(name, justify="right", no_wrap=True, min_width=len(name))
    shown = list(jobs) if len(jobs) <= limit else [*jobs[: limit // 2], None, *jobs[-limit // 2 :]]
    for resolved in shown:
        if resolved is None:
            table.add_row("...", f"{len(jobs) - limit} more")
            continue
        job = resolved.job
        table.add_row(
            resolved.id[:8],
            job.method + "".join(f" {k}={v}" for k, v in job.options.items()),
            job.setting + "".join(f" {k}={v}" for k, v in job.setting_options.items()),
            resolved.data["name"],
            job.model,
            str(job.seed),
            str(estimator.steps(resolved)),
            short_time(estimator.seconds(resolved)),
        )
    return table
