"""`slomofast data`: what there is, making it, fetching it, checking it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slomofast.cli._options import known_device

if TYPE_CHECKING:
    from rich.progress import Progress

    from slomofast.data import CorruptedImages


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(no_args_is_help=True, help="List, make, fetch and check data sets.")
    group.command("list")(list_)
    group.command("make")(make)
    group.command("get")(get)
    group.command("check")(check)
    group.command("bench")(bench)
    app.add_typer(group, name="data")


def list_() -> None:
    """Show every kind of data set, the layout it reads and its options."""
    from rich.markup import escape
    from rich.table import Table

    from slomofast.cli._shared import console
    from slomofast.data import data_home, list_data
    from slomofast.data.download import DOWNLOADS

    table = Table("name", "what", "layout", "options", "at hand")
    for info in list_data():
        here = "always" if not info.takes_path else ""
        if info.folder and (data_home() / info.folder).exists():
            here = "yes"
        elif info.name in DOWNLOADS:
            here = "data get"
        table.add_row(*map(escape, (info.name, info.title, info.layout, ", ".join(info.options), here)))
    console.print(table)
    console.print(
        f"Data home: {escape(str(data_home()))} (set SLOMOFAST_HOME to move it). A spec is name or name:path."
    )


def _bar() -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from slomofast.cli._shared import console

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        console=console,
    )


def make(
    source: Annotated[str, typer.Argument(help="Clean images: glyphs, pack:FILE or folder:PATH.")],
    out: Annotated[Path, typer.Argument(help="Folder to write to.")],
    layout: Annotated[
        str, typer.Option(help="arrays (as CIFAR-C), folders (as ImageNet-C) or ccc (tar shards of one stream).")
    ] = "arrays",
    size: Annotated[int | None, typer.Option(help="Use this many images only.", min=1)] = None,
    domains: Annotated[str | None, typer.Option(help="Corruptions separated by commas; `all` for nineteen.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the corruptions, and of the order of a ccc stream.")] = 0,
    device: Annotated[str | None, typer.Option(help="Where to compute: cpu or cuda.", callback=known_device)] = None,
    level: Annotated[str, typer.Option(help="ccc: easy, medium or hard.")] = "medium",
    speed: Annotated[
        int | None, typer.Option(help="ccc: images at each notch; 1000, or 200 of small images.", min=1)
    ] = None,
    images: Annotated[int | None, typer.Option(help="ccc: in all; 7,500,000, or 100,000 small ones.", min=1)] = None,
    target: Annotated[
        float | None, typer.Option(help="ccc: accuracy to keep; that of the level by default.", min=0, max=100)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="ccc: network whose accuracy is kept; a plain staircase of severities without.")
    ] = None,
    weights: Annotated[list[Path] | None, typer.Option(help="ccc: its weights; repeat for parts.")] = None,
) -> None:
    """Write clean images, corrupted, in an official layout; the same command continues after an interruption."""
    from rich.markup import escape

    from slomofast.cli._shared import console, fail
    from slomofast.core.errors import DataError
    from slomofast.data import CorruptedImages, open_data
    from slomofast.data.make import make_arrays, make_folders

    if layout not in ("arrays", "folders", "ccc"):
        fail(f"--layout is arrays, folders or ccc, got {layout!r}")
    options = {"domains": domains, "seed": seed, "device": device}
    if size is not None:
        options["size"] = size
    data = open_data(source, **options)
    if not isinstance(data, CorruptedImages):
        raise DataError(f"{source} is corrupted already; start from glyphs, pack:FILE or folder:PATH")
    if layout == "ccc":
        small = data.pair_quality is None
        setting = {
            "name": "ccc",
            "level": level,
            "speed": speed or (200 if small else 1000),
            "images": images or (100_000 if small else 7_500_000),
            "target": target,
            "calibrated": model is not None,
        }
        made = _make_ccc(data, out, setting, seed, model, weights)
        # Only ImageNet's thousand classes go without saying.
        also = "" if data.classes == 1000 else f" --data-set classes={data.classes}"
        where = escape(str(out))
        console.print(f"wrote {made:,} images to {where}; use them as --data ccc:{where}{also}", soft_wrap=True)
        return
    with _bar() as bar:
        tasks = {d: bar.add_task(d, total=None) for d in data.domains}

        def progress(domain: str, done: int, total: int) -> None:
            bar.update(tasks[domain], completed=done, total=total)

        (make_arrays if layout == "arrays" else make_folders)(data, out, progress)
    console.print(f"wrote {len(data.domains)} corruptions of {data.size:,} images to {escape(str(out))}")


def _make_ccc(
    data: CorruptedImages,
    out: Path,
    setting: dict[str, Any],
    seed: int,
    model: str | None,
    weights: list[Path] | None,
) -> int:
    """Write the shards of one stream; how many images it has."""
    from slomofast.bench.source import KeptMatrices
    from slomofast.cli._shared import console
    from slomofast.data.make import make_shards
    from slomofast.models import load_source, model_fingerprint
    from slomofast.streams import Stream

    matrices = None
    if model is not None:
        network = load_source(model, weights or None).to(data.device)
        out.mkdir(parents=True, exist_ok=True)
        # What is measured stays beside the shards, so that continuing does not measure again.
        place = out / f"accuracies-{model_fingerprint(network)[:12]}.json"
        matrices = KeptMatrices(network, data, 200, place)
    with console.status("laying out the stream ..."):
        stream = Stream(setting, data, batch_size=setting["speed"], seed=seed, matrices=matrices)
    total = sum(segment.count for segment in stream.segments)
    notches = (
        (*segment.pair, stream.rows(number)[1]) for number, segment in enumerate(stream.segments) if segment.pair
    )
    with _bar() as bar:
        task = bar.add_task("images", total=total)
        make_shards(
            data,
            out,
            notches,
            total,
            stream.fingerprint,
            lambda _, done, of: bar.update(task, completed=done, total=of),
        )
    return total


def get(
    name: Annotated[
        str,
        typer.Argument(help="cifar10_c, cifar100_c, tinyimagenet_c, imagenet_c, imagenet_r, imagenet_sketch or ccc."),
    ],
    folder: Annotated[Path | None, typer.Option(help="Where it goes; under the data home by default.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the archives after unpacking.")] = False,
    level: Annotated[str, typer.Option(help="ccc: easy, medium or hard.")] = "medium",
    speed: Annotated[int, typer.Option(help="ccc: images at each notch; 1000, 2000 or 5000.", min=1)] = 1000,
    seed: Annotated[int, typer.Option(help="ccc: 43, 44 or 45.")] = 44,
    shards: Annotated[
        int | None, typer.Option(help="ccc: the first shards only, of 25,000 images each.", min=1)
    ] = None,
) -> None:
    """Download a published data set, check it and unpack it; the same command continues after an interruption."""
    from rich.markup import escape
    from rich.progress import TaskID

    from slomofast.cli._shared import console
    from slomofast.data import download

    with _bar() as bar:
        tasks: dict[str, TaskID] = {}

        def progress(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        if name == "ccc":
            where = download.get_ccc(level, speed, seed, shards, folder, progress)
        else:
            where = download.get(name, folder, progress, keep)
    shown = escape(str(where))
    unchecked = name == "ccc" or any(archive.md5 is None for archive in download.ARCHIVES[name][1])
    if unchecked:
        console.print(
            f"No checksum is published for {name}: lengths, names and numbers were compared, pictures were not looked "
            f"at. `slomofast data check {name}:{shown}` decodes every one.",
            soft_wrap=True,
        )
    console.print(f"{name} is in {shown}; use it as {name}:{shown}", soft_wrap=True)


def check(
    spec: Annotated[str, typer.Argument(help="Data set on disk, name:path.")],
    size: Annotated[int, typer.Option(help="Images per severity in the array layouts.", min=1)] = 10_000,
    classes: Annotated[int | None, typer.Option(help="Number of classes to insist on.", min=1)] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Names, counts and headers only; decode no image.")] = False,
) -> None:
    """Say what is missing or damaged, file by file; exit code 1 if anything is."""
    from slomofast.cli._shared import console
    from slomofast.data.check import check_data

    with _bar() as bar:
        task = bar.add_task("checking", total=None)
        findings = check_data(
            spec, size, classes, not quick, lambda done, total: bar.update(task, completed=done, total=total)
        )
        bar.update(task, completed=1, total=1)
    for finding in findings:
        console.print(f"{finding.path}: {finding.problem}", markup=False, soft_wrap=True)
    if findings:
        console.print(f"[red]{len(findings)} problems[/]")
        raise typer.Exit(1)
    console.print("[green]complete[/]")


def bench(
    model: Annotated[str, typer.Option(help="Network whose forward pass the loading is hidden behind.")] = "resnet_50",
    images: Annotated[int, typer.Option(help="Number of JPEG files to write and read.", min=1)] = 256,
    batch_size: Annotated[int, typer.Option(help="Images in a batch.", min=1)] = 32,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.", callback=known_device)] = None,
) -> None:
    """Measure how long a run waits for images: 224-pixel JPEGs decoded in threads ahead of a network."""
    import torch

    from slomofast.cli._shared import console
    from slomofast.data.bench import bench_loading
    from slomofast.models import load_source

    where = torch.device(device or "cpu")
    network = load_source(model).to(where)
    report = bench_loading(lambda x: network(x.to(where)), images, batch_size)
    console.print(
        f"{report.images} images of 224x224 in {report.seconds:.1f} s, waiting {report.waiting:.2f} s "
        f"({report.share:.1f} %); decoding alone {report.decode_rate:.0f} images/s"
    )
