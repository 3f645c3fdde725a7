"""Figures over seeds: mean, spread, and differences between methods that saw the same streams."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

FEWEST = 4  # pairs: of fewer, the bounds of a 95 % bootstrap are just the smallest and the largest difference


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a figure over runs; `std` is None for a single run."""

    mean: float
    std: float | None
    runs: int

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.std is None else f"{self.mean:.2f} ± {self.std:.2f}"


@dataclass(frozen=True)
class Difference:
    """Paired difference between two methods, first minus second.

    Attributes:
        mean: mean difference over the pairs.
        low, high: bounds of the bootstrap interval; None with fewer than `FEWEST` pairs.
        pairs: how many streams both methods saw.
        wins: pairs in which the first is lower.
    """

    mean: float
    low: float | None
    high: float | None
    pairs: int
    wins: int

    @property
    def clear(self) -> bool:
        """The interval exists and does not contain zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def spread(values: Sequence[float]) -> Spread:
    """Mean and sample standard deviation (n - 1) of a figure over runs.

    >>> str(spread([1.0, 3.0]))
    '2.00 ± 1.41'
    """
    if not len(values):
        raise ValueError("no values to average")
    series = np.asarray(values, dtype=np.float64)
    return Spread(float(series.mean()), float(series.std(ddof=1)) if len(series) > 1 else None, len(series))


def bootstrap_interval(
    values: Sequence[float],
    level: float = 0.95,
    draws: int = 10_000,
    seed: int = 0,
    weights: Sequence[float] | None = None,
) -> tuple[float, float] | None:
    """Percentile bootstrap interval of the mean, or of the weighted mean; None for fewer than two values.

    With few values all resamples are enumerated instead of drawn, so the answer is exact up to five values.
    """
    series = np.asarray(values, dtype=np.float64)
    count = len(series)
    if count < 2:
        return None
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")
    if count**count <= draws:
        choice = np.indices((count,) * count).reshape(count, -1).T
    else:
        choice = np.random.Generator(np.random.PCG64(seed)).integers(0, count, size=(draws, count))
    if weights is None:
        means = series[choice].mean(axis=1)
    else:
        shares = np.asarray(weights, dtype=np.float64)
        means = (series * shares)[choice].sum(axis=1) / shares[choice].sum(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def paired_difference(
    first: Mapping[object, float] | Sequence[float],
    second: Mapping[object, float] | Sequence[float],
    level: float = 0.95,
    draws: int = 10_000,
    seed: int = 0,
) -> Difference:
    """How much the first method's figure lies above the second's on the same streams.

    Mappings (by seed or stream fingerprint) are paired over their common keys; sequences by place. Fewer than four
    pairs have no interval.
    """
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        pairs = [(first[k], second[k]) for k in first if k in second]
    elif isinstance(first, Mapping) or isinstance(second, Mapping):
        raise ValueError("give two mappings or two sequences, not one of each")
    elif len(first) != len(second):
        raise ValueError(f"paired values must be equally many, got {len(first)} and {len(second)}")
    else:
        pairs = list(zip(first, second, strict=True))
    if not pairs:
        return Difference(math.nan, None, None, 0, 0)
    gaps = [float(a) - float(b) for a, b in pairs]
    interval = bootstrap_interval(gaps, level, draws, seed) if len(gaps) >= FEWEST else None
    low, high = interval if interval else (None, None)
    return Difference(sum(gaps) / len(gaps), low, high, len(gaps), sum(g < 0 for g in gaps))
