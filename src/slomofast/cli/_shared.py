"""What every command shares: the console and the way an error is shown."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
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


def command_line() -> str:
    """The command that is running, for files that say how they were made; of paths, the last part only."""
    return shlex.join(["slomofast", *(Path(word).name if "/" in word else word for word in sys.argv[1:])])
