"""Whether one method is better than another: paired differences with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slomofast.metrics.statistics import Difference, paired_difference
from slomofast.report.records import Run


def by_seed_and_domain(runs: Sequence[Run]) -> dict[object, float]:
    """Errors by (seed, domain); a run without domains counts once. Of two runs with one seed the first counts."""
    found: dict[object, float] = {}
    for run in reversed(runs):
        parts: Mapping[str, float] = run.domains or {"": run.error}
        found |= {(run.seed, domain): error for domain, error in parts.items()}
    return found


def difference(a: Sequence[Run], b: Sequence[Run], draws: int = 2000) -> Difference | None:
    """Error of a minus error of b in points, with a 95 % interval; None when they share no seed.

    The bootstrap draws pairs of the same seed and domain, so the interval speaks of the domains of this stream as
    well as of the seeds, and exists for a single seed too. Negative means that a is better.
    """
    found = paired_difference(by_seed_and_domain(a), by_seed_and_domain(b), draws=draws)
    return found if found.pairs else None


def interval_text(found: Difference) -> str:
    """`−0.41 [−0.62, −0.20]`, without brackets where there are too few pairs for an interval.

    >>> interval_text(Difference(-0.5, -1.0, 0.25, 4, 3))
    '−0.50 [−1.00, 0.25]'
    """
    text = f"{found.mean:.2f}"
    if found.low is not None and found.high is not None:
        text += f" [{found.low:.2f}, {found.high:.2f}]"
    return text.replace("-", "−")
