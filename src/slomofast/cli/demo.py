"""`slomofast demo`: see it work in three minutes, without a download."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slomofast.cli._options import known_device

if TYPE_CHECKING:
    from rich.table import Table

    from slomofast.bench.job import Job

METHODS = ("source", "bn", "tent", "slomo_fast", "slomo_fast_star")
CYCLES = 2


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for records, picture and page.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Seed of the stream and the methods.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda; a GPU if there is one.", callback=known_device)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few batches only: to see that everything works.")] = False,
) -> None:
    """Five methods on a stream of letters whose distortions change and come back: a table, a picture, a page.

    About three minutes on two processor cores. Repeating it shows the stored results at once.
    """
    from rich.live import Live
    from rich.markup import escape

    from slomofast.bench.parts import resolve
    from slomofast.bench.run import run_job
    from slomofast.bench.store import Store
    from slomofast.cli._shared import console

    store = Store(out / "runs")
    jobs = {method: demo_job(method, seed, quick) for method in METHODS}
    count = len(resolve(jobs["source"]).job.domains or ()) or 15
    console.print(
        f"Letters under {count} kinds of distortion, twice in a row; every method sees the same "
        f"{count * CYCLES * (jobs['source'].images_per_domain or 0):,} images and no labels.\n",
        highlight=False,
        soft_wrap=True,
    )
    scores = Scores()
    records = []
    begun = time.monotonic()
    with Live(scores, console=console, refresh_per_second=4, transient=not console.is_terminal) as live:
        for method, job in jobs.items():
            scores.begin(method)
            record = run_job(job, store, on_step=scores.update, device=device)
            scores.finish(method, record)
            records.append(record)
            live.refresh()
    if not console.is_terminal:
        console.print(scores.table())
    console.print(f"\nerror %, lower is better; {time.monotonic() - begun:.0f} s\n", highlight=False)
    for line in conclusions(records):
        console.print(line, highlight=False, soft_wrap=True)
    console.print()
    for what, path in pictures(records, store.path, out).items():
        console.print(f"{what:8} {escape(str(path))}", highlight=False, soft_wrap=True)


def demo_job(method: str, seed: int, quick: bool) -> Job:
    """A method on the demo's stream."""
    from slomofast.bench.job import Job

    return Job(
        method,
        setting="cyclic",
        setting_options={"cycles": CYCLES},
        data="glyphs",
        data_options={"size": 40 if quick else 1000},
        model="glyphs",
        seed=seed,
        batch_size=20 if quick else 60,
        images_per_domain=20 if quick else 480,
        domains=("gaussian_noise", "fog", "contrast") if quick else None,
        metrics=("error", "recovery", "adaptation", "calibration", "cost"),
    )


@dataclass
class Scores:
    """The table of the demo while it runs: errors by cycle, filling up."""

    rows: dict[str, dict[int, list[int]]] = field(default_factory=dict)
    multiples: dict[str, float] = field(default_factory=dict)
    running: str = ""

    def begin(self, method: str) -> None:
        """The next method starts."""
        self.rows[method], self.running = {}, method

    def update(self, step: Any) -> None:
        """Count the right and wrong answers of a step of the running method."""
        held = self.rows[self.running].setdefault(step.cycle, [0, 0])
        held[0] += len(step.target)
        held[1] += int((step.logits.argmax(1) != step.target).sum())

    def finish(self, method: str, record: Mapping[str, Any]) -> None:
        """Take the final figures from the record, which may be an older one."""
        curve = record["curve"]
        sums: dict[int, list[int]] = {}
        for cycle, count, wrong in zip(curve["cycle"], curve["count"], curve["wrong"], strict=True):
            held = sums.setdefault(cycle, [0, 0])
            held[0] += count
            held[1] += wrong
        self.rows[method], self.running = sums, ""
        self.multiples[method] = record["metrics"]["cost"]["forward_multiple"]

    def table(self) -> Table:
        """What is known now."""
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("method")
        for cycle in range(CYCLES):
            table.add_column(f"cycle {cycle + 1}", justify="right")
        table.add_column("all", justify="right")
        table.add_column("cost (forward passes)", justify="right")
        for method in METHODS:
            sums = self.rows.get(method, {})
            cells = [_percent(*sums[cycle]) if cycle in sums else "" for cycle in range(CYCLES)]
            overall = _percent(*map(sum, zip(*sums.values(), strict=True))) if sums else ""
            cost = f"{self.multiples[method]:.1f}" if method in self.multiples else "..." if sums else ""
            table.add_row(method, *cells, overall, cost, style="bold" if method == self.running else None)
        return table

    def __rich__(self) -> Table:
        return self.table()


def _percent(count: int, wrong: int) -> str:
    return f"{100 * wrong / count:.1f}"


def conclusions(records: list[dict]) -> list[str]:
    """What the figures say, whichever way they fall."""
    errors = {record["job"]["method"]: record["metrics"]["error"] for record in records}
    best = min(errors, key=lambda method: errors[method]["mean"])
    source = errors["source"]["mean"]
    lines = [f"Lowest error: {best}, {errors[best]['mean']:.1f} % against {source:.1f} % of the unadapted model."]
    for method in ("slomo_fast", "slomo_fast_star"):
        first, second = (errors[method]["by_cycle"][str(cycle)] for cycle in range(CYCLES))
        verdict = "knows them again" if second < first - 0.05 else "gains nothing from having seen them"
        lines.append(f"When the distortions return, {method} {verdict}: {first:.1f} % -> {second:.1f} %.")
    return lines


def pictures(records: list[dict], store: Path, out: Path) -> dict[str, Path]:
    """Draw the error over time and write the page; says where they are."""
    from slomofast.report import build_report, plots

    picture = plots.save(plots.error_over_time(records), out / "error_over_time.png")
    page = build_report(store, out / "report", title="slomofast demo")
    return {"picture": picture, "page": page, "records": store}
