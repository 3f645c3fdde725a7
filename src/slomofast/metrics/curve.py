"""The raw record of a run, one row per batch, from which every figure can be computed again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from slomofast.metrics.functional import BINS, calibration_bins, entropy_per_sample, nll_per_sample
from slomofast.metrics.step import Step

COLUMNS = (
    "position",
    "segment",
    "cycle",
    "visit",
    "domain",
    "severity",
    "count",
    "wrong",
    "nll",
    "seconds",
    "entropy",
    "by_domain",
)
_KNOWN = COLUMNS[:7]  # numbers that are there without waiting for a device
_REAL = ("nll", "entropy")  # may be NaN when a method breaks down; JSON has null for that
_FLUSH = 64


class Curve:
    """Columns with one entry per batch; see `to_dict` for the names.

    Numbers computed from logits stay on their device and are fetched for many steps at once, so that
    recording does not make a GPU wait; times may likewise be any object with `__float__`. Reading a column
    fetches what is outstanding.

    Args:
        domains: names, in the order of the stream's domains.
        groups: group name -> its domains.
        rule: how the score averages, `segments` or `samples` (see `functional.score`).
    """

    def __init__(
        self,
        domains: Sequence[str] = (),
        groups: Mapping[str, Sequence[str]] | None = None,
        rule: str = "segments",
    ) -> None:
        self.domains = tuple(domains)
        self.groups = {name: tuple(members) for name, members in (groups or {}).items()}
        self.rule = rule
        self.peak_bytes: int | None = None
        self._columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self._bins: dict[int, Tensor] = {}
        self._waiting: list[Tensor] = []
        self._mixtures: list[list[tuple[int, int]] | None] = []
        self._times: list[float | None] = []

    @classmethod
    def for_stream(cls, stream: Any) -> Curve:
        """An empty curve with the names of a stream."""
        return cls(stream.domains, stream.groups, stream.setting.score_rule())

    def __len__(self) -> int:
        return len(self._columns["position"])

    def update(self, step: Step) -> None:
        """Add one step."""
        logits = step.logits.detach().float()
        target = _on(step.target, logits.device)
        wrong = logits.argmax(1) != target
        domain, severity = step.domain.cpu(), step.severity.cpu()
        only = int(domain[0]) if bool((domain == domain[0]).all()) else -1
        strength = float(severity[0]) if bool((severity == severity[0]).all()) else -1.0
        known = (step.position, step.segment, step.cycle, step.visit, only, strength, len(target))
        for name, value in zip(_KNOWN, known, strict=True):
            self._columns[name].append(value)
        self._times.append(step.seconds)
        sums = torch.stack([wrong.sum(), nll_per_sample(logits, target).sum(), entropy_per_sample(logits).mean()])
        mixture = None
        if only < 0:
            found, place, counts = torch.unique(domain, return_inverse=True, return_counts=True)
            mixture = list(zip(found.tolist(), counts.tolist(), strict=True))
            by_domain = torch.zeros(len(found), device=logits.device)
            sums = torch.cat([sums, by_domain.index_add_(0, _on(place, logits.device), wrong.float())])
        self._waiting.append(sums.double())
        self._mixtures.append(mixture)
        bins = calibration_bins(logits, target, BINS)
        held = self._bins.get(step.cycle)
        self._bins[step.cycle] = bins if held is None else _on(held, bins.device) + bins
        if step.peak_bytes is not None:
            self.peak_bytes = max(self.peak_bytes or 0, step.peak_bytes)
        if len(self._waiting) >= _FLUSH:
            self._fetch()

    def _fetch(self) -> None:
        """Bring the numbers of the waiting steps over in one transfer."""
        if not self._waiting:
            return
        sizes = [len(numbers) for numbers in self._waiting]
        flat = torch.cat(self._waiting).tolist()
        place = 0
        for size, mixture in zip(sizes, self._mixtures, strict=True):
            wrong, nll, entropy, *parts = flat[place : place + size]
            place += size
            self._columns["wrong"].append(int(wrong))
            self._columns["nll"].append(nll)
            self._columns["entropy"].append(entropy)
            rows = [[d, n, int(w)] for (d, n), w in zip(mixture or (), parts, strict=True)]
            self._columns["by_domain"].append(rows or None)
        self._columns["seconds"].extend(None if t is None else float(t) for t in self._times)
        self._waiting, self._mixtures, self._times = [], [], []

    def __getitem__(self, column: str) -> list[Any]:
        """One column as a list."""
        self._fetch()
        return self._columns[column]

    @property
    def bins(self) -> dict[int, list[list[float]]]:
        """Per cycle: count, sum of confidence and number correct in each of the 15 bins of confidence."""
        return {cycle: self._bins[cycle].double().tolist() for cycle in sorted(self._bins)}

    def merge(self, other: Curve) -> None:
        """Add another part of the same stream; rows are put in the order of their positions."""
        if self.domains and other.domains and self.domains != other.domains:
            raise ValueError(f"curves of different domains cannot be merged: {self.domains} and {other.domains}")
        both = set(self["position"]) & set(other["position"])
        if both:
            raise ValueError(f"both curves hold batch {min(both)}; merge disjoint parts of a stream")
        self.domains, self.groups = self.domains or other.domains, self.groups or other.groups
        rows = [*zip(*self._columns.values(), strict=True), *zip(*(other[c] for c in COLUMNS), strict=True)]
        rows.sort(key=lambda row: row[0])
        self._columns = {name: [row[k] for row in rows] for k, name in enumerate(COLUMNS)}
        for cycle, bins in other._bins.items():
            held = self._bins.get(cycle)
            self._bins[cycle] = bins.clone() if held is None else held + bins.to(held.device)
        peaks = [p for p in (self.peak_bytes, other.peak_bytes) if p is not None]
        self.peak_bytes = max(peaks) if peaks else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types.

        Columns: position, segment, cycle, visit, domain (-1: several), severity (-1: several), count, wrong,
        nll (sum over samples, nats), seconds (null: untimed), entropy (mean, nats), by_domain (null, or
        [[domain, count, wrong], ...] where a batch mixes domains). Calibration: bins_count, bins_confidence
        and bins_correct, 15 numbers for each of the cycles in `bins_cycles`.
        """
        self._fetch()
        bins = self.bins
        names = ("bins_count", "bins_confidence", "bins_correct")
        parts = {name: [bins[cycle][k] for cycle in bins] for k, name in enumerate(names)}
        finite = {c: [v if math.isfinite(v) else None for v in self._columns[c]] for c in _REAL}
        return {
            **{name: list(values) for name, values in self._columns.items()},
            **finite,
            "bins_cycles": list(bins),
            **parts,
            "domains": list(self.domains),
            "groups": {name: list(members) for name, members in self.groups.items()},
            "rule": self.rule,
            "peak_bytes": self.peak_bytes,
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Curve:
        """The curve that `to_dict` wrote."""
        curve = cls(plain["domains"], plain["groups"], plain.get("rule", "segments"))
        curve._columns = {name: list(plain[name]) for name in COLUMNS}
        for name in _REAL:
            curve._columns[name] = [math.nan if v is None else v for v in plain[name]]
        curve.peak_bytes = plain.get("peak_bytes")
        parts = zip(plain["bins_count"], plain["bins_confidence"], plain["bins_correct"], strict=True)
        for cycle, bins in zip(plain["bins_cycles"], parts, strict=True):
            curve._bins[int(cycle)] = torch.tensor(bins, dtype=torch.float64)
        return curve


def _on(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device, without waiting for it; on the CPU it must be waited for."""
    return tensor.to(device, non_blocking=device.type != "cpu")
