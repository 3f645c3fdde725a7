"""`slomofast bench`: speed and fidelity of the parts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from slomofast.cli._bench_cost import growth, trace
from slomofast.cli._options import known_device, writable_file


def register(app: typer.Typer) -> None:
    """Add the commands."""
    bench = typer.Typer(no_args_is_help=True, help="Measure speed and fidelity of the library's parts.")
    bench.command("corruptions")(corruptions)
    bench.command("fidelity")(fidelity)
    bench.command("steps")(steps)
    bench.command("growth")(growth)
    bench.command("trace")(trace)
    app.add_typer(bench, name="bench")


def corruptions(
    size: Annotated[int, typer.Option(help="Side of the images in pixels.", min=4)] = 32,
    images: Annotated[int, typer.Option(help="Number of images.", min=1)] = 10_000,
    device: Annotated[str, typer.Option(help="cpu or cuda.", callback=known_device)] = "cpu",
    threads: Annotated[int, typer.Option(help="CPU threads.", min=1)] = 1,
    severity: Annotated[float, typer.Option(help="Strength in [0, 5].", min=0, max=5)] = 5,
    extra: Annotated[bool, typer.Option("--extra", help="Include the four validation corruptions.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Also time the package imagecorruptions.")] = False,
    out: Annotated[Path | None, typer.Option(help="CSV file to write.", callback=writable_file)] = None,
) -> None:
    """Time every corruption."""
    from rich.table import Table

    from slomofast.bench.bench_corruptions import SpeedRow, run_corruption_benchmark, write_rows
    from slomofast.cli._shared import command_line, console
    from slomofast.corruptions import list_corruptions

    rows: list[SpeedRow] = []
    with console.status("corrupting") as status:
        for row in run_corruption_benchmark(
            size, images, device, threads, severity, list_corruptions(extra=extra), compare
        ):
            rows.append(row)
            status.update(f"{row.corruption} done")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("corruption", style="cyan", no_wrap=True)
    table.add_column("seconds", justify="right")
    table.add_column("CPU seconds", justify="right")
    table.add_column("images/s", justify="right")
    if compare:
        table.add_column("imagecorruptions images/s", justify="right")
        table.add_column("times faster", justify="right")
    for row in rows:
        cells = [row.corruption, f"{row.seconds:.3f}", f"{row.cpu_seconds:.3f}", f"{row.images_per_second:,.0f}"]
        if compare and row.other_images_per_second:
            cells += [
                f"{row.other_images_per_second:,.1f}",
                f"{row.images_per_second / row.other_images_per_second:,.0f}",
            ]
        elif compare:
            cells += [row.note, ""]
        table.add_row(*cells)
    wall, cpu = sum(row.seconds for row in rows), sum(row.cpu_seconds for row in rows)
    table.add_row("total", f"{wall:.3f}", f"{cpu:.3f}", style="bold")
    console.print(table)
    if out is not None:
        write_rows(rows, out, command_line(), device)


def steps(
    methods: Annotated[str | None, typer.Option(help="Names separated by commas; all if not given.")] = None,
    model: Annotated[str, typer.Option(help="Source network.")] = "glyphs",
    weights: Annotated[list[Path] | None, typer.Option(help="Its weights; repeat for parts.")] = None,
    size: Annotated[int, typer.Option(help="Side of the images in pixels.", min=4)] = 32,
    batch_size: Annotated[int, typer.Option(help="Images in a batch.", min=1)] = 200,
    precision: Annotated[str, typer.Option(help="fp32, bf16, or both separated by a comma.")] = "fp32",
    compile: Annotated[bool, typer.Option("--compile", help="torch.compile the networks.")] = False,
    graphs: Annotated[bool, typer.Option("--graphs", help="Replay the networks' passes as CUDA graphs.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the method, name=value, where one is timed.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Timed steps.", min=1)] = 20,
    device: Annotated[str, typer.Option(help="cpu or cuda.", callback=known_device)] = "cpu",
    out: Annotated[Path | None, typer.Option(help="CSV file the rows are appended to.", callback=writable_file)] = None,
) -> None:
    """Time one step of each method, in milliseconds and in plain forward passes of the same run and precision.

    The time is the median of the means of four neighbouring steps, since a method may do in every other step what it
    leaves out in the next; p95 is of single steps.
    """
    import torch
    from rich.markup import escape
    from rich.table import Table

    from slomofast.bench.run import environment
    from slomofast.bench.steps import step_cost, write_costs
    from slomofast.cli._options import known_precisions, pairs, split_names
    from slomofast.cli._shared import command_line, console
    from slomofast.core.errors import ConfigError, SlomofastError
    from slomofast.core.registry import describe, list_methods
    from slomofast.models import load_source

    kinds = known_precisions(precision)
    names = [describe(name).name for name in split_names(methods)] or list_methods()
    if set_ and len(names) != 1:
        raise ConfigError(f"--set is for one method, and these are {len(names)}; name one with --methods")
    options = describe(names[0]).adapter.Config.parse(pairs(set_, "--set")) if set_ else {}
    network = load_source(model, weights or None).to(device)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch_size, 3, size, size, generator=generator).to(device)
    with torch.no_grad():
        classes = network(images[:2]).shape[1]

    def source() -> list[tuple[torch.Tensor, torch.Tensor]]:
        labels = torch.randint(0, classes, (4, batch_size), generator=generator)
        return [(torch.rand(images.shape, generator=generator), row) for row in labels]

    facts = environment(torch.device(device))
    kept = {
        "model": model,
        "command": command_line(),
        "commit": str(facts["commit"] or ""),
        "device": str(facts["device"]),
    }
    table = Table("method", "precision", "ms", "p95", "x forward", "MiB", "first call s", box=None, header_style="bold")
    for kind in kinds:
        for name in names:
            try:
                cost = step_cost(
                    network, images, name, precision=kind, compile=compile, graphs=graphs, steps=repeats, source=source,
                    options=options,
                )  # fmt: skip
            except (SlomofastError, torch.cuda.OutOfMemoryError) as error:
                console.print(f"[yellow]{name}[/]: {escape(str(error))}", highlight=False)
                continue
            table.add_row(
                name, kind, f"{cost.milliseconds:.1f}", f"{cost.p95:.1f}", f"{cost.multiple:.2f}",
                "" if math.isnan(cost.peak_mib) else f"{cost.peak_mib:.0f}", f"{cost.first_call_seconds:.1f}",
            )  # fmt: skip
            console.print(f"{name} {kind}: {cost.milliseconds:.1f} ms, {cost.multiple:.2f} x", highlight=False)
            if out is not None:
                write_costs(out, [cost], kept)
    console.print(table)


def fidelity(
    pack: Annotated[Path, typer.Option(help=".npz pack of clean images.")],
    weights: Annotated[list[Path], typer.Option(help="Weights of the source network; repeat for parts.")],
    model: Annotated[str, typer.Option(help="Name of the source network.")] = "wrn_28_10",
    reference: Annotated[str | None, typer.Option(help="Reference errors: numbers, or a .json or .csv file.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.", callback=known_device)] = "cpu",
    severity: Annotated[float, typer.Option(help="Strength in [0, 5].", min=0, max=5)] = 5,
    images: Annotated[int | None, typer.Option(help="Use the first images only.", min=1)] = None,
    batch_size: Annotated[int, typer.Option(help="Images per batch.", min=1)] = 200,
    bn: Annotated[bool, typer.Option("--bn", help="Also measure with batch statistics.")] = False,
    out: Annotated[Path | None, typer.Option(help="CSV file to write.", callback=writable_file)] = None,
) -> None:
    """Errors of a source network on our corruptions, beside those on the published ones."""
    from rich.table import Table

    from slomofast.bench.bench_corruptions import FidelityRow, read_reference, run_fidelity, write_rows
    from slomofast.cli._shared import command_line, console
    from slomofast.models import load_source

    wanted = None if reference is None else read_reference(reference)
    network = load_source(model, weights)
    rows: list[FidelityRow] = []
    with console.status("evaluating") as status:
        for row in run_fidelity(
            pack, network, wanted, device, severity, images, batch_size=batch_size, batch_statistics=bn
        ):
            rows.append(row)
            status.update(f"{row.corruption}: {row.error:.1f} %")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("corruption", style="cyan", no_wrap=True)
    for title in ("error %", "reference %", "difference", "batch statistics %"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            row.corruption,
            _number(row.error),
            _number(row.reference),
            _number(row.difference, "+.1f"),
            _number(row.bn_error),
        )
    mean = [_mean([getattr(row, key) for row in rows]) for key in ("error", "reference", "difference", "bn_error")]
    table.add_row("mean", *(_number(m, "+.1f" if i == 2 else ".1f") for i, m in enumerate(mean)), style="bold")
    console.print(table)
    if out is not None:
        write_rows(rows, out, command_line(), device)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _number(value: float | None, form: str = ".1f") -> str:
    return "" if value is None else format(value, form)
