"""What a report draws of one run, taken from its per-batch curve: thinned error, bands, cycles, shifts.

A curve may hold thousands of batches. Everything here reduces it to a few hundred numbers whose size does not depend
on the length of the stream, so that thousands of runs fit into one page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

MAX_POINTS = 200  # points of a drawn curve
PROFILE = 40  # batches after a shift that are followed
RECOVERY_WINDOW = 5  # batches compared when a domain returns
MIXED = "mixed"


class Band(NamedTuple):
    """A stretch of the stream with one domain: [start, stop) in batches."""

    name: str
    start: int
    stop: int
    cycle: int


@dataclass(frozen=True)
class Series:
    """The columns of a curve that figures need, one entry per batch; `domain` is -1 where a batch mixes domains."""

    domain: np.ndarray
    cycle: np.ndarray
    count: np.ndarray
    wrong: np.ndarray
    domains: tuple[str, ...]
    groups: Mapping[str, tuple[str, ...]]
    parts: tuple[tuple[tuple[int, int, int], ...] | None, ...]  # (domain, count, wrong) of mixed batches

    @classmethod
    def of(cls, curve: Mapping[str, Any]) -> Series:
        """The series in a stored curve; `ValueError` where its columns do not fit together."""
        count = np.asarray(curve["count"], dtype=np.int64)
        wrong = np.asarray(curve["wrong"], dtype=np.int64)
        domain = np.asarray(curve["domain"], dtype=np.int64)
        cycle = np.asarray(curve.get("cycle") or np.zeros(len(count)), dtype=np.int64)
        names = tuple(str(d) for d in curve.get("domains") or ())
        if not len(count) == len(wrong) == len(domain) == len(cycle):
            raise ValueError("the columns of the curve differ in length")
        if len(count) == 0:
            raise ValueError("the curve is empty")
        if (wrong < 0).any() or (wrong > count).any():
            raise ValueError("the curve counts more wrong answers than images")
        if domain.max(initial=-1) >= len(names):
            raise ValueError(f"the curve speaks of domain {int(domain.max())} but names {len(names)}")
        parts = curve.get("by_domain") or [None] * len(count)
        groups = {str(g): tuple(members) for g, members in (curve.get("groups") or {}).items()}
        frozen = [tuple(map(tuple, p)) if p else None for p in parts]
        # Small batches of a mixed segment can happen to hold one domain; the segment is mixed all the same.
        segment = np.asarray(curve.get("segment") or np.zeros(len(count)), dtype=np.int64)
        starts = np.flatnonzero(np.diff(segment, prepend=segment[0] - 1))
        lowest, highest = np.minimum.reduceat(domain, starts), np.maximum.reduceat(domain, starts)
        mixed = np.repeat(lowest != highest, np.diff([*starts.tolist(), len(count)]))
        for place in np.flatnonzero(mixed & (domain >= 0)).tolist() if "segment" in curve else ():
            frozen[place] = ((int(domain[place]), int(count[place]), int(wrong[place])),)
            domain[place] = -1
        return cls(domain, cycle - cycle.min(), count, wrong, names, groups, tuple(frozen))

    def __len__(self) -> int:
        return len(self.count)

    @cached_property
    def bands(self) -> list[Band]:
        """The stream cut where the domain or the cycle changes; consecutive segments of one domain are one band."""
        changes = np.flatnonzero((np.diff(self.domain) != 0) | (np.diff(self.cycle) != 0)) + 1
        edges = [0, *changes.tolist(), len(self)]
        starts = edges[:-1]
        domains, cycles = self.domain[starts].tolist(), self.cycle[starts].tolist()
        names = [MIXED if d < 0 else self.domains[d] for d in domains]
        return [Band(*row) for row in zip(names, starts, edges[1:], cycles, strict=True)]

    @cached_property
    def _sums(self) -> tuple[list[int], list[int]]:
        return [0, *np.cumsum(self.count).tolist()], [0, *np.cumsum(self.wrong).tolist()]

    def error(self, start: int = 0, stop: int | None = None) -> float:
        """Percent of wrong predictions in the batches [start, stop)."""
        count, wrong = self._sums
        stop = len(self) if stop is None else stop
        return 100 * (wrong[stop] - wrong[start]) / max(1, count[stop] - count[start])


def visible_bands(series: Series, limit: int = 45) -> list[Band]:
    """Bands few enough to be told apart: domains, else their groups, else cycles, else none."""
    fine = series.bands
    if len(fine) <= limit:
        return fine
    group_of = {d: g for g, members in series.groups.items() for d in members}
    for name in (lambda b: group_of.get(b.name, b.name), lambda b: f"cycle {b.cycle + 1}"):
        merged: list[Band] = []
        for band in fine:
            if merged and merged[-1].name == name(band) and merged[-1].cycle == band.cycle:
                merged[-1] = Band(name(band), merged[-1].start, band.stop, band.cycle)
            else:
                merged.append(Band(name(band), band.start, band.stop, band.cycle))
        if 1 < len(merged) <= limit:
            return merged
    return []


def edges_for(series: Series, aligned: bool, limit: int = MAX_POINTS) -> np.ndarray:
    """Edges of at most `limit` bins over the batches; aligned bins do not cross a change of domain."""
    steps = len(series)
    if steps <= limit:
        return np.arange(steps + 1)
    cuts = np.asarray([b.start for b in series.bands] + [steps])
    if not aligned or len(cuts) - 1 > limit // 2:
        return np.unique(np.linspace(0, steps, limit + 1).round().astype(np.int64))
    lengths = np.diff(cuts)
    share = np.minimum(lengths, np.maximum(1, (lengths * (limit - len(lengths)) / steps).astype(np.int64)))
    pieces = [np.linspace(a, a + n, k + 1).round()[:-1] for a, n, k in zip(cuts, lengths, share, strict=False)]
    return np.unique(np.concatenate([*pieces, [steps]]).astype(np.int64))


def thinned(series: Series, edges: np.ndarray) -> np.ndarray:
    """Error in percent inside each bin."""
    wrong, count = np.add.reduceat(series.wrong, edges[:-1]), np.add.reduceat(series.count, edges[:-1])
    return 100 * wrong / np.maximum(1, count)


def column_errors(series: Series) -> dict[str, float]:
    """Error by domain in order of appearance; a mixed phase beside pure ones is a column of its own."""
    return {name: 100 * wrong / count for name, (count, wrong) in _column_sums(series).items() if count}


def _column_sums(series: Series) -> dict[str, list[int]]:
    """Images and wrong answers by column."""
    pure = series.domain >= 0
    totals: dict[str, list[int]] = {}

    def add(name: str, count: int, wrong: int) -> None:
        sums = totals.setdefault(name, [0, 0])
        sums[0] += count
        sums[1] += wrong

    if pure.any():
        size = len(series.domains)
        count = np.bincount(series.domain[pure], series.count[pure], size)
        wrong = np.bincount(series.domain[pure], series.wrong[pure], size)
        for d in dict.fromkeys(series.domain.tolist()):
            if d >= 0:
                add(series.domains[d], int(count[d]), int(wrong[d]))
            else:
                add(MIXED, int(series.count[~pure].sum()), int(series.wrong[~pure].sum()))
    else:
        known = [p for p in series.parts if p]
        flat = np.asarray([row for p in known for row in p], dtype=np.int64).reshape(-1, 3)
        for d in np.unique(flat[:, 0]).tolist():
            rows = flat[flat[:, 0] == d]
            add(series.domains[d], int(rows[:, 1].sum()), int(rows[:, 2].sum()))
    return totals


def score_parts(series: Series, curve: Mapping[str, Any]) -> tuple[tuple[str, float, float], ...]:
    """The score taken apart: (column, weight, error), whose weighted mean it is. The weights add up to 1.

    Columns are those of `column_errors`. With the rule `samples` a column weighs as many images as it has, and with
    `segments` as many segments; its error is then the mean of their errors. Nothing for a curve without segments.
    """
    if curve.get("rule") == "samples":
        sums = _column_sums(series)
        total = sum(count for count, _ in sums.values())
        return tuple((name, count / total, 100 * wrong / count) for name, (count, wrong) in sums.items() if count)
    if "segment" not in curve:
        return ()
    _, starts, inverse = np.unique(np.asarray(curve["segment"]), return_index=True, return_inverse=True)
    count, wrong = (np.bincount(inverse, values, len(starts)) for values in (series.count, series.wrong))
    errors, domains = (100 * wrong / np.maximum(1, count)).tolist(), series.domain[starts].tolist()
    several = any(d >= 0 for d in domains)
    found: dict[str, list[float]] = {}
    for number, (domain, error) in enumerate(zip(domains, errors, strict=True)):
        if domain >= 0:
            columns = {series.domains[domain]: error}
        else:
            columns = _mixture(series, np.flatnonzero(inverse == number).tolist()) or {MIXED: error}
        if several and domain < 0:
            columns = {MIXED: sum(columns.values()) / len(columns)}
        for name, value in columns.items():
            sums_of = found.setdefault(name, [0.0, 0.0])
            sums_of[0] += 1 / len(columns)
            sums_of[1] += value / len(columns)
    return tuple((name, weight / len(starts), total / weight) for name, (weight, total) in found.items())


def _mixture(series: Series, places: Sequence[int]) -> dict[str, float]:
    """Error of every domain in these mixed batches."""
    sums: dict[int, list[int]] = {}
    for place in places:
        for domain, count, wrong in series.parts[place] or ():
            held = sums.setdefault(domain, [0, 0])
            held[0] += count
            held[1] += wrong
    return {series.domains[d]: 100 * wrong / count for d, (count, wrong) in sorted(sums.items()) if count}


def visit_errors(series: Series) -> list[tuple[str, int, float]]:
    """(domain, number of the visit from 0, error in percent) of every band, in order."""
    seen: dict[str, int] = {}
    out = []
    for band in series.bands:
        number = seen[band.name] = seen.get(band.name, -1) + 1
        out.append((band.name, number, series.error(band.start, band.stop)))
    return out


def cycle_errors(series: Series) -> list[dict[str, float]]:
    """For each cycle: the error by group of domains, and `mean` over the cycle's domains.

    Cycles of mixed batches have a mean only. A stream without returns gives fewer than two entries.
    """
    group_of = {d: g for g, members in series.groups.items() for d in members}
    out: list[dict[str, float]] = []
    only_mixed = bool((series.domain < 0).all())
    for cycle in range(int(series.cycle.max()) + 1):
        inside = (series.cycle == cycle) & ((series.domain >= 0) | only_mixed)
        if not inside.any():
            continue
        if only_mixed:
            out.append({"mean": float(100 * series.wrong[inside].sum() / max(1, series.count[inside].sum()))})
            continue
        size = len(series.domains)
        count = np.bincount(series.domain[inside], series.count[inside], size).tolist()
        wrong = np.bincount(series.domain[inside], series.wrong[inside], size).tolist()
        errors = {series.domains[d]: 100 * wrong[d] / count[d] for d in range(size) if count[d]}
        row: dict[str, list[float]] = {}
        for name, error in errors.items():
            row.setdefault(group_of.get(name, name), []).append(error)
        everything = {"mean": sum(errors.values()) / len(errors)}
        out.append({g: sum(v) / len(v) for g, v in row.items()} | everything)
    return out


def shift_profile(series: Series, length: int = PROFILE) -> dict[str, list[float | None]]:
    """Mean error of the 1st, 2nd, ... batch after a shift: `first` visits and `return`s apart.

    Only bands of a single domain count. A place no band is long enough to reach is left out.
    """
    starts: dict[str, list[tuple[int, int]]] = {"first": [], "return": []}
    seen: set[str] = set()
    for band in series.bands:
        if band.name != MIXED:
            starts["return" if band.name in seen else "first"].append((band.start, band.stop))
            seen.add(band.name)
    return {kind: _after_start(series, places, length) for kind, places in starts.items()}


def _after_start(series: Series, places: Sequence[tuple[int, int]], length: int) -> list[float | None]:
    """Error of the n-th batch over all these stretches, for n up to `length`."""
    if not places:
        return []
    begin, end = np.asarray(places).T
    at = begin[:, None] + np.arange(min(length, int((end - begin).max())))
    inside = at < end[:, None]
    at = np.where(inside, at, 0)
    count = np.where(inside, series.count[at], 0).sum(0)
    wrong = np.where(inside, series.wrong[at], 0).sum(0)
    return [round(v, 2) for v in (100 * wrong / np.maximum(1, count)).tolist()]


def recoveries(series: Series, window: int = RECOVERY_WINDOW) -> dict[str, float]:
    """For each domain that returns: error of its first batches minus that of its last ones at the visit before.

    In points, averaged over the returns; negative means that it came back better than it was left.
    """
    left: dict[str, float] = {}
    found: dict[str, list[float]] = {}

    for band in series.bands:
        if band.name == MIXED:
            continue
        if band.name in left:
            found.setdefault(band.name, []).append(
                series.error(band.start, min(band.stop, band.start + window)) - left[band.name]
            )
        left[band.name] = series.error(max(band.start, band.stop - window), band.stop)
    return {name: sum(values) / len(values) for name, values in found.items()}


def rounded(values: Sequence[float] | np.ndarray, digits: int = 2) -> list[float]:
    """Plain floats with few digits, so that the same records give the same short text."""
    return [round(float(v), digits) for v in values]
