"""`slomofast plot`: pictures of stored records as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slomofast.cli._shared import console


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plot")(plot)


def plot(
    runs: Annotated[Path, typer.Argument(help="Folder of records, as `run` and `sweep` write it.")] = Path("runs"),
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the PNG files.")] = Path("plots"),
) -> None:
    """Draw stored records: error over time and by cycle, after a shift, forgetting, the stream's timeline.

    Runs over the same stream share a picture. For tables and an interactive page see [bold]slomofast report[/].
    """
    from slomofast.report.figures import write_figures

    with console.status("drawing"):
        files = write_figures(runs, out)
    for file in files:
        console.print(str(file), highlight=False, soft_wrap=True)
