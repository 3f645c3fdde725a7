"""`slomofast methods`: what can be run."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("methods")(methods)


def methods(name: Annotated[str | None, typer.Argument(help="Show everything about this one.")] = None) -> None:
    """List the adaptation methods, or explain one with its options."""
    import inspect

    from rich.table import Table
    from rich.text import Text

    from slomofast.cli._shared import console
    from slomofast.core.registry import describe, list_methods

    if name is None:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("method", no_wrap=True, style="cyan")
        table.add_column("trains", no_wrap=True)
        table.add_column("source data", no_wrap=True)
        table.add_column("")
        for method in list_methods():
            info = describe(method)
            table.add_row(method, info.trains, "needed" if info.needs_source else "", Text(info.title))
        console.print(table)
        console.print("\nslomofast methods NAME shows a method's options.", style="dim")
        return
    info = describe(name)
    console.print(f"[bold cyan]{info.name}[/]  {info.paper}", highlight=False)
    console.print(Text(inspect.getdoc(info.adapter) or info.title))
    console.print()
    facts = Table(box=None, pad_edge=False, show_header=False)
    facts.add_row("trains", info.trains)
    facts.add_row("useful with", ", ".join(f"{norm} norm" if norm != "none" else "no norm" for norm in info.norms))
    facts.add_row("source data", "needed before the stream" if info.needs_source else "not needed")
    facts.add_row("single images", "fine" if info.batch_of_one else "run, but a batch is better")
    facts.add_row("returns", info.returns)
    if info.presets:
        facts.add_row("presets", ", ".join(info.presets))
    console.print(facts)
    console.print()
    table = Table(
        title="options (--set name=value)", title_justify="left", box=None, pad_edge=False, header_style="bold"
    )
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("meaning")
    for option in info.options:
        meaning = Text(option.get("help") or "")
        if bounds := _range(option):
            meaning.append(f"  {bounds}", style="dim")
        table.add_row(option["name"], _shown(option["default"]), meaning)
    console.print(table)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _range(option: dict) -> str:
    if option.get("choices"):
        return " | ".join(map(str, option["choices"]))
    if " | " in str(option["type"]) and "None" not in str(option["type"]):
        return str(option["type"])
    low, high, above = option.get("low"), option.get("high"), option.get("above")
    start = f"> {above:g}" if above is not None else f">= {low:g}" if low is not None else ""
    end = f"<= {high:g}" if high is not None else ""
    return ", ".join(part for part in (start, end) if part)
