"""The `slomofast` command: every module of this package contributes its commands."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import NoReturn

import typer

import slomofast.cli as commands
from slomofast.cli._shared import show_error
from slomofast.core.errors import SlomofastError

app = typer.Typer(
    name="slomofast",
    help="Continual test-time adaptation: run methods on drifting streams, compare them, report.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


@app.callback()
def _main() -> None:
    """Continual test-time adaptation: run methods on drifting streams, compare them, report.

    Start with [bold]slomofast demo[/], then [bold]slomofast run --help[/].
    """


for _module in sorted(pkgutil.iter_modules(commands.__path__), key=lambda m: m.name):
    if not _module.name.startswith("_"):
        importlib.import_module(f"slomofast.cli.{_module.name}").register(app)


def main() -> None:
    """Run the command line; errors made on purpose, and files out of reach, end in one line and exit code 2."""
    try:
        app()
    except SlomofastError as error:
        _say(str(error))
    except OSError as error:
        if error.filename is None:  # no path that somebody could mend
            raise
        _say(f"{error.filename}: {error.strerror}; check the path and your rights to it")


def _say(message: str) -> NoReturn:
    show_error(message)
    sys.exit(2)


if __name__ == "__main__":
    main()
