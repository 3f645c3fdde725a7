"""`slomofast sweep`: many jobs from a file, as often as it takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from slomofast.bench.run import RunOptions
    from slomofast.bench.store import Store
    from slomofast.bench.sweep import Executor, Plan, Summary, Sweep


TIME_UP = 75  # exit code of programs that want to be called again


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sweep", cls=_WithBareRay)(sweep)


class _WithBareRay(TyperCommand):
    """Lets `--ray` stand alone: without an address after it, it means a cluster on this machine."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        found: list[str] = []
        for place, arg in enumerate(args):
            found.append(arg)
            following = args[place + 1] if place + 1 < len(args) else ""
            if arg == "--ray" and not (":" in following or following in ("auto", "local")):
                found.append("local")
        return super().parse_args(ctx, found)


def sweep(
    file: Annotated[Path | None, typer.Argument(help="A sweep file (TOML).")] = None,
    preset: Annotated[str | None, typer.Option(help="A sweep that comes with the package, such as quick.")] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print the preset's file, to read or to copy, and stop.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of records; jobs found there are skipped.")] = Path("runs"),
    path: Annotated[
        list[str] | None, typer.Option(help="Where something is, name=PATH, as in the file's paths.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the jobs and how long they would take.")] = False,
    workers: Annotated[int | None, typer.Option(help="Processes on this machine.", min=1)] = None,
    per_gpu: Annotated[int, typer.Option(help="Jobs that share one GPU.", min=1)] = 1,
    threads: Annotated[int | None, typer.Option(help="Processor threads of each job.", min=1)] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="[ADDRESS]", help="Run on Ray: the cluster at this address, or one started here."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda; a GPU if there is one.")] = None,
    on_oom: Annotated[str, typer.Option(help="Out of memory: fail, or micro-batch to try half the batch.")] = "fail",
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run jobs again that failed before.")] = False,
    skip_unknown: Annotated[
        bool, typer.Option("--skip-unknown", help="Leave out methods that are not installed.")
    ] = False,
    checkpoint_every: Annotated[
        int, typer.Option(help="Steps between checkpoints; 0 for none on the way.", min=0)
    ] = 200,
    time: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="Stop after this time, such as 25m; what runs writes a checkpoint."),
    ] = None,
) -> None:
    """Run every job of a sweep that has no record yet; stop it any time and type it again.

    Presets: paper-summary, paper-cyclic, paper-lifelong, paper-stochastic, paper-architectures, paper-ccc,
    paper-efficiency, everything (on letters), quick. A failing job is recorded and the sweep goes on; the exit code
    is 1 if any failed, 75 if the time given with --for was up before all had run.

    [bold]slomofast sweep --preset quick[/]   [bold]slomofast sweep my.toml --workers 4 --for 8h[/]
    """
    from time import time as now

    from rich.markup import escape

    from slomofast.bench.run import RunOptions
    from slomofast.bench.store import Store
    from slomofast.bench.sweep import load_preset, load_sweep, make_plan, preset_text
    from slomofast.cli._options import duration, pairs
    from slomofast.cli._shared import console
    from slomofast.core.errors import ConfigError

    if (file is None) == (preset is None):
        raise ConfigError("give either a sweep file or --preset NAME, for example: slomofast sweep --preset quick")
    if show and preset is not None:
        print(preset_text(preset), end="")
        return
    places = pairs(path or [], "--path")
    chosen = load_preset(preset, places) if preset else load_sweep(file or "", places, skip_unknown)
    until = None if time is None else now() + duration(time, "--for")
    options = RunOptions(device=device, checkpoint_every=checkpoint_every, on_oom=on_oom, until=until)
    executor, count = choose_executor(chosen, options, workers, per_gpu, threads, ray)
    store = Store(out)
    with console.status(f"looking at {len(chosen.jobs)} jobs"):
        plan = make_plan(chosen, store, retry_failed)
    console.print(f"[bold]{escape(chosen.title)}[/]  {escape(chosen.about)}", highlight=False)
    if chosen.missing:
        missing = escape(", ".join(chosen.missing))
        console.print(f"[yellow]not installed here, left out:[/] {missing}", highlight=False)
    if dry_run:
        _show_plan(plan, store, options, count)
        return
    summary = _run(chosen, store, executor, options, plan, count)
    _show_summary(summary, store, plan)
    if not summary.ok:
        raise typer.Exit(1)
    if summary.left:
        raise typer.Exit(TIME_UP)


