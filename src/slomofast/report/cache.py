"""What was read of a large store, kept beside it, so that the next report need not read every curve again.

The file `.report.jsonl` is a convenience: a run is taken from it only while its record has the same size and time of
change, and deleting it costs time, never data. It holds plain JSON, so a store from a stranger stays harmless.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slomofast.core.files import write_atomically
from slomofast.report.curves import Band

if TYPE_CHECKING:
    from slomofast.report.records import Layout, Run

NAME = ".report.jsonl"
VERSION = 2  # raise when `Run` or the way it is computed changes
Stamp = tuple[int, int]  # size and time of change of a file


def load(folder: Path) -> tuple[dict[str, tuple[Stamp, Run]], dict[str, Layout]]:
    """Runs by file name with the stamp they were read at, and layouts; empty for a missing or foreign file."""
    from slomofast.report.records import Layout

    runs: dict[str, tuple[Stamp, Run]] = {}
    layouts: dict[str, Layout] = {}
    try:
        with open(folder / NAME, encoding="utf-8") as file:
            if json.loads(next(file, "null")) != _head():
                return {}, {}
            for line in file:
                kind, *rest = json.loads(line)
                if kind == "layout":
                    mark, steps, bands, edges = rest
                    layouts[mark] = Layout(steps, tuple(Band(*b) for b in bands), tuple(edges))
                else:
                    size, changed, values = rest
                    run = _run(values)
                    runs[run.file] = ((size, changed), run)
    except (OSError, ValueError, TypeError, KeyError, UnicodeDecodeError):
        return {}, {}  # missing, cut short or of another making: everything is read again
    return runs, layouts


def save(folder: Path, runs: Iterable[Run], stamps: Mapping[str, Stamp], layouts: Mapping[str, Layout]) -> None:
    """Replace the file in one step; a folder that cannot be written to is left as it is."""
    lines = [json.dumps(_head())]
    for mark, layout in sorted(layouts.items()):
        lines.append(json.dumps(["layout", mark, layout.steps, layout.bands, layout.edges]))
    for run in runs:
        lines.append(json.dumps(["run", *stamps[run.file], [getattr(run, f.name) for f in fields(run)]]))
    with suppress(OSError):
        write_atomically(folder / NAME, ("\n".join(lines) + "\n").encode())


def _head() -> list[Any]:
    from slomofast.report.records import Run

    return ["slomofast report", VERSION, [f.name for f in fields(Run)]]


def _run(values: list[Any]) -> Run:
    from slomofast.report.records import Run

    run = Run(*values)
    for name in ("protocol", "visits", "cycles", "warnings", "parts"):
        value = getattr(run, name)
        object.__setattr__(run, name, tuple(tuple(v) if isinstance(v, list) else v for v in value))
    object.__setattr__(run, "options", sys.intern(run.options))
    return run
