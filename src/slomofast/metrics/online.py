"""Metrics that follow a run step by step, and wrappers that split them by domain, group, cycle or time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from slomofast.metrics.base import Metric, register_metric
from slomofast.metrics.functional import (
    BINS,
    PENALTY,
    WINDOW,
    adaptation_rate,
    calibration_bins,
    error_rate,
    expected_calibration_error,
    nll_per_sample,
    percentile,
    recovery,
)
from slomofast.metrics.step import Step


def _wrong(step: Step) -> Tensor:
    return step.logits.argmax(1) != step.target.to(step.logits.device)


def _only_domain(step: Step) -> int:
    """Position of the step's domain, -1 where it mixes several."""
    first = int(step.domain[0])
    return first if bool((step.domain == first).all()) else -1


@register_metric
class ErrorRate(Metric):
    """Share of wrong predictions over every sample seen so far."""

    name, unit = "error_rate", "%"
    state = {"wrong": 0, "seen": 0}
    wrong: Any
    seen: int

    def update(self, step: Step) -> None:
        self.wrong = self.wrong + _wrong(step).sum()
        self.seen += len(step)

    def compute(self) -> float:
        return error_rate(float(self.wrong), self.seen)


@register_metric
class NegativeLogLikelihood(Metric):
    """Mean negative log-likelihood of the true class."""

    name, unit = "nll", "nats"
    state = {"total": 0.0, "seen": 0}
    total: Any
    seen: int

    def update(self, step: Step) -> None:
        target = step.target.to(step.logits.device)
        self.total = self.total + nll_per_sample(step.logits, target).double().sum()
        self.seen += len(step)

    def compute(self) -> float:
        return float(self.total) / self.seen if self.seen else math.nan


@register_metric
class CalibrationError(Metric):
    """Expected calibration error: how far confidence and accuracy lie apart, over bins of equal width."""

    name, unit = "calibration_error", "%"
    state = {"totals": {}}
    totals: dict[str, Tensor]

    def __init__(self, bins: int = BINS) -> None:
        self.bins = bins
        super().__init__()

    def update(self, step: Step) -> None:
        found = calibration_bins(step.logits, step.target.to(step.logits.device), self.bins)
        self.totals["bins"] = self.totals["bins"] + found if "bins" in self.totals else found

    def compute(self) -> float:
        return expected_calibration_error(self.totals["bins"].tolist()) if self.totals else math.nan


class _ByVisit(Metric):
    """Base of the metrics that look at the batches of each visit in order."""

    state = {"visits": {}}
    visits: dict[int, list[tuple[int, int, int, Any]]]  # visit -> (position, domain, samples, wrong) per batch

    def update(self, step: Step) -> None:
        row = (step.position, _only_domain(step), len(step), _wrong(step).sum())
        self.visits.setdefault(step.visit, []).append(row)

    def _batches(self, visit: int) -> list[tuple[int, int]]:
        return [(n, int(w)) for _, _, n, w in sorted(self.visits[visit], key=lambda row: row[0])]

    def _domain(self, visit: int) -> int:
        found = {domain for _, domain, _, _ in self.visits[visit]}
        return found.pop() if len(found) == 1 else -1


@register_metric
class AdaptationRate(_ByVisit):
    """Mean adaptation rate of the visits: how fast and steadily accuracy rises after a shift."""

    name, unit, higher_is_better = "adaptation_rate", "fraction per batch", True

    def __init__(self, window: int = WINDOW, penalty: float = PENALTY) -> None:
        self.window, self.penalty = window, penalty
        super().__init__()

    def compute(self) -> float:
        rates = [
            adaptation_rate([1 - w / n for n, w in self._batches(v)], self.window, self.penalty).rate
            for v in sorted(self.visits)
        ]
        return sum(rates) / len(rates) if rates else math.nan


@register_metric
class Recovery(_ByVisit):
    """Mean recovery: error of a returning domain's first batches minus that of its last ones when it was left."""

    name, unit = "recovery", "points"

    def __init__(self, batches: int = WINDOW) -> None:
        self.batches = batches
        super().__init__()

    def compute(self) -> float:
        left: dict[int, list[tuple[int, int]]] = {}
        found = []
        for visit in sorted(self.visits):
            domain = self._domain(visit)
            if domain < 0:
                continue
            rows = self._batches(visit)
            if domain in left:
                found.append(recovery(left[domain], rows, self.batches))
            left[domain] = rows
        return sum(found) / len(found) if found else math.nan


