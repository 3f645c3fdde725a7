"""ROID: learn from certain and diverse samples, stay close to the source weights, correct the class prior.

Samples weigh by how certain and how unlike the average prediction they are; those too like it are left out. The rest
learn from a soft likelihood ratio, which does not fade for sure samples, and from agreement with an augmented view.
After every step the weights move a little back to the source, and the output is multiplied by the batch's class prior.

R. A. Marsden, M. Doebler, B. Yang: "Universal Test-time Adaptation through Weight Ensembling, Diversity Weighting, and
Prior Correction", WACV 2024. Returned are the clean logits from before the update, times the smoothed prior.

The augmented pass sees the whole batch and samples left out weigh nothing, so that the host never waits and every step
has the same shapes. In public code it sees the kept samples alone and its BatchNorm statistics are theirs; that is
`subset="exact"`. The errors of both are alike; the time is not, since a device that meets a new shape must plan every
convolution anew.

Departures: the loss is divided by the images of the batch, not by a configured batch size (`divide_by=64` gives the
public code's short last batch); a batch whose samples all agree, where the public code divides zero by zero, keeps
them all with weight one; consistency works without weighting too, on the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from slomofast.augment import WEIGHT_ENSEMBLE, Per, augment
from slomofast.core.adapter import Adapter, Ensemble
from slomofast.core.config import option
from slomofast.core.optim import OptimConfig
from slomofast.core.params import copy_network, flatten, pull_towards, trainable
from slomofast.core.registry import register
from slomofast.core.split import Classifier
from slomofast.losses import certainty_diversity, prior_correction, soft_likelihood_ratio, symmetric_cross_entropy


@dataclass(frozen=True)
class RoidConfig(OptimConfig):
    """Options of ROID."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"imagenet": {"optimizer": "sgd", "lr": 2.5e-4}}

    weighting: bool = option(True, "weigh samples by certainty and diversity, and leave out the least diverse")
    consistency: bool = option(True, "agree with an augmented view")
    prior: bool = option(True, "multiply the output by the batch's smoothed class prior")
    source_momentum: float = option(0.99, "share of the adapted weights kept after each step", low=0.0, high=1.0)
    probability_momentum: float = option(0.9, "share of the old average prediction", low=0.0, high=1.0)
    temperature: float = option(1 / 3, "of the sample weights; lower is more selective", above=0.0)
    clip: float = option(0.99, "largest probability in the likelihood ratio", above=0.0, high=0.999999)
    subset: Literal["exact", "mask"] = option(
        "mask", "augmented pass on the kept samples alone, or on all of them without waiting for the device"
    )
    divide_by: int = option(0, "images the summed loss is divided by; 0 for those of the batch", low=0)
    augment_per: Per = option("batch", "draw augmentation parameters once per batch or once per image")


@register("roid", paper="arXiv:2306.00650", trains="norm layers",
          returns="logits from before the update, times the batch's smoothed class prior")  # fmt: skip
class Roid(Adapter):
    """Learn from certain, diverse samples while the weights are pulled back to the source."""

    clips_views = True
    Config: ClassVar[type[RoidConfig]] = RoidConfig
    config: RoidConfig
    average: Tensor
    source: Tensor

    def build(self, model: Classifier) -> None:
        self.student = copy_network(model, train="norm")
        self.optimize("student", self.student)
        self.register_buffer("source", flatten(trainable(self.student)).to(self.device))
        self.register_buffer("average", torch.full((self.classes,), 1.0 / self.classes, device=self.device))

    def predictor(self) -> nn.Module:
        return Ensemble({"student": self.student}, corrected if self.config.prior else None)

    def adapt(self, x: Tensor) -> Tensor:
        logits = self.student(x).float()
        weight, kept = self._weights(logits.detach())
        loss = (weight * soft_likelihood_ratio(logits, self.config.clip)).sum()
        if self.config.consistency:
            loss = loss + self._disagreement(x, logits, weight, kept)
        loss = loss / (self.config.divide_by or x.shape[0])
        self.update(loss)
        self.ensemble()
        self.log("loss", loss)
        self.log("share_kept", kept.float().mean())
        return corrected({"student": logits.detach()}) if self.config.prior else logits

    def ensemble(self) -> None:
        """Average the trained weights with the source's."""
        pull_towards(trainable(self.student), self.source, 1.0 - self.config.source_momentum)

    @torch.no_grad()
    def _weights(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Weight of each sample and who is kept, by the average of earlier batches; then this batch joins it."""
        weight, kept = torch.ones_like(logits[:, 0]), torch.ones_like(logits[:, 0], dtype=torch.bool)
        if self.config.weighting:
            weight, kept = certainty_diversity(logits, self.average, self.config.temperature)
        now = logits.softmax(1).mean(0)
        # one broken batch must not spoil all later ones
        now = torch.where(self.usable(torch.isfinite(now)), now, self.average)
        self.average.lerp_(now, 1.0 - self.config.probability_momentum)
        return weight, kept

    def _disagreement(self, x: Tensor, logits: Tensor, weight: Tensor, kept: Tensor) -> Tensor:
        """Weighted sum of the cross-entropies between clean and augmented view; gradients flow through both."""
        if self.config.weighting and self.config.subset == "exact":
            chosen = kept.nonzero().squeeze(1)
            x, logits, weight = x[chosen], logits[chosen], weight[chosen]
        view = self.student(augment(x, self.rng, WEIGHT_ENSEMBLE, self.config.augment_per)).float()
        return (weight * symmetric_cross_entropy(view, logits, 0.5, 0.5)).sum()


def corrected(logits: dict[str, Tensor]) -> Tensor:
    """The one member's logits, corrected by the mean prediction of their own batch."""
    (only,) = logits.values()
    return prior_correction(only.float(), only.float().softmax(1).mean(0))
