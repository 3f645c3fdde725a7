"""`slomofast search`: hyper-parameters chosen on the four extra corruptions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slomofast.cli._options import known_device, writable_file
from slomofast.cli._shared import console


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("search")(search_command)


def search_command(
    method: Annotated[str, typer.Argument(help="Method whose options are searched.")],
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", help="Values to try: lr=1e-3,3e-4. Items of a list option are joined by +. Repeatable."),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            "--also", help="One more candidate, options separated by spaces: 'lr=1e-3 restore=0'. Repeatable."
        ),
    ] = None,
    data: Annotated[str, typer.Option(help="Clean images: glyphs, pack:FILE or folder:PATH.")] = "glyphs",
    model: Annotated[str, typer.Option(help="Source network.")] = "glyphs",
    weights: Annotated[list[Path] | None, typer.Option(help="Weights; repeat for split files.")] = None,
    images_per_domain: Annotated[int | None, typer.Option(help="Images per visit of a domain.", min=1)] = 1000,
    batch_size: Annotated[int, typer.Option(help="Images in a batch.", min=1)] = 200,
    cycles: Annotated[int, typer.Option(help="How often the four corruptions come.", min=1)] = 2,
    setting: Annotated[
        str, typer.Option(help="Setting the four corruptions come in; --cycles belongs to cyclic.")
    ] = "cyclic",
    severities: Annotated[str, typer.Option(help="Strengths, each a stream of its own, separated by commas.")] = "3,5",
    in_turn: Annotated[
        bool, typer.Option("--in-turn", help="Strengths follow one another in one stream: 5,3,1 shows what is lost.")
    ] = False,
    order: Annotated[
        str | None, typer.Option(help="Order of the four corruptions, separated by commas; fewer than four are fine.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the order of images and of the method.")] = 0,
    precision: Annotated[str, typer.Option(help="fp32 or bf16.")] = "fp32",
    graphs: Annotated[bool, typer.Option("--graphs", help="Replay the networks' passes as CUDA graphs.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...", callback=known_device)] = "cpu",
    source: Annotated[
        str | None,
        typer.Option(
            help="Training images, for methods that need them: pack:FILE or folder:PATH. Of glyphs, training letters."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="CSV file that the results are appended to.", callback=writable_file)
    ] = None,
) -> None:
    """Choose hyper-parameters on the four extra corruptions (never on the fifteen test ones).

    Each candidate runs over speckle noise, gaussian blur, spatter and saturate at severities 3 and 5, twice in a
    row. What is best there may drift on longer streams: try also [bold]--cycles 10 --images-per-domain 2000[/];
    or need time that other settings do not give: [bold]--setting episodic[/], [bold]--setting mixed[/].

    Example: [bold]slomofast search tent --grid lr=1e-3,3e-4,1e-4[/]
    """
    import sys

    from rich.markup import escape
    from rich.table import Table

    from slomofast.bench.parts import source_options
    from slomofast.bench.search import Candidate, check_table, combinations, search, write_table
    from slomofast.cli._options import pairs, split_names
    from slomofast.cli._shared import fail
    from slomofast.core.errors import unknown_name
    from slomofast.core.registry import describe
    from slomofast.corruptions import EXTRA
    from slomofast.data import open_data
    from slomofast.models import load_source

    try:
        strengths = [float(text) for text in split_names(severities) or []]
    except ValueError:
        fail(f"--severities are numbers in [0, 5] separated by commas, got {severities!r}")
    if not strengths or not all(0 <= strength <= 5 for strength in strengths):
        fail(f"--severities are numbers in [0, 5] separated by commas, got {severities!r}")
    domains = split_names(order) or tuple(EXTRA)
    for name in domains:
        if name not in EXTRA:
            raise unknown_name("validation corruption", name, EXTRA)
    config = describe(method).adapter.Config
    read = {
        name: [config.parse({name: text.replace("+", ",")})[name] for text in values.split(",")]
        for name, values in pairs(grid or [], "--grid").items()
    }
    candidates = combinations(read) if grid or not also else []
    for line in also or []:
        texts = pairs(line.split(), "--also")
        candidates.append(config.parse({name: text.replace("+", ",") for name, text in texts.items()}))
    if out and check_table(out):
        console.print(f"made the folder {escape(str(out.parent))} for --out", highlight=False, soft_wrap=True)
    opened = open_data(data, domains=list(domains), device=device)
    source = source or ("glyphs" if data == "glyphs" else None)
    network = load_source(model, weights or None).to(device)
    facts = {"command": "slomofast " + " ".join(sys.argv[1:]), **_machine(device)}

    def done(candidate: Candidate) -> None:
        shown = " ".join(f"{key}={value}" for key, value in candidate.options.items())
        console.print(
            f"{candidate.mean:6.2f}  {escape(shown) or 'defaults'}  [dim]{escape(candidate.best_members)}[/]",
            highlight=False,
        )
        if out:
            write_table(out, method, [candidate], facts)

    found = search(
        method,
        candidates,
        network,
        opened,
        cycles=cycles,
        severities=strengths,
        images_per_domain=images_per_domain,
        batch_size=batch_size,
        seed=seed,
        preset=opened.family,
        setting=setting,
        in_turn=in_turn,
        source=open_data(source, device=device, **source_options(source)) if source else None,
        runtime={"precision": precision, "channels_last": device != "cpu", "check_input": "deferred", "graphs": graphs},
        done=done,
    )
    table = Table("error %", "options", "best members", title=f"{method}: best first", title_justify="left", box=None)
    for candidate in found[:20]:
        shown = " ".join(f"{key}={value}" for key, value in candidate.options.items()) or "defaults"
        table.add_row(f"{candidate.mean:.2f}", escape(shown), escape(candidate.best_members))
    console.print(table)


def _machine(device: str) -> dict[str, str]:
    import torch

    from slomofast.bench.run import environment

    facts = environment(torch.device(device))
    return {"commit": str(facts["commit"] or ""), "device": str(facts["device"])}
