"""`slomofast corruptions`: what there is, and a contact sheet of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slomofast.cli._options import as_png, writable_file

if TYPE_CHECKING:
    from torch import Tensor


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(invoke_without_command=True, help="List the corruptions, or show what they do to an image.")
    group.callback()(corruptions)
    group.command("show")(show)
    app.add_typer(group, name="corruptions")


def corruptions(context: typer.Context) -> None:
    """List the corruptions with their groups."""
    if context.invoked_subcommand is not None:
        return
    from rich.table import Table
    from rich.text import Text

    from slomofast.cli._shared import console
    from slomofast.corruptions import describe_corruption, list_corruptions

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("corruption", style="cyan", no_wrap=True)
    table.add_column("group", no_wrap=True)
    table.add_column("")
    for name in list_corruptions(extra=True):
        known = describe_corruption(name)
        table.add_row(name, known.group + (" (extra)" if known.extra else ""), Text(known.description))
    console.print(table)
    console.print("\nslomofast corruptions show IMAGE --out sheet.png draws them at every severity.", style="dim")


def show(
    image: Annotated[str, typer.Argument(help="An image file, or a data set such as glyphs or pack:FILE.")],
    out: Annotated[Path, typer.Option(help="PNG file to write.", callback=writable_file)] = Path("sheet.png"),
    index: Annotated[int, typer.Option(help="Which image of a data set.", min=0)] = 0,
    size: Annotated[int, typer.Option(help="Side in pixels to which an image file is cut.", min=1)] = 224,
    seed: Annotated[int, typer.Option(help="Seed of the random corruptions.")] = 0,
) -> None:
    """Draw every corruption (rows) at severities 0 to 5 (columns) into one picture."""
    import numpy as np
    import torch
    from PIL import Image, ImageDraw
    from rich.markup import escape

    from slomofast.cli._shared import console
    from slomofast.core.errors import ConfigError
    from slomofast.corruptions import corrupt, list_corruptions

    if out.suffix.lower() != ".png":
        raise ConfigError(f"{out}: the sheet is a PNG file; try {as_png(out)}")
    picture = _picture(image, index, size)
    side = picture.shape[-1]
    scale = max(1, round(96 / side)) if side < 96 else 1
    cell, label, gap = side * scale, 150, 4
    names = list_corruptions(extra=True)
    sheet = Image.new("RGB", (label + 6 * (cell + gap), len(names) * (cell + gap)), "white")
    draw = ImageDraw.Draw(sheet)
    for row, name in enumerate(names):
        top = row * (cell + gap)
        draw.text((6, top + cell // 2 - 6), name, fill="black")
        for severity in range(6):
            pixels = corrupt(picture, name, severity, seed=seed, index=torch.tensor([index]))[0]
            tile = Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()))
            tile = tile.resize((cell, cell), Image.Resampling.NEAREST)
            sheet.paste(tile, (label + severity * (cell + gap), top))
    out.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(out)
    console.print(f"wrote {escape(str(out))} ({sheet.width}x{sheet.height})", highlight=False)


def _picture(image: str, index: int, size: int) -> Tensor:
    """One image, uint8, shape (1, 3, S, S): a file cut to a centred square, or image `index` of a data set."""
    import numpy as np
    import torch
    from PIL import Image, ImageOps, UnidentifiedImageError

    from slomofast.core.errors import ConfigError, DataError

    if Path(image).is_file() and not image.endswith(".npz"):
        try:
            square = ImageOps.fit(Image.open(image).convert("RGB"), (size, size))
        except UnidentifiedImageError:
            raise DataError(f"{image} is not an image that Pillow can read") from None
        return torch.from_numpy(np.array(square)).permute(2, 0, 1)[None].contiguous()
    from slomofast.data import open_data

    data = open_data(f"pack:{image}" if image.endswith(".npz") and ":" not in image else image)
    if not 0 <= index < data.size:
        raise ConfigError(f"index {index} is outside 0..{data.size - 1} of {image}")
    return data.load(data.domains[0], 0, np.array([index]))
