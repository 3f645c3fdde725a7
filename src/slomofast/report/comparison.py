"""Two methods, or two runs, side by side with paired intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from slomofast.core.errors import ConfigError, DataError, unknown_name
from slomofast.metrics.statistics import Difference
from slomofast.report.aggregate import Cell, Group, Method, all_methods, group_runs, methods_of
from slomofast.report.names import domain_title
from slomofast.report.records import Reading, Run, read_run
from slomofast.report.significance import difference, weighted_difference


@dataclass(frozen=True)
class Line:
    """One row of a comparison: what is compared, both means, and the paired difference (first minus second)."""

    label: str
    first: float | None
    second: float | None
    difference: Difference | None
    seeds: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Comparison:
    """Rows under a headline; `head` names the column of labels."""

    first: str
    second: str
    head: str
    lines: list[Line]
    remarks: tuple[str, ...] = ()


def compare(first: str, second: str, reading: Reading | None = None) -> Comparison:
    """Compare two methods over a store, or two single records given by path or id.

    A method may carry options: `tent` means its defaults, `tent lr=0.01` the runs with that change. Records that
    could not be used are named among the remarks. Raises `ConfigError` for a name the store does not know, with the
    nearest one.
    """
    runs = reading.runs if reading else []
    one, two = _record(first, runs), _record(second, runs)
    unusable = tuple(f"{name} was left out: {why}" for name, why in (reading.problems if reading else []))
    if one is not None and two is not None:
        return _also(_of_runs(one, two), unusable)
    if one is not None or two is not None:
        single, other = (first, second) if one is not None else (second, first)
        raise ConfigError(f"{single!r} is a record but {other!r} is not; compare two records or two methods")
    if not runs:
        raise DataError("there are no finished records to compare; name a folder with --runs, or two record files")
    groups = group_runs(runs)
    return _also(_of_methods(_method(first, groups), _method(second, groups), groups), unusable)


def _also(found: Comparison, remarks: tuple[str, ...]) -> Comparison:
    return replace(found, remarks=(*found.remarks, *remarks))


def _record(text: str, runs: Iterable[Run]) -> Run | None:
    """The record a path or an id (or the beginning of one) names; None when the text names none."""
    path = Path(text)
    if path.suffix == ".json" or (path.is_file() and path.exists()):
        if not path.is_file():
            raise DataError(f"there is no record file {text}")
        return read_run(path)
    if len(text) < 6:
        return None
    found = [run for run in runs if run.id.startswith(text)]
    if len(found) > 1:
        raise ConfigError(
            f"{text!r} begins {len(found)} record ids; give more of it: {found[0].id}, {found[1].id}, ..."
        )
    return found[0] if found else None


def _method(text: str, groups: Sequence[Group]) -> Method:
    """The method with exactly these options, by registered name or by the title the report prints.

    A bare name also means its only variant, where no run used the default options.
    """
    methods = all_methods(groups)
    asked = " ".join(text.split())
    spelt = {_spelling(m): m for m in methods} | {m.title: m for m in methods}
    variants = [m for name, m in spelt.items() if name.startswith(f"{asked} ")]
    if asked not in spelt and len(variants) == 1:
        return variants[0]
    if asked not in spelt:
        raise unknown_name("method or record", asked, [_spelling(m) for m in methods])
    return spelt[asked]


def _spelling(method: Method) -> str:
    changed = method.title[method.title.find("(") + 1 : -1].replace(", ", " ") if not method.plain else ""
    return f"{method.name} {changed}".strip()


def _of_methods(first: Method, second: Method, groups: Sequence[Group]) -> Comparison:
    lines: list[Line] = []
    shared: list[tuple[Cell, Cell]] = []
    for group in groups:
        a, b = group.cells.get(first), group.cells.get(second)
        if a is None and b is None:
            continue
        found = difference(a.runs, b.runs) if a and b else None
        seeds = (len(a.runs) if a else 0, len(b.runs) if b else 0)
        lines.append(Line(group.title, a.mean if a else None, b.mean if b else None, found, seeds))
        if a and b:
            shared.append((a, b))
    if not shared:
        raise ConfigError(
            f"{first.title} and {second.title} share no experiment: same setting, data, network and protocol are needed"
        )
    if len(shared) > 1:
        lines.append(_overall(shared))
    return Comparison(first.title, second.title, "Experiment", lines)


def _overall(shared: Sequence[tuple[Cell, Cell]]) -> Line:
    """Mean over the experiments both went through; the pairs are the experiments."""
    left, right = [a.mean for a, _ in shared], [b.mean for _, b in shared]
    found = weighted_difference([a - b for a, b in zip(left, right, strict=True)])
    return Line(f"Mean of the {len(shared)} experiments both ran", float(np.mean(left)), float(np.mean(right)), found)


def _of_runs(first: Run, second: Run) -> Comparison:
    """Two records domain by domain; the interval pairs their domains."""
    domains = [d for d in first.domains if d in second.domains]
    lines = [Line(domain_title(d), first.domains[d], second.domains[d], None) for d in domains]
    pair = difference([_seedless(first)], [_seedless(second)])
    lines.append(Line("mean", first.error, second.error, pair, (1, 1)))
    remarks = [
        f"they differ in {name}: {a} and {b}"
        for name, a, b in (
            ("setting", f"{first.setting} {first.setting_fields}", f"{second.setting} {second.setting_fields}"),
            ("data", first.data, second.data),
            ("network", first.model, second.model),
            ("seed", first.seed, second.seed),
            ("source images", first.source or "the stream's own", second.source or "the stream's own"),
            *((k, v, dict(second.protocol).get(k)) for k, v in first.protocol),
        )
        if a != b
    ]
    methods = methods_of([first, second])
    titles = [f"{methods[run.id].title} {run.id}" for run in (first, second)]
    return Comparison(titles[0], titles[1], "Domain", lines, tuple(remarks))


def _seedless(run: Run) -> Run:
    return replace(run, seed=0)
