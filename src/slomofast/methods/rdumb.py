"""RDumb: ETA that returns to the source model every so many batches.

Errors of long adaptation cannot pile up when all of it is forgotten at a fixed interval, whatever the stream does.
Weights, the optimiser's moments and the average prediction of ETA start afresh after every `interval` batches.

O. Press, S. Schneider, M. Kuemmerer, M. Bethge: "RDumb: A simple approach that questions our progress in continual
test-time adaptation", NeurIPS 2023. Returned are the logits from before the update; batch number `interval` is still
predicted by the adapted model.

Departures: as for ETA. The interval counts batches as published (there of 64 images), learned from or not; an outside
`reset` starts the count anew. The redundancy margin is 0.4 up to 500 classes, as the public benchmark has it for both
CIFAR sets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from slomofast.core.config import option
from slomofast.core.registry import register
from slomofast.methods.eta import Eta, EtaConfig


@dataclass(frozen=True)
class RDumbConfig(EtaConfig):
    """Options of RDumb."""

    redundancy_margin: float | None = option(
        None, "largest cosine to the average prediction; none: 0.4 below 500 classes, else 0.05", low=0.0
    )
    interval: int = option(1000, "batches between returns to the source model", low=1)


@register("rdumb", paper="arXiv:2306.05401", trains="norm layers")
class RDumb(Eta):
    """Run ETA and return to the source model at a fixed interval."""

    Config: ClassVar[type[RDumbConfig]] = RDumbConfig
    config: RDumbConfig
    margins = ((500, 0.4), (math.inf, 0.05))

    def adapt(self, x: Tensor) -> Tensor:
        logits = super().adapt(x)
        if (self.steps + 1) % self.config.interval == 0:
            self.restart()
        return logits
