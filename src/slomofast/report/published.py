"""Own rows with the published ones below: what every table of the paper shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from slomofast.report import reference
from slomofast.report.aggregate import Cell, Group, Method
from slomofast.report.tables import BENCHMARK, PAPER, Entry, Row, Table, entry_of, rank_columns

SOURCES = ((PAPER, "paper"), (BENCHMARK, "public benchmark"))
OWN = "this store"


def own_entry(cell: Cell | None) -> Entry:
    """Mean error of a method over its seeds; a dash for one that was not run."""
    if cell is None:
        return Entry()
    return entry_of([run.error for run in cell.runs], [run.id for run in cell.runs])


def find(name: str, group: Group, source: str, method: Method, cycle: str = "") -> reference.Entry | None:
    """The published row for this experiment; none for changed options or another kind of stream."""
    if not method.plain or not group.comparable:
        return None
    where = {"setting": group.setting, "data": group.data, "model": group.model}
    return reference.find(name, source, method.name, cycle=cycle, **where)


def printed(table: Table, found: reference.Entry | None, column: str) -> Entry:
    """A published number with its known contradictions as footnotes."""
    if found is None or column not in found.values:
        return Entry()
    value = found.values[column]
    notes = table.note(f"{found.source}: {found.flag}" if found.flag else "")
    digits = 2 if round(value, 1) != value else 1
    return Entry(value, found.values.get("std") if column == "error" else None, digits, notes=notes)


def printed_row(
    table: Table, labels: tuple[str, ...], found: reference.Entry | None, columns: Sequence[str]
) -> list[Row]:
    """One published row under the same labels; none where nothing was printed."""
    if found is None:
        return []
    return [Row((*labels, dict(SOURCES)[found.source]), tuple(printed(table, found, c) for c in columns), found.source)]


def printed_cells(
    table: Table, labels: tuple[str, ...], found: Sequence[reference.Entry | None], source: str
) -> list[Row]:
    """A published row put together from one number of several entries; none where all are missing."""
    if not any(found):
        return []
    return [Row((*labels, dict(SOURCES)[source]), tuple(printed(table, f, "error") for f in found), source)]


def interleave(own: Sequence[Row], below: Mapping[str, Iterable[Row]], label: int = 0) -> list[Row]:
    """Own rows, ranked by column, each followed by the published rows that go with its label."""
    return [r for row in rank_columns(own) for r in (row, *below.get(row.labels[label], ()))]
