"""What every command shares: the console and the way an error is shown."""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape

console = Console()
errors = Console(stderr=True)


def fail(message: str) -> NoReturn:
    """Print one red line and leave with exit code 2."""
    errors.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True)
    raise typer.Exit(2)
