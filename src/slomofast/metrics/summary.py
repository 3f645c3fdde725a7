"""Every figure of a record, computed from the curve of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from slomofast.core.errors import unknown_name
from slomofast.metrics.curve import Curve
from slomofast.metrics.forgetting import forgetting
from slomofast.metrics.functional import (
    PENALTY,
    WINDOW,
    adaptation_rate,
    error_rate,
    expected_calibration_error,
    percentile,
    recovery,
)

FAMILIES = ("error", "adaptation", "forgetting", "recovery", "calibration", "cost")
WARM_UP = 3


def summarise(
    curve: Curve,
    names: Sequence[str] = FAMILIES,
    *,
    forgetting_matrix: Mapping[str, Any] | None = None,
    window: int = WINDOW,
    penalty: float = PENALTY,
) -> dict[str, Any]:
    """The figures of a run as plain JSON: {family: {figure: value}}; None where a figure does not exist.

    `names` picks families: error, adaptation, forgetting (needs the matrix of a `ForgettingProbe`), recovery,
    calibration, cost. `window` is both k of the adaptation rate and m of the recovery.
    """
    families = {
        "error": lambda: error_figures(curve),
        "adaptation": lambda: adaptation_figures(curve, window, penalty),
        "forgetting": lambda: forgetting_figures(forgetting_matrix),
        "recovery": lambda: recovery_figures(curve, window),
        "calibration": lambda: calibration_figures(curve),
        "cost": lambda: cost_figures(curve),
    }
    for name in names:
        if name not in families:
            raise unknown_name("family of metrics", name, families)
    return {name: _plain(families[name]()) for name in names}


class _Totals:
    """Counts and wrong predictions by key."""

    def __init__(self) -> None:
        self.sums: dict[Any, list[int]] = {}

    def add(self, key: Any, count: int, wrong: int) -> None:
        held = self.sums.setdefault(key, [0, 0])
        held[0] += count
        held[1] += wrong

    def errors(self) -> dict[Any, float]:
        return {key: error_rate(wrong, count) for key, (count, wrong) in self.sums.items()}


def parts_of(curve: Curve) -> list[tuple[int, int, int, int]]:
    """(row of the curve, domain, count, wrong), with the batches that mix domains taken apart."""
    found: list[tuple[int, int, int, int]] = []
    columns = zip(curve["domain"], curve["count"], curve["wrong"], curve["by_domain"], strict=True)
    for row, (domain, count, wrong, mixture) in enumerate(columns):
        if domain >= 0 or not mixture:
            found.append((row, domain, count, wrong))
        else:
            found.extend((row, d, n, w) for d, n, w in mixture)
    return found


def segment_errors(curve: Curve) -> dict[int, float]:
    """Error in percent of every segment; where domains are mixed, the mean of their errors."""
    segments = curve["segment"]
    totals = _Totals()
    for row, domain, count, wrong in parts_of(curve):
        totals.add((segments[row], domain), count, wrong)
    columns: dict[int, list[float]] = {}
    for (segment, _), error in totals.errors().items():
        columns.setdefault(segment, []).append(error)
    return {segment: _mean(errors) for segment, errors in sorted(columns.items())}


def score(curve: Curve) -> float:
    """The one figure of a run, in percent.

    With the rule `segments` the mean of the segments' errors: of the 15 domains in `continual`, of the 15
    domain errors in `mixed`, of the 16 columns in `mixed_after_continual`, of all 135 segments in `gradual`.
    With the rule `samples` (`ccc`) the share of wrong predictions over all images.
    """
    if curve.rule == "samples":
        return error_rate(sum(curve["wrong"]), sum(curve["count"]))
    return _mean(list(segment_errors(curve).values()))


def error_figures(curve: Curve) -> dict[str, Any]:
    """Error in percent: the score, over all samples, by domain, group, cycle, visit, segment and severity.

    A group's error is the mean of its domains' errors, a cycle's the mean of its segments'. `returns` is the
    mean error of the visits to domains that were visited before, `first_visits` that of the others.
    """
    by_domain, by_severity = _Totals(), _Totals()
    severities = curve["severity"]
    for row, domain, count, wrong in parts_of(curve):
        by_domain.add(domain, count, wrong)
        by_severity.add(severities[row], count, wrong)
    errors = by_domain.errors()
    named = {_name(curve, d): errors[d] for d in sorted(errors)}
    groups = {g: [named[d] for d in members if d in named] for g, members in curve.groups.items()}
    segments = segment_errors(curve)
    cycles: dict[int, dict[int, float]] = {}
    for segment, cycle in zip(curve["segment"], curve["cycle"], strict=True):
        cycles.setdefault(cycle, {})[segment] = segments[segment]
    visits = visits_of(curve)
    seen: set[int] = set()
    first: list[float] = []
    again: list[float] = []
    for visit in visits:
        (again if visit["domain"] in seen else first).append(visit["error"])
        if visit["domain"] >= 0:
            seen.add(visit["domain"])
    levels = by_severity.errors()
    strongest = max((s for s in levels if s >= 0), default=None)
    highest = _segments_at(curve, segments, strongest)
    return {
        "mean": score(curve),
        "samples": error_rate(sum(curve["wrong"]), sum(curve["count"])),
        "by_domain": named,
        "by_group": {g: _mean(found) for g, found in groups.items() if found},
        "by_cycle": {str(c): _mean(list(found.values())) for c, found in sorted(cycles.items())},
        "by_visit": [visit["error"] for visit in visits],
        "by_segment": list(segments.values()),
        "by_severity": {f"{s:g}": levels[s] for s in sorted(levels)},
        "strongest": _mean(highest),
        "first_visits": _mean(first),
        "returns": _mean(again),
    }


def _segments_at(curve: Curve, segments: Mapping[int, float], severity: float | None) -> list[float]:
    """Errors of the segments at one severity."""
    chosen = {s for s, level in zip(curve["segment"], curve["severity"], strict=True) if level == severity}
    return [segments[s] for s in sorted(chosen)]


def visits_of(curve: Curve) -> list[dict[str, Any]]:
    """The visits in order: number, domain (-1: mixed), cycle, error, and (count, wrong) per batch."""
    found: dict[int, dict[str, Any]] = {}
    columns = (curve[c] for c in ("visit", "domain", "cycle", "count", "wrong"))
    for number, domain, cycle, count, wrong in zip(*columns, strict=True):
        visit = found.setdefault(number, {"visit": number, "domain": domain, "cycle": cycle, "batches": []})
        if domain != visit["domain"]:
            visit["domain"] = -1
        visit["batches"].append((count, wrong))
    for visit in found.values():
        visit["error"] = error_rate(sum(w for _, w in visit["batches"]), sum(n for n, _ in visit["batches"]))
    return [found[number] for number in sorted(found)]


def adaptation_figures(curve: Curve, window: int = WINDOW, penalty: float = PENALTY) -> dict[str, Any]:
    """The adaptation rate and its three parts: means over the visits, by cycle, and for every visit."""
    rows = []
    for visit in visits_of(curve):
        parts = adaptation_rate([1 - w / n for n, w in visit["batches"]], window, penalty)
        rows.append({"domain": _name(curve, visit["domain"]), "cycle": visit["cycle"], **asdict(parts)})
    figures = ("rate", "time", "speed", "fluctuation")
    cycles = sorted({row["cycle"] for row in rows})
    return {
        **{name: _mean([row[name] for row in rows]) for name in figures},
        "window": window,
        "penalty": penalty,
        "by_cycle": {str(c): _mean([row["rate"] for row in rows if row["cycle"] == c]) for c in cycles},
        "by_visit": rows,
    }


def recovery_figures(curve: Curve, batches: int = WINDOW) -> dict[str, Any]:
    """How returning domains are met again, in points of error: the mean over the returns, by domain, by cycle."""
    left: dict[int, list[tuple[int, int]]] = {}
    found: list[tuple[int, int, float]] = []
    for visit in visits_of(curve):
        domain = visit["domain"]
        if domain < 0:
            continue
        if domain in left:
            found.append((domain, visit["cycle"], recovery(left[domain], visit["batches"], batches)))
        left[domain] = visit["batches"]
    return {
        "mean": _mean([value for _, _, value in found]),
        "returns": len(found),
        "batches": batches,
        "by_domain": {
            _name(curve, d): _mean([v for e, _, v in found if e == d]) for d in sorted({d for d, _, _ in found})
        },
        "by_cycle": {str(c): _mean([v for _, k, v in found if k == c]) for c in sorted({k for _, k, _ in found})},
    }


def calibration_figures(curve: Curve) -> dict[str, Any]:
    """Expected calibration error (percent, 15 bins) and mean negative log-likelihood (nats), also by cycle."""
    bins = {cycle: np.asarray(values) for cycle, values in curve.bins.items()}
    nll, count = _Totals(), sum(curve["count"])
    for cycle, total, samples in zip(curve["cycle"], curve["nll"], curve["count"], strict=True):
        nll.add(cycle, samples, total)
    everything = sum(bins.values()) if bins else np.zeros((3, 1))
    return {
        "ece": expected_calibration_error(everything),
        "nll": sum(curve["nll"]) / count if count else math.nan,
        "ece_by_cycle": {str(c): expected_calibration_error(values) for c, values in bins.items()},
        "nll_by_cycle": {str(c): total / n for c, (n, total) in sorted(nll.sums.items())},
        "bins": np.asarray(everything).tolist(),
    }


def cost_figures(curve: Curve) -> dict[str, Any]:
    """Milliseconds per batch (median and 95th percentile after warm-up) and images per second, from the times.

    Batches shorter than the longest are left out of the times per batch.
    """
    timed = [(t, n) for t, n in zip(curve["seconds"], curve["count"], strict=True) if t is not None]
    timed = timed[WARM_UP:] if len(timed) > 2 * WARM_UP else timed
    longest = max((n for _, n in timed), default=0)
    whole = [1000 * t for t, n in timed if n == longest]
    total = sum(t for t, _ in timed)
    return {
        "milliseconds_median": percentile(whole, 0.5),
        "milliseconds_p95": percentile(whole, 0.95),
        "images_per_second": sum(n for _, n in timed) / total if total else math.nan,
        "timed_steps": len(timed),
        "peak_bytes": curve.peak_bytes,
    }


def forgetting_figures(matrix: Mapping[str, Any] | None) -> dict[str, Any]:
    """Forgetting of what the adapter returns (`final`, `relative`, `mean`) and of each member, with the matrix."""
    if not matrix or not matrix["accuracy"]:
        return {"final": None, "relative": None, "mean": None, "members": {}, "matrix": None}
    members = forgetting(matrix)
    output = members.get("output") or next(iter(members.values()))
    short = {name: output[name] for name in ("final", "relative", "mean")}
    return {**short, "members": members, "matrix": dict(matrix)}


def moving_error(curve: Curve, window: int = 50) -> list[float]:
    """Error in percent over the last `window` batches, for every batch (fewer at the beginning)."""
    wrong = np.cumsum([0, *curve["wrong"]])
    count = np.cumsum([0, *curve["count"]])
    start = np.maximum(0, np.arange(1, len(wrong)) - window)
    return (100 * (wrong[1:] - wrong[start]) / (count[1:] - count[start])).tolist()


def _name(curve: Curve, domain: int) -> str:
    return "mixed" if domain < 0 else curve.domains[domain] if domain < len(curve.domains) else str(domain)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if len(values) else math.nan


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