def choose_executor(
    sweep: Sweep,
    options: RunOptions,
    workers: int | None,
    per_gpu: int,
    threads: int | None,
    ray: str | None,
) -> tuple[Executor, int]:
    """The executor that the flags ask for, and how many jobs run at a time."""
    import torch

    from slomofast.bench.executors import InProcess, Processes, available_cores

    gpus = torch.cuda.device_count() if options.device != "cpu" else 0
    if ray is not None:
        from slomofast.bench.cluster import RayCluster

        count = workers or (gpus * per_gpu if gpus else available_cores())
        return RayCluster(None if ray == "local" else ray, workers, threads, per_gpu, sweep.plugins), count
    if workers is None and per_gpu > 1 and gpus:
        workers = gpus * per_gpu
    if workers is not None:
        return Processes(workers, threads, per_gpu, sweep.plugins), workers
    return InProcess(threads), 1


def _run(sweep: Sweep, store: Store, executor: Executor, options: RunOptions, plan: Plan, workers: int) -> Summary:
    from slomofast.bench.estimate import Estimator
    from slomofast.bench.parts import pick_device
    from slomofast.bench.sweep import run_sweep
    from slomofast.cli._dashboard import Dashboard
    from slomofast.cli._shared import console, errors

    jobs = {resolved.id: resolved for resolved in plan.todo}
    kind = pick_device(options.device).type
    estimator = Estimator.from_records(store.rows().values(), kind)
    try:
        with Dashboard(jobs, len(plan.done), console, min(workers, max(1, len(jobs))), estimator) as board:
            return run_sweep(sweep, store, executor, options, board, plan=plan)
    except KeyboardInterrupt:
        errors.print("stopped; the same command continues where it was", style="yellow")
        raise typer.Exit(130) from None


def _show_plan(plan: Plan, store: Store, options: RunOptions, workers: int) -> None:
    from rich.markup import escape

    from slomofast.bench.estimate import Estimator
    from slomofast.bench.parts import pick_device
    from slomofast.cli._dashboard import plan_table
    from slomofast.cli._options import short_time
    from slomofast.cli._shared import console

    estimator = Estimator.from_records(store.rows().values(), pick_device(options.device).type)
    with console.status("taking a few steps of each kind of job"):
        estimator.calibrate(plan.todo, options)
    console.print(plan_table(plan.todo, estimator))
    total = sum(estimator.seconds(resolved) for resolved in plan.todo) / workers
    count = len(plan.todo)
    console.print(
        f"\n{count} job{'s' * (count != 1)} to run, about {short_time(total)} with {workers} at a time; "
        f"{len(plan.done)} there already, {len(plan.failed_before)} failed earlier, {len(plan.broken)} cannot start",
        highlight=False,
    )
    if guessed := sum(not estimator.knows(resolved) for resolved in plan.todo):
        console.print(
            f"[dim]{guessed} of these times are the mean of the others: no step of that kind was taken in a minute[/]",
            highlight=False,
            soft_wrap=True,
        )
    for reason, number in _reasons([reason for _, reason in plan.broken]):
        console.print(f"[red]cannot start[/] ({number}): {escape(reason)}", highlight=False, soft_wrap=True)


def _show_summary(summary: Summary, store: Store, plan: Plan) -> None:
    from rich.markup import escape

    from slomofast.cli._shared import console

    console.print(
        f"{summary.ran} run, {summary.skipped} there already, {len(summary.failed)} failed; "
        f"records in {escape(str(store.path))}",
        highlight=False,
        soft_wrap=True,
    )
    if summary.left:
        jobs = "1 job is" if summary.left == 1 else f"{summary.left} jobs are"
        console.print(f"the time is up: {jobs} left; the same command continues", style="yellow")
    for file in summary.damaged:
        console.print(f"[yellow]damaged record set aside:[/] {escape(file.name)}", highlight=False, soft_wrap=True)
    for reason, number in _reasons([reason for _, _, reason in summary.failed]):
        console.print(f"[red]failed[/] ({number}): {escape(reason)}", highlight=False, soft_wrap=True)
    if plan.failed_before:
        console.print("--retry-failed runs those again that failed in an earlier run", style="dim")


def _reasons(reasons: list[str]) -> list[tuple[str, int]]:
    """Each reason once, with how often it occurs, most frequent first."""
    from collections import Counter

    return Counter(reasons).most_common()
