"""`slomofast run`: one method on one stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slomofast.cli._options import known_device

SMALL_BATCH, LARGE_BATCH = 200, 64  # of images of 32 pixels, and of more


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(run)


def run(
    method: Annotated[str, typer.Argument(help="What to run; `slomofast methods` lists the names.")],
    setting: Annotated[str, typer.Option(help="Order of the stream; see `slomofast settings`.")] = "continual",
    data: Annotated[
        str, typer.Option(help="Data set: glyphs, cifar10_c:PATH, pack:FILE ...; see the docs.")
    ] = "glyphs",
    model: Annotated[str | None, typer.Option(help="Source network; the data set's own for glyphs.")] = None,
    weights: Annotated[list[str] | None, typer.Option(help="File with its weights; repeat for several parts.")] = None,
    source: Annotated[
        str | None, typer.Option(help="Data set of training images, for methods that need some before the stream.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the order of images and of the method.")] = 0,
    images_per_domain: Annotated[
        int | None, typer.Option(help="Images at each visit of a domain; all if not given.", min=1)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Images in a batch; 200, or 64 of more than 32 pixels.", min=1)
    ] = None,
    severity: Annotated[float, typer.Option(help="Strength of the corruptions, 0 to 5.", min=0, max=5)] = 5.0,
    domains: Annotated[str | None, typer.Option(help="Only these domains, separated by commas, in this order.")] = None,
    precision: Annotated[str, typer.Option(help="fp32 or bf16.")] = "fp32",
    set_: Annotated[list[str] | None, typer.Option("--set", help="An option of the method, name=value.")] = None,
    setting_set: Annotated[list[str] | None, typer.Option(help="An option of the setting, name=value.")] = None,
    data_set: Annotated[list[str] | None, typer.Option(help="An option of the data set, name=value.")] = None,
    model_set: Annotated[list[str] | None, typer.Option(help="An option of the network, name=value.")] = None,
    metrics: Annotated[
        str, typer.Option(help="Of error, adaptation, forgetting, recovery, calibration, cost; or `all`.")
    ] = "error,calibration,cost",
    out: Annotated[Path, typer.Option(help="Folder of records.")] = Path("runs"),
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1; a GPU if there is one.", callback=known_device)
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Processor threads.", min=1)] = None,
    checkpoint_every: Annotated[int, typer.Option(help="Steps between checkpoints; 0 for none.", min=0)] = 200,
    compile: Annotated[bool, typer.Option("--compile", help="torch.compile the networks.")] = False,
    graphs: Annotated[bool, typer.Option("--graphs", help="Replay the networks' passes as CUDA graphs.")] = False,
    channels_last: Annotated[bool, typer.Option("--channels-last", help="Memory format of images.")] = False,
) -> None:
    """Run a method over a stream, show its error by domain, and keep one record.

    The same command again finds the record and shows it; after an interruption it continues from the last
    checkpoint.

    [bold]slomofast run slomo_fast --setting cyclic --images-per-domain 1000 --set lr=3e-4[/]
    """
    import dataclasses

    import torch
    from rich.markup import escape

    from slomofast.bench.job import METRICS, Job
    from slomofast.bench.parts import job_data, resolve
    from slomofast.bench.run import finished_record, run_job
    from slomofast.bench.store import Store
    from slomofast.cli._options import chosen_names, error_table, pairs, short_time, split_names, values
    from slomofast.cli._shared import console
    from slomofast.core.registry import describe

    if threads:
        torch.set_num_threads(threads)
    job = Job(
        method=method,
        options=describe(method).adapter.Config.parse(pairs(set_ or [], "--set")),
        setting=setting,
        setting_options=values(setting_set or [], "--setting-set"),
        data=data,
        data_options=values(data_set or [], "--data-set"),
        model=model or default_model(data),
        weights=tuple(weights or ()),
        model_options=values(model_set or [], "--model-set"),
        source=source,
        seed=seed,
        batch_size=batch_size or SMALL_BATCH,
        images_per_domain=images_per_domain,
        severity=severity,
        domains=chosen_names(domains, "--domains"),
        precision=precision,
        metrics=METRICS if metrics == "all" else split_names(metrics),
        compile=compile,
        graphs=graphs,
        channels_last=channels_last,
    )
    if batch_size is None and job_data(job).image_size > 32:
        job = dataclasses.replace(job, batch_size=LARGE_BATCH)
    store = Store(out)
    resolved = resolve(job)
    record = finished_record(store, resolved.id)
    for file in store.damaged:
        _say(f"[yellow]note:[/] a damaged record was set aside as {escape(str(file))}; its job runs again")
    if record is not None:
        _say(f"already in {escape(str(out))}: showing the record of {escape(record['started'])}")
    else:
        with _Bar(console, job.title) as bar:
            record = run_job(job, store, checkpoint_every=checkpoint_every, device=device, on_progress=bar.update)
    console.print()
    console.print(error_table(record, title=f"{escape(job.title)} (error %, lower is better)"))
    console.print()
    for line in _figures(record):
        console.print(line, highlight=False)
    for warning in record["warnings"]:
        _say(f"[yellow]note:[/] {escape(warning)}")
    _say(f"{short_time(record['seconds'])}, record: {escape(str(store.record_path(resolved.id)))}")


def _say(line: str) -> None:
    """One line with words of the user's in it: nothing is coloured, replaced or broken that was not asked for."""
    from slomofast.cli._shared import console

    console.print(line, emoji=False, highlight=False, soft_wrap=True)


