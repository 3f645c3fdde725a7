"""`slomofast bench growth` and `bench trace`: how the cost of a step grows, and whether a step waits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slomofast.cli._options import known_device, picture_file, writable_file

if TYPE_CHECKING:
    from slomofast.bench.growth import Drift, GrowthRow
    from slomofast.bench.waits import WaitReport
    from slomofast.streams import Stream

Model = Annotated[str, typer.Option(help="Source network; `wrn_28_10` is the usual one for 32 pixels.")]
Weights = Annotated[
    list[Path] | None, typer.Option(help="Its weights; repeat for parts. Cost does not depend on them.")
]
Size = Annotated[int, typer.Option(help="Side of the images in pixels.", min=4)]
BatchSize = Annotated[int, typer.Option(help="Images in a batch.", min=1)]
Precision = Annotated[str, typer.Option(help="fp32, or bf16 autocast.")]
Compile = Annotated[bool, typer.Option("--compile", help="torch.compile the networks.")]
Graphs = Annotated[bool, typer.Option("--graphs", help="Replay the networks' passes as CUDA graphs.")]
Device = Annotated[str, typer.Option(help="cpu or cuda.", callback=known_device)]
Plot = Annotated[Path | None, typer.Option(help="Picture to draw, .png or .svg.", callback=picture_file)]


def growth(
    methods: Annotated[str, typer.Option(help="Names separated by commas.")] = "slomo_fast_star",
    model: Model = "glyphs",
    weights: Weights = None,
    size: Size = 32,
    batch_size: Annotated[int, typer.Option(help="Images in a batch, where the batch is not what grows.", min=1)] = 200,
    precision: Precision = "fp32",
    compile: Compile = False,
    graphs: Graphs = False,
    device: Device = "cpu",
    repeats: Annotated[int, typer.Option(help="Timed steps of each point.", min=1)] = 20,
    axes: Annotated[
        str, typer.Option(help="What grows; drop the names you do not need.")
    ] = "batch,classes,queue,steps",
    batches: Annotated[str, typer.Option(help="Batch sizes.")] = "25,50,100,200,400",
    classes: Annotated[str, typer.Option(help="Widths of the head, on the same body.")] = "10,100,200,1000",
    queues: Annotated[str, typer.Option(help="Values of the method's option queue_size.")] = "10,50,100,500",
    steps: Annotated[int, typer.Option(help="Steps of the long run.", min=1)] = 7500,
    long_batch: Annotated[
        int | None, typer.Option(help="Batch of the long run, if another; it saves time.", min=1)
    ] = None,
    long_size: Annotated[
        int | None, typer.Option(help="Side of the images of the long run, if another.", min=4)
    ] = None,
    window: Annotated[int, typer.Option(help="Steps of the long run that share a row.", min=1)] = 100,
    data: Annotated[
        str | None, typer.Option(help="Images of the long run, as for `slomofast run`; random ones if left out.")
    ] = None,
    setting: Annotated[str, typer.Option(help="Their order, with --data.")] = "lifelong",
    images_per_domain: Annotated[int | None, typer.Option(help="Images of one visit, with --data.", min=1)] = None,
    out: Annotated[
        Path | None, typer.Option(help="CSV file; each row is appended once it is measured.", callback=writable_file)
    ] = None,
    plot: Plot = None,
    draw_only: Annotated[
        bool, typer.Option("--draw-only", help="Measure nothing: draw the rows of --out measured before.")
    ] = False,
) -> None:
    """How time and memory of a step grow with the batch, the classes and the queue, and over a long run.

    Each point is the typical one of --repeats steps (the median of the means of four) on random images, beside a plain
    forward pass of the same network, batch and precision. On CUDA the images are laid out channels last, no step waits
    for the one before, and memory is the peak of the point. The long run goes through different batches in turn, or
    through a stream of real images (--data); every --window steps give a row with their typical time, the memory
    allocated at their end and, on real images, their error. It should be flat, and the last line says whether it is.

    Quick, on a CPU:  slomofast bench growth --model wrn_10_1 --size 16 --batch-size 10 --batches 5,10,20 --steps 300

    On a GPU:  slomofast bench growth --model wrn_28_10 --precision bf16 --device cuda --out rows.csv --plot growth.png
    """
    from dataclasses import asdict, fields

    from slomofast.bench.growth import Growth, GrowthRow, checked_axes, drift, has_queue, read_growth, whole_numbers
    from slomofast.bench.parts import pick_device
    from slomofast.bench.steps import check_columns, write_costs
    from slomofast.cli._options import split_names
    from slomofast.cli._shared import console
    from slomofast.core.errors import ConfigError
    from slomofast.models import load_source

    if draw_only:
        if out is None or plot is None:
            raise ConfigError("--draw-only needs both --out (the rows to read) and --plot (the picture to draw)")
        _draw_growth(read_growth(out), plot)
        return
    names, chosen, place = _known(split_names(methods)), checked_axes(split_names(axes)), pick_device(device)
    values = {
        "batch": whole_numbers(batches, "--batches"),
        "classes": whole_numbers(classes, "--classes"),
        "queue": whole_numbers(queues, "--queues"),
    }
    network = load_source(model, weights or None).to(place)
    short = Growth(network, size, batch_size, precision, compile, graphs, repeats)
    long = Growth(network, long_size or size, long_batch or batch_size, precision, compile, graphs, repeats)
    facts = _facts(model, place)
    stream = None
    if data is not None and "steps" in chosen:
        stream = _long_stream(data, setting, long.batch_size, images_per_domain, place)
        steps = min(steps, len(stream))
    if out is not None:
        check_columns(out, [*(entry.name for entry in fields(GrowthRow)), *facts])
    rows: list[GrowthRow] = []
    for name in names:
        if "queue" in chosen and not has_queue(name):
            console.print(f"[yellow]{name}[/] has no option queue_size: that axis is left out", highlight=False)
        for axis in chosen:
            if axis == "steps":
                points = long.steps(name, steps, window=window, stream=stream)
            else:
                points = getattr(short, axis)(name, values[axis])
            for row in _until_it_fails(points, name, axis):
                rows.append(row)
                if out is not None:
                    write_costs(out, [row], facts)
                if axis != "steps" or row.value % (10 * window) == 0 or row.value == steps:
                    console.print(_growth_line(row), highlight=False)
        verdict = drift([row for row in rows if row.method == name])
        if verdict is not None:
            console.print(_drift_line(verdict, name, steps), highlight=False)
    if rows:
        console.print(_growth_table(rows))
    if plot is not None and rows:
        _draw_growth([asdict(row) for row in rows], plot)


def _long_stream(spec: str, setting: str, batch_size: int, images: int | None, device: Any) -> Stream:
    """The stream a long run goes through, its images on the device."""
    from slomofast.data import open_data
    from slomofast.streams import Stream

    return Stream(setting, open_data(spec, device=device), batch_size=batch_size, images_per_domain=images)


def trace(
    method: Annotated[str, typer.Option(help="A method, see `slomofast methods`.")] = "slomo_fast_star",
    model: Model = "glyphs",
    weights: Weights = None,
    size: Size = 32,
    batch_size: BatchSize = 200,
    precision: Precision = "fp32",
    compile: Compile = False,
    graphs: Graphs = False,
    device: Device = "cpu",
    steps: Annotated[int, typer.Option(help="Steps to record.", min=1)] = 4,
    warm_up: Annotated[int, typer.Option(help="Steps before them.", min=1)] = 10,
    shown: Annotated[int, typer.Option(help="Steps in the picture, the last ones.", min=1)] = 2,
    plot: Plot = None,
    out: Annotated[
        Path | None, typer.Option(help="CSV file the shares by kind are appended to.", callback=writable_file)
    ] = None,
    chrome: Annotated[
        Path | None, typer.Option("--json", help="Chrome trace to write, for chrome://tracing or Perfetto.")
    ] = None,
) -> None:
    """Whether a step waits for the device, and where the device's time goes.

    Records a few steps with PyTorch's profiler. Counts every call, copy and operator that can make the host wait
    (cudaStreamSynchronize, copies to the host, .item(), nonzero ...) and, on CUDA, takes the steps once more while
    PyTorch refuses to wait. Shares by kind: a kernel counts by the operators around its launch, or by the part of the
    step (augmentation; optimiser, moving averages, restoration); matrix products count as convolutions. With --graphs
    the networks' passes are replayed, and kernels launched by themselves are losses, queues and copies.

    The picture has a lane for the host's calls and one for the device's kernels. A host that is done with a step long
    before the device is never waits. On a CPU there is no device to wait for: the lane shows operators.

    On a GPU:  slomofast bench trace --model wrn_28_10 --precision bf16 --device cuda --plot trace.png --json trace.json
    """
    import torch

    from slomofast.bench.growth import Growth, class_count
    from slomofast.bench.parts import pick_device
    from slomofast.bench.waits import watch_steps
    from slomofast.cli._shared import console
    from slomofast.models import load_source

    (name,), place = _known([method]), pick_device(device)
    network = load_source(model, weights or None).to(place)
    plan = Growth(network, size, batch_size)
    images = [plan.images(seed=number) for number in range(min(4, steps))]

    def source() -> list[tuple[torch.Tensor, torch.Tensor]]:
        labels = torch.arange(batch_size) % class_count(network, images[0])
        return [(batch, labels) for batch in images]

    report = watch_steps(
        network,
        images,
        name,
        precision=precision,
        compile=compile,
        graphs=graphs,
        steps=steps,
        warm_up=warm_up,
        source=source,
    )
    _show_trace(report, name, place.type == "cuda")
    if chrome is not None:
        chrome.parent.mkdir(parents=True, exist_ok=True)
        chrome.write_text(json.dumps(report.chrome))
        console.print(str(chrome), highlight=False, soft_wrap=True)
    if plot is not None:
        from slomofast.report.plots import save
        from slomofast.report.plots_bench import lanes

        trace = report.trace
        title = f"{name}, {model}, batch of {batch_size}, {precision}: {_waits_in_words(report)}"
        save(lanes(trace.lanes(shown), trace.marks(shown), title), plot)
        console.print(str(plot), highlight=False, soft_wrap=True)
    if out is not None:
        _write_shares(out, report, _facts(model, place), (name, precision, compile, graphs, batch_size))


def _known(names: Sequence[str]) -> tuple[str, ...]:
    """The names, each of a method; an unknown one is refused with the nearest match."""
    from slomofast.core.errors import ConfigError
    from slomofast.core.registry import describe

    if not names:
        raise ConfigError("no method was named; try --methods slomo_fast_star")
    return tuple(describe(name).name for name in names)


def _facts(model: str, device: Any) -> dict[str, str]:
    from slomofast.bench.run import environment
    from slomofast.cli._shared import command_line

    facts = environment(device)
    return {
        "model": model, "command": command_line(), "commit": str(facts["commit"] or ""), "device": str(facts["device"]),
    }  # fmt: skip


def _until_it_fails(points: Iterator[GrowthRow], method: str, axis: str) -> Iterator[GrowthRow]:
    """Points of an axis as far as they go: a method that cannot, or a device that is full, ends this axis alone."""
    import torch
    from rich.markup import escape

    from slomofast.cli._shared import console
    from slomofast.core.errors import ModelError

    try:
        yield from points
    except (ModelError, torch.OutOfMemoryError) as error:
        console.print(f"[yellow]{method}[/], {axis}: {escape(str(error).splitlines()[0])}", highlight=False)


def _growth_line(row: GrowthRow) -> str:
    memory = row.allocated_mib if row.axis == "steps" else row.peak_mib
    shown = "" if memory != memory else f", {memory:.0f} MiB"
    error = "" if row.error != row.error else f", error {row.error:.1f} %"
    return f"{row.method} {row.axis} {row.value}: {row.milliseconds:.1f} ms, {row.multiple:.2f} x{shown}{error}"


def _drift_line(verdict: Drift, method: str, steps: int) -> str:
    word = "[green]flat[/]" if verdict.flat else "[red]not flat[/]"
    figures = {"device": verdict.device_mib, "host": verdict.host_mib}
    memory = "".join(f", {place} {mib:+.2f} MiB" for place, mib in figures.items() if mib == mib)
    return f"{method} over {steps} steps: {word}; last tenth against first: time {verdict.percent:+.1f} %{memory}"


def _growth_table(rows: Sequence[GrowthRow]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("method", "axis"):
        table.add_column(title, style="cyan", no_wrap=True)
    for title in ("value", "ms", "x forward", "peak MiB"):
        table.add_column(title, justify="right")
    for row in rows:
        if row.axis != "steps":
            peak = "" if row.peak_mib != row.peak_mib else f"{row.peak_mib:.0f}"
            table.add_row(
                row.method, row.axis, f"{row.value}", f"{row.milliseconds:.1f}", f"{row.multiple:.2f}", peak
            )  # fmt: skip
    return table


def _draw_growth(rows: Sequence[dict[str, Any]], path: Path) -> None:
    from slomofast.cli._shared import console
    from slomofast.report.plots import save
    from slomofast.report.plots_bench import growth

    save(growth(rows), path)
    console.print(str(path), highlight=False, soft_wrap=True)


def _waits_in_words(report: WaitReport) -> str:
    trace = report.trace
    if not trace.on_device:
        return "operators of the host"
    return f"{len(trace.waits)} waits in {len(trace.steps)} steps"


def _show_trace(report: WaitReport, method: str, on_gpu: bool) -> None:
    from rich.table import Table

    from slomofast.cli._shared import console

    trace = report.trace
    unit = "kernels" if trace.on_device else "operators"
    shares = Table(box=None, pad_edge=False, header_style="bold")
    shares.add_column("kind", style="cyan", no_wrap=True)
    for title in ("ms per step", "share %", unit):
        shares.add_column(title, justify="right")
    for cost in trace.costs():
        shares.add_row(cost.kind, f"{cost.milliseconds:.2f}", f"{cost.percent:.1f}", f"{cost.kernels:.0f}")
    console.print(shares)
    counts = Table(box=None, pad_edge=False, header_style="bold")
    counts.add_column("can make the host wait", style="cyan", no_wrap=True)
    counts.add_column(f"in {len(trace.steps)} steps", justify="right")
    for name, count in trace.counts().items():
        counts.add_row(name, f"{count}")
    console.print(counts)
    console.print(f"{method}: {report.milliseconds:.2f} ms per step without the profiler", highlight=False)
    if not trace.on_device:
        lost = "the profiler saw no kernel of the GPU (no CUPTI?): these are the host's operators"
        console.print(lost if on_gpu else "on a CPU there is no device to wait for", highlight=False)
        _show_guard(report)
        return
    inside = sum(call.milliseconds for call in trace.waits)
    console.print(
        f"{trace.kernels:.0f} kernels per step, device busy {trace.busy:.1f} % of the time, {_waits_in_words(report)} "
        f"({inside:.2f} ms)",
        highlight=False,
    )
    if trace.beside_passes == trace.beside_passes:
        console.print(f"{trace.beside_passes:.1f} % of the device's time is no network's pass", highlight=False)
    if trace.idle_waits:
        console.print(
            f"{len(trace.idle_waits)} more calls found the device with nothing left to do, so nobody waited "
            "(the deferred input check reads its verdict then)",
            highlight=False,
        )
    _show_guard(report)


def _show_guard(report: WaitReport) -> None:
    from rich.markup import escape

    from slomofast.cli._shared import console

    if report.refused is not None:
        verdict = f"[red]refused[/]: {escape(report.refused)}" if report.refused else "[green]nothing refused[/]"
        console.print(f"while PyTorch refuses to wait: {verdict}", highlight=False)


def _write_shares(
    path: Path, report: WaitReport, facts: dict[str, str], about: tuple[str, str, bool, bool, int]
) -> None:
    from slomofast.bench.steps import write_costs

    trace = report.trace
    method, precision, compile, graphs, batch_size = about
    known = {
        "method": method, "precision": precision, "compiled": str(compile), "graphs": str(graphs),
        "batch_size": str(batch_size),
        "step_milliseconds": f"{report.milliseconds:.3f}", "busy_percent": f"{trace.busy:.2f}",
        "waits": str(len(trace.waits)) if trace.on_device else "", "idle_waits": str(len(trace.idle_waits)),
        "refused": report.refused or "",
    }  # fmt: skip
    write_costs(path, trace.costs(), {**known, **facts})
