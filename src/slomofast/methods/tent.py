"""TENT: lower the entropy of each batch's predictions by moving only the normalisation layers.

D. Wang, E. Shelhamer, S. Liu, B. Olshausen, T. Darrell: "Tent: Fully Test-Time Adaptation by Entropy Minimization",
ICLR 2021. Returned are the logits from before the update. With `steps` above one the batch is learned several times
and the logits are those of the last repetition, from before its own update.

Departures: LayerNorm and GroupNorm weights move too (the public benchmark's habit); dropout is off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from slomofast.core.adapter import Adapter
from slomofast.core.config import option
from slomofast.core.optim import OptimConfig
from slomofast.core.params import copy_network, flatten, trainable, unflatten
from slomofast.core.registry import register
from slomofast.core.split import Classifier
from slomofast.losses import entropy


@dataclass(frozen=True)
class TentConfig(OptimConfig):
    """Options of TENT."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"imagenet": {"optimizer": "sgd", "lr": 2.5e-4}}

    steps: int = option(1, "updates per batch", low=1)
    episodic: bool = option(False, "return to the source weights before every batch")


@register("tent", paper="arXiv:2006.10726", trains="norm layers")
class Tent(Adapter):
    """Make each batch's predictions more certain by moving only the normalisation layers."""

    Config = TentConfig
    config: TentConfig
    source: Tensor

    def build(self, model: Classifier) -> None:
        self.student = copy_network(model, train="norm")
        self.optimize("student", self.student)
        if self.config.episodic:
            self.register_buffer("source", flatten(trainable(self.student)).to(self.device))

    def adapt(self, x: Tensor) -> Tensor:
        if self.config.episodic and self.steps:
            self._return()
        for _ in range(self.config.steps):
            logits = self.student(x)
            loss = entropy(logits.float()).mean()
            self.update(loss)
        self.log("entropy", loss)
        return logits

    @torch.no_grad()
    def _return(self) -> None:
        """Source weights and an optimiser that remembers nothing."""
        moved = trainable(self.student)
        if moved:
            torch._foreach_copy_(cast(list[Tensor], moved), unflatten(self.source, moved))
        self.optimizer().forget()
