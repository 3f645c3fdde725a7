"""One step of an evaluation, as metrics see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Step:
    """What happened at one batch: predictions made before the step's update, and the truth about the batch.

    Attributes:
        logits: shape (n, classes).
        target: int64, shape (n,).
        domain: int64, shape (n,), positions in the stream's domains.
        severity: shape (n,).
        position: number of the batch in the stream.
        segment, cycle, visit: where the batch belongs.
        seconds: time of the adapter's step, or None when it was not taken.
        peak_bytes: peak memory of the device so far, or None.
        diagnostics: what the adapter logged.
    """

    logits: Tensor
    target: Tensor
    domain: Tensor
    severity: Tensor
    position: int = 0
    segment: int = 0
    cycle: int = 0
    visit: int = 0
    seconds: float | None = None
    peak_bytes: int | None = None
    diagnostics: Mapping[str, float | Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.target)
