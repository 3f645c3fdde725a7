"""What every command shares: the console and the way an error is shown."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console
from rich.text import Text

console = Console()
errors = Console(stderr=True)


def show_error(message: str) -> None:
    """Print one line that begins in red; the message comes out as it is, square brackets and all."""
    errors.print(Text.assemble(("error:", "bold red"), " ", message), soft_wrap=True)


def fail(message: str) -> NoReturn:
    """Print one red line and leave with exit code 2."""
    show_error(message)
    raise typer.Exit(2)


def command_line() -> str:
    """The command that is running, for files that say how they were made; of paths, the last part only."""
    return shlex.join(["slomofast", *(Path(word).name if "/" in word else word for word in sys.argv[1:])])
