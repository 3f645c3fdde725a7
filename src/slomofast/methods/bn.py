"""Statistics of the test stream in BatchNorm: the simplest adaptation, and the ground most others stand on.

Weights stay; only the mean and variance that BatchNorm uses change. `batch` takes those of the current batch
(Nado et al. 2020), `blend` mixes (1 - alpha) source with alpha test statistics (Schneider et al. 2020), `ema` keeps a
running average that starts at the source statistics: a first pass normalises with the batch and moves the average, a
second predicts with it, so the current batch is already inside its own statistics.

Departures: a layer that sees one value per channel uses the stored statistics instead of failing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from slomofast.core.adapter import Adapter
from slomofast.core.config import AdapterConfig, option
from slomofast.core.norms import measuring
from slomofast.core.params import copy_network
from slomofast.core.registry import register
from slomofast.core.split import Classifier


@dataclass(frozen=True)
class BnConfig(AdapterConfig):
    """Options of test-time BatchNorm."""

    statistics: Literal["batch", "blend", "ema"] = option("batch", "where mean and variance come from")
    alpha: float = option(0.1, "share of the test batch in blend, or of the new batch in ema", low=0.0, high=1.0)


@register(
    "bn",
    paper="arXiv:2006.16971",
    trains="nothing (BatchNorm statistics follow the stream)",
    norms=("batch",),
    returns="logits under the test statistics",
)
class Bn(Adapter):
    """Normalise with the statistics of the test stream instead of the source's; weights stay."""

    Config = BnConfig
    config: BnConfig

    def build(self, model: Classifier) -> None:
        self.student = copy_network(model, statistics=self.config.statistics, alpha=self.config.alpha)

    @torch.no_grad()
    def adapt(self, x: Tensor) -> Tensor:
        if self.config.statistics == "ema":
            with self.only_if_usable(self.student.buffers()), measuring(self.student):
                self.student(x)
        return self.student(x)
