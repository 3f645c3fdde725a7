"""From a folder of records to a folder with a page and tables."""

from __future__ import annotations

from pathlib import Path

from slomofast.core.errors import DataError
from slomofast.core.files import write_atomically
from slomofast.report import rendering
from slomofast.report.aggregate import group_runs
from slomofast.report.html import render_page
from slomofast.report.paper_tables import all_tables
from slomofast.report.payload import build_payload
from slomofast.report.records import Reading, read_store

_WRITERS = {
    "md": rendering.markdown,
    "tex": rendering.latex,
    "csv": rendering.comma_separated,
}


def build_report(store_dir: str | Path, out_dir: str | Path, title: str | None = None) -> Path:
    """Write the report of a store and return the path of its `index.html`.

    `out_dir` gets `index.html`, one file that works offline, and `tables/*.md`, `*.tex`, `*.csv`. The same records
    give the same bytes. Damaged records are skipped and named on the page; an empty store gives a page that says so.
    """
    return write_report(read_store(store_dir), Path(out_dir), title or default_title(store_dir))


def default_title(store_dir: str | Path) -> str:
    """The headline of a page nobody gave one: the name of the store's folder."""
    return f"Test-time adaptation: {Path(store_dir).resolve().name}"


def write_report(reading: Reading, out_dir: Path, title: str) -> Path:
    """Write page and tables of what was read; tables of an earlier report in the same place are replaced."""
    if out_dir.exists() and not out_dir.is_dir():
        raise DataError(f"{out_dir} is a file; name a folder for the report")
    groups = group_runs(reading.runs)
    tables = all_tables(groups)
    folder = out_dir / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    for name in rendering.FILES:
        for ending, write in _WRITERS.items():
            path = folder / f"{name}.{ending}"
            if name in tables:
                write_atomically(path, write(tables[name]).encode())
            else:
                path.unlink(missing_ok=True)
    page = out_dir / "index.html"
    write_atomically(page, render_page(build_payload(reading, groups, tables, title)).encode())
    return page
