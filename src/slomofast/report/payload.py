"""The data of the page: every record in short, every experiment in full, curves up to a limit.

What is left out to keep the page quick is said in `dropped` and shown on the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slomofast.report import names, reference
from slomofast.report.aggregate import Cell, Group, Method, all_methods
from slomofast.report.curves import MAX_POINTS, rounded
from slomofast.report.embedding import prototype_map
from slomofast.report.published import find
from slomofast.report.records import Layout, Reading, Run
from slomofast.report.significance import difference, verdict
from slomofast.report.tables import Table


@dataclass(frozen=True)
class Limits:
    """How much a page may hold before curves are thinned out."""

    run_curves: int = 600  # single runs whose own curve is kept beside the mean over seeds
    cell_curves: int = 2500  # methods in experiments whose mean curve is kept
    intervals: int = 400  # paired differences that are computed for the ranking
    table_rows: int = 6000  # rows of the prepared tables
    maps: int = 12  # prototype maps


def build_payload(
    reading: Reading,
    groups: Sequence[Group],
    tables: Mapping[str, Sequence[Table]],
    title: str,
    limits: Limits = Limits(),
) -> dict[str, Any]:
    """Everything the page shows, as plain JSON types, in an order that depends on the records alone."""
    methods = all_methods(groups)
    place = {method: number for number, method in enumerate(methods)}
    row_of = {run.id: number for number, run in enumerate(reading.runs)}
    dropped: list[str] = []
    with_curve = _first_cells(
        groups,
        limits.cell_curves,
        "Error over time is kept for {} of {} combinations of experiment and method (default options first); the "
        "others have their means only.",
        dropped,
    )
    intervals = _first_cells(
        groups,
        limits.intervals,
        "Paired intervals are computed for {} of {} combinations of experiment and method (default options first); the "
        "summary table has the best method's interval everywhere.",
        dropped,
    )
    data = {
        "title": title,
        "methods": [{"name": m.name, "title": m.title, "plain": m.plain} for m in methods],
        "groups": [_group(g, place, row_of, reading.layouts, with_curve, intervals) for g in groups],
        "records": _records(reading.runs, groups, place),
        "runCurves": _run_curves(reading.runs, groups, row_of, limits, dropped),
        "maps": _maps(reading.runs, row_of, limits, dropped),
        "tables": _tables(tables, limits, dropped),
        "failures": [[f.id, f.title, f.reason] for f in reading.failures],
        "problems": [list(p) for p in reading.problems],
        "warnings": [[run.id, text] for run in reading.runs for text in run.warnings],
        "repeats": _repeats(groups),
        "dropped": dropped,
    }
    return data


def _repeats(groups: Sequence[Group]) -> list[list[str]]:
    """[record, why it is not counted] of every run that repeats a seed."""
    found = []
    for group in groups:
        for cell in group.cells.values():
            counted = {run.seed: run.id for run in cell.runs}
            title = f"{cell.method.title} · {group.title}"
            found += [[r.id, f"{title}: seed {r.seed} counts with {counted[r.seed]}"] for r in cell.repeats]
    return found


def _first_cells(groups: Sequence[Group], limit: int, message: str, dropped: list[str]) -> set[int]:
    """Identities of the first `limit` cells, methods with their default options before others."""
    cells = [cell for group in groups for cell in group.cells.values()]
    cells.sort(key=lambda cell: not cell.method.plain)
    if len(cells) > limit:
        dropped.append(message.format(f"{limit:,}", f"{len(cells):,}"))
    return {id(cell) for cell in cells[:limit]}


def _group(
    group: Group,
    place: Mapping[Method, int],
    row_of: Mapping[str, int],
    layouts: Mapping[str, Layout],
    with_curve: set[int],
    intervals: set[int],
) -> dict[str, Any]:
    used = list(dict.fromkeys(r.layout for cell in group.cells.values() for r in _by_seed(cell.runs) if r.layout))
    shared = len(used) == 1
    order = sorted(group.cells.values(), key=lambda c: (c.mean, c.method.rank))
    cells = []
    for cell in group.cells.values():
        rival = next((c for c in order if c is not cell), None)
        entry = _cell(cell, group, place, row_of)
        if id(cell) in intervals and rival is not None:
            found = difference(cell.runs, rival.runs)
            if found:
                bounds = [None if v is None else round(v, 3) for v in (found.mean, found.low, found.high)]
                entry["against"] = [place[rival.method], *bounds, verdict(found)]
        if id(cell) in with_curve:
            entry |= _figures(cell, shared)
        cells.append(entry)
    return {
        "setting": group.setting,
        "settingTitle": names.setting_title(group.setting),
        "data": group.data,
        "dataTitle": names.data_title(group.data),
        "modelTitle": group.model_title,
        "variant": group.variant,
        "title": group.title,
        "protocol": _protocol(group),
        "domains": group.domains,
        "cycles": group.cycles,
        "layouts": [_layout(layouts[mark], shared) for mark in used],
        "layoutOfSeed": _layout_of_seed(group, used),
        "cells": cells,
    }


def _by_seed(runs: Sequence[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: (run.seed, run.id))


def _layout_of_seed(group: Group, used: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for cell in group.cells.values():
        for run in cell.runs:
            if run.layout:
                found.setdefault(str(run.seed), used.index(run.layout))
    return dict(sorted(found.items(), key=lambda item: int(item[0])))


def _layout(layout: Layout, shared: bool) -> dict[str, Any]:
    edges = np.asarray(layout.edges)
    if not shared and layout.steps > MAX_POINTS:
        edges = np.unique(np.linspace(0, layout.steps, MAX_POINTS + 1).round().astype(np.int64))
    centres = (edges[:-1] + edges[1:] - 1) / 2 + 1  # batches are counted from 1 on the page
    return {
        "steps": layout.steps,
        "x": rounded(centres, 1),
        "bands": [[b.name, b.start, b.stop, b.cycle] for b in layout.bands],
    }


def _protocol(group: Group) -> str:
    facts = dict(group.protocol)
    images = facts.get("images_per_domain")
    parts = [f"batches of {facts['batch_size']}" if "batch_size" in facts else ""]
    parts.append(f"{int(images):,} images per domain" if images else "all images of each domain")
    parts.append(f"severity {float(facts['severity']):g}" if "severity" in facts else "")
    parts.append(facts.get("precision", ""))
    return ", ".join(p for p in parts if p)


def _cell(cell: Cell, group: Group, place: Mapping[Method, int], row_of: Mapping[str, int]) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "m": place[cell.method],
        "error": round(cell.mean, 3),
        "std": None if cell.deviation is None else round(cell.deviation, 3),
        "runs": [row_of[run.id] for run in cell.runs],
        "domains": [_mean(cell.domain(d)) for d in group.domains],
        "ece": _mean(_stored(cell, "calibration", "ece")),
        "ms": _mean(_stored(cell, "cost", "milliseconds_median")),
        "forgotten": _mean(_stored(cell, "forgetting", "final")),
        "multiple": _mean(_stored(cell, "cost", "forward_multiple")),
    }
    if group.cycles > 1:
        means = [[run.cycles[c]["mean"] for run in cell.runs if c < len(run.cycles)] for c in range(group.cycles)]
        entry["cycles"] = [_mean(values) for values in means]
    published = {}
    for source in (reference.PAPER, reference.BENCHMARK):
        found = find("summary", group, source, cell.method)
        if found:
            published[source] = [found.values["error"], found.flag]
    return entry | ({"published": published} if published else {})


def _figures(cell: Cell, shared: bool) -> dict[str, Any]:
    """What is drawn of a method in an experiment: means over seeds."""
    entry: dict[str, Any] = {}
    lines = [line for run in cell.runs if (line := _line(run, shared)) is not None]
    if lines and len({len(line) for line in lines}) == 1:
        entry["curve"] = rounded(np.mean(lines, axis=0), 1)
    profiles = {kind: [run.profile[kind] for run in cell.runs if run.profile.get(kind)] for kind in ("first", "return")}
    entry["profile"] = {kind: rounded(_mean_rows(rows)) for kind, rows in profiles.items() if rows}
    domains = dict.fromkeys(d for run in cell.runs for d in run.recovery)
    entry["recovery"] = {d: _mean([run.recovery[d] for run in cell.runs if d in run.recovery]) for d in domains}
    visits: dict[tuple[str, int], list[float]] = {}
    for run in cell.runs:
        for domain, number, error in run.visits:
            visits.setdefault((domain, number), []).append(error)
    if any(number for _, number in visits):
        entry["visits"] = [[domain, number, _mean(errors)] for (domain, number), errors in sorted(visits.items())]
    matrix = _forgetting(cell)
    return entry | ({"forgetting": matrix} if matrix else {})


def _forgetting(cell: Cell) -> dict[str, Any] | None:
    """Loss of accuracy on held-out images since the best moment, after each visit; of the first run that has it.

    `rows` is of the method's answers; `members` has the same for its parts (student, teachers) where it has any.
    """
    for run in cell.runs:
        stored = run.metrics.get("forgetting") or {}
        if stored.get("matrix"):
            members = {m: _lost(v["matrix"]) for m, v in (stored.get("members") or {}).items() if v.get("matrix")}
            facts = {"domains": stored["domains"], "visits": stored["visits"], "run": run.id}
            return facts | {"rows": _lost(stored["matrix"]), "members": members}
    return None


def _lost(matrix: Sequence[Sequence[float | None]]) -> list[list[float | None]]:
    values = np.array([[np.nan if v is None else v for v in row] for row in matrix], dtype=np.float64)
    lost = np.fmax.accumulate(values, axis=0) - values
    return [[None if np.isnan(v) else round(float(v), 2) for v in row] for row in lost]


def _line(run: Run, shared: bool) -> list[float] | None:
    return run.curve if shared or run.uniform is None else run.uniform


def _mean_rows(rows: Sequence[Sequence[float | None]]) -> np.ndarray:
    width = min(len(row) for row in rows)
    return np.mean(np.asarray([row[:width] for row in rows], dtype=np.float64), axis=0)


def _stored(cell: Cell, family: str, name: str) -> list[float]:
    values = [(run.metrics.get(family) or {}).get(name) for run in cell.runs]
    return [float(v) for v in values if isinstance(v, int | float)]


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 2) if values else None


def _records(runs: Sequence[Run], groups: Sequence[Group], place: Mapping[Method, int]) -> dict[str, list[Any]]:
    """Columns, one entry per record."""
    where = {
        run.id: (number, place[cell.method])
        for number, group in enumerate(groups)
        for cell in group.cells.values()
        for run in (*cell.runs, *cell.repeats)
    }
    return {
        "id": [run.id for run in runs],
        "g": [where[run.id][0] for run in runs],
        "m": [where[run.id][1] for run in runs],
        "seed": [run.seed for run in runs],
        "error": [round(run.error, 2) for run in runs],
        "ms": [_mean(_stored(Cell(Method(""), (run,)), "cost", "milliseconds_median")) for run in runs],
        "skipped": [run.skipped_steps for run in runs],
        "started": [run.started for run in runs],
    }


def _run_curves(
    runs: Sequence[Run], groups: Sequence[Group], row_of: Mapping[str, int], limits: Limits, dropped: list[str]
) -> dict[str, list[float]]:
    """Curves of single runs where there are several seeds: one run of every method before a second of any."""
    waiting: list[tuple[int, bool, int, Run, bool]] = []
    for number, group in enumerate(groups):
        shared = len({run.layout for cell in group.cells.values() for run in cell.runs}) == 1
        for cell in group.cells.values():
            for turn, run in enumerate(cell.runs):
                if run.curve is not None and len(cell.runs) > 1:
                    waiting.append((turn, not cell.method.plain, number, run, shared))
    waiting.sort(key=lambda item: item[:3])
    if len(waiting) > limits.run_curves:
        dropped.append(
            f"Curves of single seeds are kept for {limits.run_curves:,} of {len(waiting):,} runs; "
            "all runs are in the mean curves."
        )
    kept = waiting[: limits.run_curves]
    lines = {row_of[run.id]: _line(run, shared) for _, _, _, run, shared in kept}
    return {str(row): rounded(line, 1) for row, line in sorted(lines.items()) if line is not None}


def _maps(runs: Sequence[Run], row_of: Mapping[str, int], limits: Limits, dropped: list[str]) -> list[dict[str, Any]]:
    having = [run for run in runs if run.prototypes]
    having.sort(key=lambda run: (run.seed, run.id))
    if len(having) > limits.maps:
        dropped.append(f"Prototypes are drawn for {limits.maps} of {len(having)} runs that recorded them.")
    maps = []
    for run in having[: limits.maps]:
        try:
            found = prototype_map(run.prototypes or {})
        except ImportError:
            dropped.append("Prototypes are not drawn: t-SNE needs scikit-learn (pip install 'slomofast[report]').")
            break
        except (ValueError, TypeError) as error:
            dropped.append(f"Prototypes of {run.id} are not drawn: {error}.")
            continue
        if found:
            maps.append(found | {"run": row_of[run.id]})
    return maps


def _tables(tables: Mapping[str, Sequence[Table]], limits: Limits, dropped: list[str]) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    left = limits.table_rows
    missing = 0
    for name, family in tables.items():
        for table in family:
            left -= len(table.rows)
            if left < 0:
                missing += 1
                continue
            kept.append(_table(name, table))
    if missing:
        dropped.append(f"{missing:,} tables are only in the files under tables/, not on this page.")
    return kept


def _table(file: str, table: Table) -> dict[str, Any]:
    rows = []
    for row in table.rows:
        # [text, value, rank, footnotes]: short, because there can be many
        cells = [[e.plain, None if e.value is None else round(e.value, 4), e.rank, list(e.notes)] for e in row.entries]
        rows.append([list(row.labels), cells, row.origin])
    return {
        "file": file,
        "title": table.title,
        "caption": table.caption,
        "heads": list(table.heads),
        "columns": list(table.columns),
        "rows": rows,
        "notes": table.notes,
    }
