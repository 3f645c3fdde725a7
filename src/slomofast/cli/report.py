"""`slomofast report`: tables and one page from a folder of records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slomofast.cli._shared import console


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("report")(report)


def report(
    runs: Annotated[Path, typer.Argument(help="Folder of records, as `run` and `sweep` write it.")] = Path("runs"),
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for index.html and tables/.")] = Path("report"),
    title: Annotated[str | None, typer.Option(help="Headline of the page; the folder's name if left out.")] = None,
) -> None:
    """Make tables (Markdown, LaTeX, CSV) and one self-contained page from stored records.

    The page works offline and holds its own data. The same records give the same bytes. Damaged records are skipped
    and named, here and on the page.
    """
    from rich.markup import escape

    from slomofast.report.build import default_title, write_report
    from slomofast.report.records import read_store

    reading = read_store(runs)
    page = write_report(reading, out, title or default_title(runs))
    for file, why in reading.problems[:20]:
        console.print(f"[yellow]skipped[/] {escape(file)}: {escape(why)}", highlight=False)
    if len(reading.problems) > 20:
        console.print(f"[yellow]skipped[/] {len(reading.problems) - 20:,} more files; the page names them")
    count = len(reading.runs)
    done = f"{count:,} record{'s' * (count != 1)}" if count else "[yellow]no finished record[/]"
    failed = f", {len(reading.failures):,} failed" if reading.failures else ""
    console.print(f"{done}{failed} in {escape(str(runs))}", highlight=False)
    console.print(f"[bold]{escape(str(page))}[/]", highlight=False, soft_wrap=True)
    console.print(f"tables in {escape(str(page.parent / 'tables'))}", highlight=False, soft_wrap=True)
