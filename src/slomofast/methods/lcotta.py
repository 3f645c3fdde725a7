"""LCoTTA: ETA whose steps stay in the few directions in which recent gradients varied.

Now and then the gradient of ETA's loss joins a queue, and the principal axes of the queue span the subspace in which
the weights may move: every gradient is projected on it before the step. Gradients of samples that are sure and wrong
scatter over all directions, so a projection on a few takes most of them away. There is no teacher and no reset.

Duan, Xu, Liu, Wen: "Lifelong Test-Time Adaptation via Online Learning in Tracked Low-Dimensional Subspace", NeurIPS
2025. Returned are the logits of the whole batch from before the update.

The projection begins when the queue holds `components` gradients, after components * interval batches; until then, and
with a longer interval than the stream, this is ETA with SGD. The queue is centred, as in a principal component
analysis: the mean gradient need not lie in the subspace, and a queue of equal gradients spans nothing. Adam, relative
steps and weight decay leave the subspace; SGD does not. The axes are found once per sampled gradient, and only then
does the host wait for the device.

Departures: a batch without a sample to learn from moves nothing and is not sampled (`coast=True` lets SGD's momentum
move on, as the public code does). Axes of no variance, such as the last one of a queue that has just become long
enough, are left out. Options for CIFAR are a choice; none are published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from slomofast.core.config import option
from slomofast.core.errors import ConfigError
from slomofast.core.params import flatten, unflatten
from slomofast.core.registry import register
from slomofast.core.split import Classifier
from slomofast.methods.eta import Eta, EtaConfig

LEAST_VARIANCE = 1e-12  # of an axis, as a share of the rows' squares in all; what is below is rounding


@dataclass(frozen=True)
class LcottaConfig(EtaConfig):
    """Options of LCoTTA; symbols of the paper in brackets."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "imagenet": {"lr": 1.5e-4, "redundancy_margin": 0.05, "interval": 50},
        "transformer": {"lr": 5e-4, "redundancy_margin": 0.05, "interval": 100, "components": 50},
    }

    optimizer: Literal["adam", "sgd"] = option("sgd", "kind of gradient step")
    components: int = option(25, "dimension of the subspace, and gradients needed before it is used [r]", low=1)
    queue: int = option(100, "gradients kept [k]", low=2)
    interval: int = option(5, "batches from one kept gradient to the next", low=1)
    coast: bool = option(False, "step on momentum alone when there is no sample to learn from")

    def validate(self) -> None:
        if self.components > self.queue:
            raise ConfigError(f"components ({self.components}) must not exceed the queue ({self.queue})")


@register("lcotta", paper="NeurIPS 2025", trains="norm layers")
class LCoTTA(Eta):
    """Run ETA with its gradient projected on the principal axes of gradients sampled before."""

    Config: ClassVar[type[LcottaConfig]] = LcottaConfig
    config: LcottaConfig

    def build(self, model: Classifier) -> None:
        super().build(model)
        size = sum(p.numel() for p in self.optimizer().targets)
        self.subspace = Subspace(size, self.config.queue, self.config.components, self.device)

    def adapt(self, x: Tensor) -> Tensor:
        logits = self.student(x)
        loss, kept = self.objective(logits)
        targets = self.optimizer().targets
        if not loss.requires_grad:
            return logits
        learns = kept.any()
        found = torch.autograd.grad(loss, targets, allow_unused=True)
        raw = flatten([torch.zeros_like(p) if g is None else g for g, p in zip(found, targets, strict=True)]).float()
        if self.steps > 0 and self.steps % self.config.interval == 0:
            self.subspace.push(raw, learns)
        gradient = self.subspace.project(raw)
        when = self.usable(torch.ones_like(learns)) if self.config.coast else learns
        self.optimizer().step(unflatten(gradient, targets), loss, when)
        self.log("loss", loss)
        self.log("share_in_subspace", gradient.square().sum() / raw.square().sum().clamp(min=1e-30))
        return logits


class Subspace(nn.Module):
    """The last `capacity` vectors pushed, and the principal axes of those.

    Args:
        size: length of a vector.
        capacity: how many are kept.
        components: axes at most, and vectors needed before `project` does anything.
    """

    queue: Tensor
    pushed: Tensor
    basis: Tensor

    def __init__(self, size: int, capacity: int, components: int, device: torch.device) -> None:
        super().__init__()
        # a ring: the order of the rows means nothing to the axes
        self.register_buffer("queue", torch.zeros(capacity, size, device=device))
        self.register_buffer("pushed", torch.zeros((), dtype=torch.int64, device=device))
        self.register_buffer("basis", torch.zeros(components, size, device=device))

    @torch.no_grad()
    def push(self, vector: Tensor, when: Tensor) -> None:
        """Let a vector replace the oldest where `when` (0-d bool) is set and it is finite; then find the axes."""
        when = when & torch.isfinite(vector.sum()) & (vector != 0).any()
        slot = (self.pushed % len(self.queue))[None]
        self.queue.index_copy_(0, slot, torch.where(when, vector, self.queue.index_select(0, slot)))
        self.pushed += when
        used = torch.arange(len(self.queue), device=self.pushed.device) < self.pushed
        self.basis.copy_(principal_axes(self.queue, used, len(self.basis)))

    @torch.no_grad()
    def project(self, vector: Tensor) -> Tensor:
        """The part of a vector that lies in the subspace; all of it while too few have been pushed."""
        with torch.autocast(vector.device.type, enabled=False):  # it would round the products to three digits
            inside = self.basis.T @ (self.basis @ vector)
        return torch.where(self.pushed >= len(self.basis), inside, vector)


def principal_axes(rows: Tensor, used: Tensor, count: int) -> Tensor:
    """Orthonormal directions (count, n) of largest variance among the rows (k, n) that are `used` (k,), as a basis.

    They come from the small matrix of the rows' inner products, which is k x k. Where the rows vary in fewer
    directions the first ones of the basis are zero.
    """
    exact = torch.where(used[:, None], rows.double(), 0.0)  # double: inner products square the range of values
    mean = exact.sum(0) / used.sum().clamp(min=1)
    centred = torch.where(used[:, None], exact - mean, 0.0)
    variances, mixtures = torch.linalg.eigh(centred @ centred.T)
    top = variances[-count:]
    real = top > LEAST_VARIANCE * exact.square().sum()
    axes = mixtures[:, -count:].T @ centred / torch.where(real, top, 1.0).sqrt()[:, None]
    return torch.where(real[:, None], axes, 0.0).float()
