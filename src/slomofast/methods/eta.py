"""ETA: entropy minimisation on the samples that are reliable and tell something new.

A sample counts when its entropy is low and its prediction is unlike the running average of those used before; it
weighs the more the surer it is. Only the normalisation layers move, and a batch without such a sample moves nothing.

S. Niu, J. Wu, Y. Zhang, Y. Chen, S. Zheng, P. Zhao, M. Tan: "Efficient Test-Time Model Adaptation without Forgetting",
ICML 2022 (EATA without its penalty). Returned are the logits of the whole batch from before the update.

Departures: LayerNorm and GroupNorm weights move too, dropout is off and SGD is Nesterov's, as in the public benchmark
(`nesterov=False` gives the authors' step); the redundancy margin, which has to grow as classes get fewer, follows
their number unless it is given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from slomofast.core.adapter import Adapter
from slomofast.core.config import option
from slomofast.core.optim import OptimConfig
from slomofast.core.params import copy_network
from slomofast.core.registry import register
from slomofast.core.split import Classifier
from slomofast.losses import cosine_to, entropy, masked_mean


@dataclass(frozen=True)
class EtaConfig(OptimConfig):
    """Options of ETA; symbols of the paper in brackets."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "imagenet": {"optimizer": "sgd", "lr": 2.5e-4, "redundancy_margin": 0.05}
    }

    entropy_margin: float = option(0.4, "largest entropy of a reliable sample, as a share of ln(classes) [E0]", above=0)
    redundancy_margin: float | None = option(
        None,
        "largest cosine to the average prediction; none: 0.4 below 50 classes, 0.1 below 500, else 0.05 [epsilon]",
        low=0.0,
    )
    probability_momentum: float = option(0.9, "share of the old average prediction", low=0.0, high=1.0)


@register("eta", paper="arXiv:2204.02610", trains="norm layers")
class Eta(Adapter):
    """Lower the entropy of reliable samples whose prediction is not yet another of the same kind."""

    Config: ClassVar[type[EtaConfig]] = EtaConfig
    config: EtaConfig
    margins: ClassVar[tuple[tuple[float, float], ...]] = ((50, 0.4), (500, 0.1), (math.inf, 0.05))
    """Redundancy margins by number of classes: (fewer than, margin)."""
    average: Tensor
    started: Tensor

    def build(self, model: Classifier) -> None:
        self.student = copy_network(model, train="norm")
        self.optimize("student", self.student)
        # the average of used predictions; it means nothing until `started`
        self.register_buffer("average", torch.zeros(self.classes, device=self.device))
        self.register_buffer("started", torch.zeros((), dtype=torch.bool, device=self.device))
        self.reliable_below = self.config.entropy_margin * math.log(self.classes)
        given = self.config.redundancy_margin
        self.novel_below = next(m for below, m in self.margins if self.classes < below) if given is None else given

    def adapt(self, x: Tensor) -> Tensor:
        logits = self.look(x)
        loss, kept = self.objective(logits)
        loss = loss + self.penalty(logits)
        self.update(loss, when=kept.any())
        self.log("loss", loss)
        return logits

    def look(self, x: Tensor) -> Tensor:
        """The student's logits."""
        return cast(Tensor, self.student(x))

    def objective(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted entropy of the samples that count, and which those are; they join the average prediction."""
        uncertainty = entropy(logits.float())
        kept = self._select(logits.detach().float(), uncertainty.detach())
        weight = (self.reliable_below - uncertainty.detach()).exp()
        self.log("entropy", uncertainty.mean())
        self.log("share_kept", kept.float().mean())
        return masked_mean(weight * uncertainty, kept), kept

    def penalty(self, logits: Tensor) -> Tensor:
        """What is added to the loss; nothing here."""
        return torch.zeros((), device=logits.device)

    @torch.no_grad()
    def _select(self, logits: Tensor, uncertainty: Tensor) -> Tensor:
        """Which samples count, by the average of earlier batches; then the counted ones join it."""
        p = logits.softmax(1)
        reliable = uncertainty < self.reliable_below
        novel = cosine_to(p, self.average).abs() < self.novel_below
        kept = self.usable(reliable & (novel | ~self.started))
        mean = torch.where(kept[:, None], p, 0.0).sum(0) / kept.sum().clamp(min=1)
        moved = torch.where(self.started, self.average.lerp(mean, 1.0 - self.config.probability_momentum), mean)
        self.average.copy_(torch.where(kept.any(), moved, self.average))
        self.started |= kept.any()
        self.log("share_reliable", reliable.float().mean())
        return kept
