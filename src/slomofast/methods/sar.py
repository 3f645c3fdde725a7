"""SAR: entropy minimisation that looks for flat minima on reliable samples, and starts over when it collapses.

The gradient is taken not where the weights are but a small step uphill, so that the weights move to places where the
entropy stays low all around. Only samples of low entropy count, before and after that step. When the running loss
becomes suspiciously small, all predictions are sure of the same thing, and the source weights return.

S. Niu, J. Wu, Y. Zhang, Z. Wen, Y. Chen, P. Zhao, M. Tan: "Towards Stable Test-Time Adaptation in Dynamic Wild World",
ICLR 2023. Returned are the logits of the first pass, before any change. A step costs two passes in each direction.

The threshold of the return is in nats and not scaled with the number of classes, as published: with ten classes the
running loss is soon below it, and the source weights return again and again.

Departures: a batch that no sample passes moves nothing (`coast=True` lets SGD's momentum move on, as the public code
does); the return clears the momentum too, which the public code keeps. If the frozen top layers are all there are,
none is frozen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from slomofast.core.adapter import Adapter
from slomofast.core.config import option
from slomofast.core.norms import freeze_norms
from slomofast.core.optim import OptimConfig
from slomofast.core.params import copy_network, flatten, unflatten
from slomofast.core.registry import register
from slomofast.core.split import Classifier
from slomofast.losses import entropy, masked_mean

TOP_LAYERS = ("layer4", "blocks.9", "blocks.10", "blocks.11", "norm.")
"""Parts of names that mark the last layers of ResNets and ViTs; their normalisation stays."""


@dataclass(frozen=True)
class SarConfig(OptimConfig):
    """Options of SAR; symbols of the paper in brackets."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"imagenet": {"lr": 2.5e-4}, "transformer": {"lr": 1e-3}}

    optimizer: Literal["adam", "sgd"] = option("sgd", "kind of gradient step")
    nesterov: bool = option(False, "Nesterov momentum (SGD only)")
    entropy_margin: float = option(0.4, "largest entropy of a reliable sample, as a share of ln(classes) [E0]", above=0)
    radius: float = option(0.05, "length of the step uphill [rho]", low=0.0)
    reset_below: float = option(0.2, "running loss, in nats, that brings the source weights back [e0]", low=0.0)
    loss_momentum: float = option(0.9, "share of the old running loss", low=0.0, high=1.0)
    coast: bool = option(False, "step on momentum alone when no sample is reliable")
    frozen: tuple[str, ...] = option(TOP_LAYERS, "norm layers that stay: those whose name holds one of these")


@register("sar", paper="arXiv:2302.12400", trains="norm layers except the last stage's")
class Sar(Adapter):
    """Sharpness-aware entropy minimisation on reliable samples, with a return to the source on collapse."""

    Config: ClassVar[type[SarConfig]] = SarConfig
    config: SarConfig
    source: Tensor
    running: Tensor
    started: Tensor

    def build(self, model: Classifier) -> None:
        self.student = copy_network(model, train="norm")
        freeze_norms(self.student, self.config.frozen, exactly=("norm",) if self.config.frozen else ())
        self.optimize("student", self.student)
        targets = self.optimizer().targets
        self.register_buffer("source", flatten(targets) if targets else torch.zeros(0, device=self.device))
        # the running loss means nothing until `started`
        self.register_buffer("running", torch.zeros((), device=self.device))
        self.register_buffer("started", torch.zeros((), dtype=torch.bool, device=self.device))
        self.reliable_below = self.config.entropy_margin * math.log(self.classes)

    def adapt(self, x: Tensor) -> Tensor:
        targets = self.optimizer().targets
        logits = self.student(x)
        uncertainty = entropy(logits.float())
        self.log("entropy", uncertainty.mean())
        if not targets:
            return logits
        reliable = self.usable(uncertainty.detach() < self.reliable_below)
        uphill = torch.autograd.grad(masked_mean(uncertainty, reliable), targets, allow_unused=True)
        here = flatten(targets)
        try:
            self._climb(uphill)
            nearby = entropy(self.student(x).float())
            kept = reliable & (nearby.detach() < self.reliable_below)
            loss = masked_mean(nearby, kept)
            gradient = torch.autograd.grad(loss, targets, allow_unused=True)
        finally:
            with torch.no_grad():
                # copied, not subtracted: rounding must not leave a trace, nor a gradient that was not finite
                torch._foreach_copy_(cast(list[Tensor], targets), unflatten(here, targets))
        self.optimizer().step(gradient, loss, None if self.config.coast else kept.any())
        self._recover(loss.detach(), kept.any())
        self.log("loss", loss)
        self.log("share_kept", kept.float().mean())
        return logits

    @torch.no_grad()
    def _climb(self, gradients: tuple[Tensor | None, ...]) -> None:
        """Move the weights by `radius` along the gradient; its length is that over all weights together."""
        targets = cast(list[Tensor], self.optimizer().targets)
        direction = flatten([torch.zeros_like(p) if g is None else g for g, p in zip(gradients, targets, strict=True)])
        scale = self.config.radius / (torch.linalg.vector_norm(direction) + 1e-12)
        torch._foreach_add_(targets, unflatten(direction * scale, targets))

    @torch.no_grad()
    def _recover(self, loss: Tensor, counts: Tensor) -> None:
        """Follow the loss; bring weights and optimiser back to the start where it has become too small."""
        counts = counts & torch.isfinite(loss)
        moved = torch.where(self.started, self.running.lerp(loss, 1.0 - self.config.loss_momentum), loss)
        self.running.copy_(torch.where(counts, moved, self.running))
        self.started |= counts
        back = self.started & (self.running < self.config.reset_below)
        targets = cast(list[Tensor], self.optimizer().targets)
        torch._foreach_copy_(targets, unflatten(torch.where(back, self.source, flatten(targets)), targets))
        self.optimizer().forget(back)
        self.started &= ~back
        self.running.masked_fill_(back, 0.0)
        self.log("running_loss", self.running)
        self.log("recovered", back.float())