def default_model(data: str) -> str:
    """The network that belongs to a data set which ships one; otherwise the user must say."""
    from slomofast.core.errors import ConfigError
    from slomofast.data import check_data

    check_data(data, {})
    if data.split(":")[0] == "glyphs":
        return "glyphs"
    raise ConfigError(f"which network? give --model (and --weights) for data {data!r}; only glyphs comes with its own")


class _Bar:
    """A progress line with the running error and the current domain."""

    def __init__(self, console: object, title: str) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.progress = Progress(
            TextColumn("{task.fields[place]:<24}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("error [bold]{task.fields[error]:.1f} %[/]"),
            TimeRemainingColumn(),
            console=console,  # type: ignore[arg-type]
        )
        self.task = self.progress.add_task(title, total=None, place="loading", error=float("nan"))

    def __enter__(self) -> _Bar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def update(self, progress: object) -> None:
        """Show a `Progress` message."""
        from rich.markup import escape

        from slomofast.bench.run import Progress

        assert isinstance(progress, Progress)
        place = f"{progress.place} · cycle {progress.cycle + 1}" if progress.cycle else progress.place
        self.progress.update(
            self.task, completed=progress.step, total=progress.steps, place=escape(place), error=progress.error
        )


def _figures(record: dict) -> list[str]:
    """A line for each further family of metrics in the record; a figure that does not exist is a dash."""
    lines, metrics = [], record["metrics"]

    def add(family: str, text: str, **formats: str) -> None:
        figures = metrics.get(family) or {}
        found = {name: figures.get(name) for name in formats}
        if any(value is not None for value in found.values()):
            shown = {name: "–" if value is None else format(value, formats[name]) for name, value in found.items()}
            lines.append(f"{family:<12} {text.format(**shown)}")

    add("calibration", "ECE {ece} %, NLL {nll}", ece=".1f", nll=".3f")
    add(
        "forgetting",
        "{final} points at the end, {mean} on average, on images outside the stream",
        final=".1f",
        mean=".1f",
    )
    add("recovery", "{mean} points when a domain returns (negative: came back better)", mean="+.1f")
    add("adaptation", "rate {rate}", rate=".4f")
    add(
        "cost",
        "{milliseconds_median} ms a batch ({forward_multiple} plain forward passes), {images_per_second} images/s, "
        "{trainable_percent} % trainable",
        milliseconds_median=".0f",
        forward_multiple=".1f",
        images_per_second=".0f",
        trainable_percent=".1f",
    )
    if record.get("skipped_steps"):
        lines.append(f"[yellow]{record['skipped_steps']} steps were not finite and were not applied[/]")
    return lines
