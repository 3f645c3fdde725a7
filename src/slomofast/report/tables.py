"""Tables as values: rows of numbers with their deviation, their rank, footnotes and the records they come from.

`rendering` writes them as Markdown, LaTeX and CSV; the page shows the same objects. This module has the shapes and
the rules all tables share; `paper_tables` has the tables themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from slomofast.report.aggregate import deviation

OURS, PAPER, BENCHMARK = "ours", "paper", "benchmark"


@dataclass(frozen=True)
class Entry:
    """One cell: a number (None: a dash) with what is known about it."""

    value: float | None = None
    deviation: float | None = None
    digits: int = 1
    rank: int = 0  # 1: best of its row or column, 2: second, 0: neither
    notes: tuple[int, ...] = ()  # footnotes, counted from 0
    records: tuple[str, ...] = ()
    text: str = ""  # shown instead of the number

    @property
    def plain(self) -> str:
        """The cell as text, without footnotes: `16.2 ± 0.1`, a dash where there is nothing."""
        if self.text:
            return self.text
        if self.value is None:
            return "–"
        spread = "" if self.deviation is None else f" ± {self.deviation:.{max(self.digits, 1)}f}"
        return f"{self.value:.{self.digits}f}{spread}"


@dataclass(frozen=True)
class Row:
    """Labels on the left, cells on the right; `origin` says whose numbers they are."""

    labels: tuple[str, ...]
    entries: tuple[Entry, ...]
    origin: str = OURS


@dataclass
class Table:
    """A table ready for any format."""

    name: str
    title: str
    caption: str
    heads: tuple[str, ...]  # names of the label columns
    columns: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> tuple[int, ...]:
        """The footnote with this text, added once; nothing for an empty text."""
        if not text:
            return ()
        if text not in self.notes:
            self.notes.append(text)
        return (self.notes.index(text),)


def entry_of(values: Sequence[float], records: Iterable[str] = (), digits: int = 1) -> Entry:
    """Mean and deviation over seeds; a dash for no values.

    >>> entry_of([1.0, 2.0]).plain
    '1.5 ± 0.7'
    """
    if not values:
        return Entry()
    return Entry(sum(values) / len(values), deviation(values), digits, records=tuple(records))


def ranked(entries: Sequence[Entry]) -> list[Entry]:
    """The same cells with the lowest marked 1 and the next 2; equal as printed means equal in rank."""
    printed = [None if e.value is None else round(e.value, e.digits) for e in entries]
    order = sorted({v for v in printed if v is not None})[:2]
    if sum(v is not None for v in printed) < 2:
        return list(entries)
    places = {value: place + 1 for place, value in enumerate(order)}
    return [_with_rank(e, places.get(v, 0) if v is not None else 0) for e, v in zip(entries, printed, strict=True)]


def rank_columns(rows: Sequence[Row]) -> list[Row]:
    """Rows of one block with the best and second of every column marked."""
    if not rows:
        return []
    columns = [ranked([row.entries[c] for row in rows]) for c in range(len(rows[0].entries))]
    return [Row(row.labels, tuple(column[r] for column in columns), row.origin) for r, row in enumerate(rows)]


def _with_rank(entry: Entry, rank: int) -> Entry:
    return Entry(entry.value, entry.deviation, entry.digits, rank, entry.notes, entry.records, entry.text)
