"""`slomofast compare`: two methods or two records side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slomofast.cli._shared import console

if TYPE_CHECKING:
    from rich.text import Text

    from slomofast.report.comparison import Line


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("compare")(compare)


def compare(
    first: Annotated[str, typer.Argument(help="A method ('tent', 'tent lr=0.01'), a record id or a record file.")],
    second: Annotated[str, typer.Argument(help="What to compare it with, of the same kind.")],
    runs: Annotated[Path, typer.Option("--runs", "-r", help="Folder of records.")] = Path("runs"),
) -> None:
    """Compare two methods in every experiment both went through, or two records domain by domain.

    The difference is first minus second in points of error, so below zero the first is better. Its 95 % interval is
    a bootstrap over pairs of the same seed and domain; an interval that contains 0 decides nothing. None is
    shown where it cannot be estimated: fewer than four pairs, or all of one difference.
    """
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from slomofast.report.comparison import compare as compared
    from slomofast.report.records import read_store

    files = all(Path(name).suffix == ".json" for name in (first, second))
    found = compared(first, second, None if files else read_store(runs))
    table = Table(
        title=f"{escape(found.first)} against {escape(found.second)}",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, 1, 0, 0),  # 80 columns are enough for the widest figures
    )
    table.add_column(found.head, min_width=16)
    for head in ("first", "second", "difference, 95 %"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("first is", no_wrap=True)
    table.add_column("seeds", justify="right", no_wrap=True)
    for line in found.lines:
        table.add_row(escape(line.label), *_cells(line), end_section=line is found.lines[-2:][0])
    console.print(table)
    for remark in found.remarks:
        console.print(f"[yellow]note[/] {escape(remark)}", highlight=False)


def _cells(line: Line) -> list[str | Text]:
    from rich.text import Text

    means = ["–" if v is None else f"{v:.2f}" for v in (line.first, line.second)]
    seeds = " / ".join(str(n) for n in dict.fromkeys(line.seeds)) if any(line.seeds) else ""
    if line.difference is None:
        gap = f"{line.first - line.second:+.2f}" if line.first is not None and line.second is not None else "–"
        return [*means, gap, "", seeds]
    low, high = line.difference.low, line.difference.high
    known = low is not None and high is not None and high - low > 1e-9
    interval = f" [{low:+.2f}, {high:+.2f}]" if known else ""
    if not (known and line.difference.clear):
        verdict = Text("undecided", style="dim")
    elif line.difference.mean < 0:
        verdict = Text("better", style="bold green")
    else:
        verdict = Text("worse", style="bold red")
    return [*means, Text(f"{line.difference.mean:+.2f}{interval}"), verdict, seeds]
