"""CMF: ROID whose weights are averaged with a hidden model that follows them through a Kalman filter.

Losses, sample weights and prior correction are ROID's. Instead of the fixed source weights, a hidden model is the
partner of the average after each step: it decays towards the source and takes in the adapted weights with a gain that
a scalar filter sets. So what was learned is kept for a while without the source being forgotten.

J.-H. Lee, J.-H. Chang: "Continual Momentum Filtering on Parameter Space for Online Test-time Adaptation", ICLR 2024.
Returned are the clean logits from before the update, times the batch's smoothed class prior.

Departures: those of ROID; a reset also resets the filter's variance (the public code keeps it); `partner="predicted"`
keeps the prediction of the hidden model apart from its update, which the public code mixes up; only trained weights are
filtered, since the others never leave the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from slomofast.core.config import option
from slomofast.core.params import flatten, pull_towards, trainable
from slomofast.core.registry import register
from slomofast.core.split import Classifier
from slomofast.methods.roid import Roid, RoidConfig

REFERENCE_SIZE = 38_400  # trained values of the ViT-B/16 for which the base noise was chosen


@dataclass(frozen=True)
class CmfConfig(RoidConfig):
    """Options of CMF; symbols of the paper in brackets."""

    source_momentum: float = option(
        0.99, "share of the adapted weights kept after each step [gamma]", low=0.0, high=1.0
    )
    transition: float = option(
        0.99, "share of the hidden model kept when it decays to the source [alpha]", low=0.0, high=1.0
    )
    noise: float = option(0.005, "process noise for 38,400 trained values; scales with their number [q]", low=0.0)
    least_share: float = option(0.89, "least share of the old hidden model in its update [beta]", low=0.0, high=1.0)
    full_share: float = option(0.9999, "from this share on the hidden model is not updated at all", low=0.0, high=1.0)
    partner: Literal["updated", "predicted"] = option(
        "updated", "average with the hidden model after its update, or before it"
    )


@register("cmf", paper="ICLR 2024", trains="norm layers",
          returns="logits from before the update, times the batch's smoothed class prior")  # fmt: skip
class Cmf(Roid):
    """ROID with a hidden model, driven by a Kalman filter, in place of the fixed source weights."""

    Config = CmfConfig
    config: CmfConfig
    hidden: Tensor
    variance: Tensor

    def build(self, model: Classifier) -> None:
        super().build(model)
        self.register_buffer("hidden", self.source.clone())
        self.register_buffer("variance", torch.zeros((), device=self.device))
        # a network with very many trained values would push the noise past one, where the filter means nothing
        self.process_noise = min(1.0, self.config.noise * self.source.numel() / REFERENCE_SIZE)

    @torch.no_grad()
    def ensemble(self) -> None:
        config, parameters = self.config, trainable(self.student)
        predicted = torch.lerp(self.source, self.hidden, config.transition)
        share, variance = filter_step(
            self.variance, self.process_noise, config.transition, config.least_share, config.full_share
        )
        self.variance.copy_(variance)
        self.hidden.copy_(torch.lerp(flatten(parameters).to(predicted), predicted, share))
        partner = self.hidden if config.partner == "updated" else predicted
        pull_towards(parameters, partner, 1.0 - config.source_momentum)
        self.log("hidden_share", share)


def filter_step(variance: Tensor, noise: float, transition: float, least: float, full: float) -> tuple[Tensor, Tensor]:
    """One step of the scalar filter: the old state's share beta (one minus the Kalman gain), and the new variance."""
    observation = 1.0 - noise
    variance = transition**2 * variance + noise
    share = (observation / (variance + observation)).clamp(min=least)
    share = torch.where(share >= full, 1.0, share)
    return share, share * variance
