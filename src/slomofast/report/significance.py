"""Whether one method is better than another: paired differences with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slomofast.metrics.statistics import FEWEST, Difference, bootstrap_interval
from slomofast.report.records import Run

_NO_WIDTH = 1e-9  # an interval narrower than this says that nothing varied, not that all is certain
_SAME_WEIGHT = 1e-6


def difference(a: Sequence[Run], b: Sequence[Run], draws: int = 2000) -> Difference | None:
    """Score of a minus score of b in points, with a 95 % interval; None when they share no seed.

    The difference is that of the mean scores over the seeds both have. It is taken apart into pairs of the same seed
    and domain, each with the weight the domain has in the score. The bootstrap draws such pairs, so the interval
    speaks of the domains of this stream as well as of the seeds, and exists for a single seed too. Negative means
    that a is better.
    """
    first, second = ({run.seed: run for run in reversed(runs)} for runs in (a, b))
    rows = [row for seed in sorted(first.keys() & second.keys()) for row in _pairs(first[seed], second[seed])]
    return weighted_difference([gap for _, gap in rows], [weight for weight, _ in rows], draws) if rows else None


def _pairs(a: Run, b: Run) -> list[tuple[float, float]]:
    """(weight, gap) by domain; one pair of the whole scores where the two are not made up alike."""
    left, right = ({name: (weight, error) for name, weight, error in run.parts} for run in (a, b))
    alike = left.keys() == right.keys() and all(abs(left[k][0] - right[k][0]) < _SAME_WEIGHT for k in left)
    if not left or not alike:
        return [(1.0, a.error - b.error)]
    return [(left[k][0], left[k][1] - right[k][1]) for k in left]


def weighted_difference(gaps: Sequence[float], weights: Sequence[float] | None = None, draws: int = 2000) -> Difference:
    """The weighted mean of paired gaps with its percentile bootstrap interval.

    There is no interval, and hence no decision, of fewer than four pairs or where all gaps are the same.

    >>> weighted_difference([1.0, 3.0], [3.0, 1.0]).mean
    1.5
    """
    values = np.asarray(gaps, dtype=np.float64)
    shares = np.ones(len(values)) if weights is None else np.asarray(weights, dtype=np.float64)
    mean, wins, count = float(values @ shares / shares.sum()), int((values < 0).sum()), len(values)
    found = bootstrap_interval(gaps, draws=draws, weights=shares.tolist()) if count >= FEWEST else None
    if found is None or found[1] - found[0] <= _NO_WIDTH:
        return Difference(mean, None, None, count, wins)
    return Difference(mean, *found, count, wins)


def verdict(found: Difference) -> str:
    """What a difference says about the first: better, worse, or why that is not known.

    >>> verdict(Difference(-0.5, -1.0, -0.25, 4, 4)), verdict(Difference(-0.5, None, None, 3, 3))
    ('better', 'too few pairs')
    """
    if found.low is None or found.high is None:
        return "too few pairs" if found.pairs < FEWEST else "all pairs alike"
    if not found.clear:
        return "undecided"
    return "better" if found.mean < 0 else "worse"


def interval_text(found: Difference) -> str:
    """`−0.41 [−0.62, −0.20]`, without brackets where there is no interval.

    >>> interval_text(Difference(-0.5, -1.0, 0.25, 4, 3))
    '−0.50 [−1.00, 0.25]'
    """
    text = f"{found.mean:.2f}"
    if found.low is not None and found.high is not None:
        text += f" [{found.low:.2f}, {found.high:.2f}]"
    return text.replace("-", "−")