@register_metric
class StepTime(Metric):
    """Milliseconds per batch: a quantile (the median by default) after a few steps of warm-up."""

    name, unit = "step_time", "ms"
    state = {"times": []}
    times: list[tuple[int, Any]]

    def __init__(self, quantile: float = 0.5, warm_up: int = 3) -> None:
        self.quantile, self.warm_up = quantile, warm_up
        super().__init__()

    def update(self, step: Step) -> None:
        if step.seconds is not None:
            self.times.append((step.position, step.seconds))

    def compute(self) -> float:
        times = [1000 * float(t) for _, t in sorted(self.times, key=lambda row: row[0])]
        return percentile(times[self.warm_up :] or times, self.quantile)


@register_metric
class PeakMemory(Metric):
    """The most memory in use at any step."""

    name, unit = "peak_memory", "bytes"
    state = {"peaks": []}
    peaks: list[int]

    def update(self, step: Step) -> None:
        if step.peak_bytes is not None:
            self.peaks = [max([*self.peaks, step.peak_bytes])]

    def compute(self) -> float:
        return max(self.peaks) if self.peaks else math.nan


class _Split(Metric):
    """Base of the wrappers: one copy of the inner metric for each key."""

    state = {"parts": {}}
    parts: dict[Any, Metric]

    def __init__(self, inner: Metric) -> None:
        self.inner = inner
        super().__init__()

    def _at(self, key: Any) -> Metric:
        if key not in self.parts:
            self.parts[key] = self.inner.fresh()
        return self.parts[key]

    def compute(self) -> Any:
        return {key: self.parts[key].compute() for key in sorted(self.parts)}


class ByDomain(_Split):
    """A metric for each domain: {position of the domain: value}, or {name: value} when names are given."""

    def __init__(self, inner: Metric, domains: Sequence[str] = ()) -> None:
        self.names = tuple(domains)
        super().__init__(inner)

    def update(self, step: Step) -> None:
        for domain, part in _parted(step):
            self._at(domain).update(part)

    def compute(self) -> dict[Any, Any]:
        return {self.names[d] if self.names else d: self.parts[d].compute() for d in sorted(self.parts)}


class ByGroup(_Split):
    """A metric for each group of domains: {group: value}, over the samples of all its domains together."""

    def __init__(self, inner: Metric, groups: Mapping[str, Iterable[str]], domains: Sequence[str]) -> None:
        self.order = tuple(groups)
        self.group_of = {domains.index(d): g for g, members in groups.items() for d in members if d in domains}
        super().__init__(inner)

    def update(self, step: Step) -> None:
        for domain, part in _parted(step):
            if domain in self.group_of:
                self._at(self.group_of[domain]).update(part)

    def compute(self) -> dict[Any, Any]:
        return {group: self.parts[group].compute() for group in self.order if group in self.parts}


class ByCycle(_Split):
    """A metric for each cycle: {cycle: value}."""

    def update(self, step: Step) -> None:
        self._at(step.cycle).update(step)


class OverTime(_Split):
    """A metric over stretches of `window` batches: a list, oldest first. Stretches do not overlap."""

    def __init__(self, inner: Metric, window: int = 50) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self.window = window
        super().__init__(inner)

    def update(self, step: Step) -> None:
        self._at(step.position // self.window).update(step)

    def compute(self) -> list[Any]:
        return [self.parts[key].compute() for key in sorted(self.parts)]


def _parted(step: Step) -> list[tuple[int, Step]]:
    """The step cut by domain."""
    only = _only_domain(step)
    if only >= 0:
        return [(only, step)]
    return [(int(d), _chosen(step, step.domain == d)) for d in torch.unique(step.domain)]


def _chosen(step: Step, mask: Tensor) -> Step:
    names = ("logits", "target", "domain", "severity")
    values = {name: getattr(step, name) for name in names}
    return dataclasses.replace(step, **{name: v[mask.to(v.device)] for name, v in values.items()})
