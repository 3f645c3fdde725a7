"""Forgetting: what a method still knows of earlier domains, measured on images outside the stream."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

_CACHE_BYTES = 512 * 2**20

Matrix = Sequence[Sequence[float | None]]


def forgetting_by_visit(accuracy: Matrix) -> list[tuple[float, float]]:
    """F_k after every visit: (points of accuracy, percent of the best accuracy before).

    `accuracy[i][j]` is the accuracy (percent) on domain j after visit i, None while j has not been seen. With
    f_kj = max over l < k of (a_lj - a_kj), F_k is the mean over the domains seen before visit k. The first
    visit has nothing to forget and gives NaN. Negative values mean that a domain got better.
    """
    values = np.array([[math.nan if a is None else a for a in row] for row in accuracy], dtype=np.float64)
    result = [(math.nan, math.nan)] if len(values) else []
    for k in range(1, len(values)):
        known = ~np.isnan(values[:k]).all(axis=0)
        best = np.nanmax(values[:k][:, known], axis=0)
        lost = best - values[k, known]
        share = np.divide(100 * lost, best, out=np.zeros_like(lost), where=best > 0)
        result.append((float(lost.mean()), float(share.mean())))
    return result


def forgetting(matrix: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Forgetting of every member of a method, from what `ForgettingProbe.to_dict` stored.

    Per member: `final` (points) and `relative` (percent) after the last visit, `mean` over all visits but the
    first, `by_visit`, `by_cycle` (at each cycle's last visit) and `curve`, the accuracy on the first domain's
    held-out sample after every visit. Figures that do not exist are None.
    """
    cycles = matrix.get("cycles") or [0] * len(matrix["visits"])
    result = {}
    for member, accuracy in matrix["accuracy"].items():
        steps = forgetting_by_visit(accuracy)
        points = [_or_none(p) for p, _ in steps]
        later = [p for p in points if p is not None]
        first = min((j for j, a in enumerate(accuracy[0]) if a is not None), default=None) if accuracy else None
        start = matrix["visits"][0] if accuracy else []
        place = start[0] if isinstance(start, list) and start else start
        place = place if isinstance(place, int) and place >= 0 else first
        result[member] = {
            "final": points[-1] if points else None,
            "relative": _or_none(steps[-1][1]) if steps else None,
            "mean": sum(later) / len(later) if later else None,
            "by_visit": points,
            "by_cycle": [points[last] for last in _last_places(cycles)],
            "curve": [row[place] for row in accuracy] if place is not None else [],
        }
    return result


def _last_places(values: Sequence[int]) -> list[int]:
    """Where each value of a sequence stands last, in the order of the values."""
    places = {value: place for place, value in enumerate(values)}
    return [places[value] for value in sorted(places)]


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


class ForgettingProbe:
    """Looks at held-out samples of every domain seen so far, after each visit, without learning from them.

    Use it beside the loop over the steps; `seconds` is the time spent here, apart from the steps' own:

        probe = ForgettingProbe(stream)
        for step in evaluate(adapter, stream):
            probe.observe(adapter, step.position)

    Args:
        stream: one built with `held_out` above 0.
        batch: images looked at together; the stream's batch size if None.
    """

    def __init__(self, stream: Any, batch: int | None = None) -> None:
        if not stream.held_out_share:
            raise ValueError("forgetting is measured on held-out images; build the stream with held_out=0.1 or so")
        self.stream = stream
        self.batch = batch or stream.batch_size
        self.seconds = 0.0
        self._ends = _visit_ends(stream)
        self._visits: list[list[int]] = []
        self._cycles: list[int] = []
        self._positions: list[int] = []
        self._rows: list[dict[str, list[float | None]]] = []
        self._kept: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._kept_bytes = 0

    def observe(self, adapter: Any, position: int) -> bool:
        """Measure if the batch at `position` was the last of a visit; says whether it was."""
        if position not in self._ends or position in self._positions:
            return False
        domains, cycle = self._ends[position]
        self._positions.append(position)
        self.measure(adapter, domains, cycle)
        return True

    def measure(self, adapter: Any, domains: Iterable[int], cycle: int = 0) -> dict[str, list[float | None]]:
        """Accuracy (percent) by member and domain after a visit of `domains`; also kept as a row of the matrix."""
        began = time.perf_counter()
        self._visits.append(sorted(domains))
        self._cycles.append(cycle)
        row: dict[str, list[float | None]] = {}
        for domain in sorted({d for visit in self._visits for d in visit}):
            for member, accuracy in self._accuracies(adapter, domain).items():
                row.setdefault(member, [None] * len(self.stream.domains))[domain] = accuracy
        self._rows.append(row)
        self.seconds += time.perf_counter() - began
        return row

    def _accuracies(self, adapter: Any, domain: int) -> dict[str, float]:
        right: dict[str, Tensor] = {}
        seen = 0
        mask = getattr(self.stream.data, "class_mask", None)
        for images, target in self._sample(domain):
            members = adapter.members_predict(images)
            answers = {"output": adapter.predict(images), **(members if len(members) > 1 else {})}
            seen += len(target)
            for name, logits in answers.items():
                if mask is not None:
                    logits = logits[:, torch.as_tensor(mask, device=logits.device)]
                hits = (logits.argmax(1) == target.to(logits.device)).sum()
                right[name] = right[name] + hits if name in right else hits
        return {name: 100 * int(hits) / seen for name, hits in right.items()}

    def _sample(self, domain: int) -> Iterable[tuple[Tensor, Tensor]]:
        if domain in self._kept:
            return self._kept[domain]
        sample = self.stream.held_out_batches(domain, self.batch)
        if self._kept_bytes >= _CACHE_BYTES:
            return sample
        self._kept[domain] = list(sample)
        self._kept_bytes += sum(x.numel() * x.element_size() for x, _ in self._kept[domain])
        return self._kept[domain]

    @property
    def kept_bytes(self) -> int:
        """Size of the images kept on the stream's device to be looked at again."""
        return self._kept_bytes

    def to_dict(self) -> dict[str, Any]:
        """The matrix as plain JSON.

        `domains`: names; `visits`: positions of the domains of each visit; `cycles` and `positions`: where each
        visit ended; `accuracy`: per member, a row for each visit with a column for each domain.
        """
        members = list(self._rows[0]) if self._rows else []
        return {
            "domains": list(self.stream.domains),
            "visits": [list(v) for v in self._visits],
            "cycles": list(self._cycles),
            "positions": list(self._positions),
            "accuracy": {m: [list(row[m]) for row in self._rows] for m in members},
            "seconds": self.seconds,
        }

    def load_dict(self, plain: Mapping[str, Any]) -> None:
        """Continue from what `to_dict` stored."""
        self._visits = [list(v) for v in plain["visits"]]
        self._cycles = list(plain["cycles"])
        self._positions = list(plain["positions"])
        accuracy = plain["accuracy"]
        self._rows = [{m: list(rows[k]) for m, rows in accuracy.items()} for k in range(len(self._visits))]
        self.seconds = float(plain["seconds"])


def _visit_ends(stream: Any) -> dict[int, tuple[list[int], int]]:
    """Last batch of every visit -> the domains of the visit and its cycle."""
    ends: dict[int, tuple[list[int], int]] = {}
    table = stream.table()
    for place, (row, segment) in enumerate(zip(table, stream.segments, strict=True)):
        if place + 1 == len(table) or table[place + 1]["visit"] != row["visit"]:
            ends[row["start"] + row["steps"] - 1] = (list(segment.domains), row["cycle"])
    return ends
