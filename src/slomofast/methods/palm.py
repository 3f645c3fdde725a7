"""PALM: adapt the tensors to which the prediction's uncertainty is least sensitive, each at a pace of its own.

The gradient of the divergence between the softened prediction and the uniform one scores every parameter tensor;
those with a small score may learn. How far a tensor's sensitivity |weight x gradient| is from its running average sets
its step size. The loss is the entropy of confident images plus agreement between the clean and an augmented view.

S. K. Maharana, B. Zhang, Y. Guo: "PALM: Pushing Adaptive Learning Rate Mechanisms for Continual Test-Time Adaptation",
AAAI 2025. Returned are the clean logits from before the update. One network, no teacher, no return to the source.
Convolutions and normalisation layers may learn; linear layers, the classifier among them, stay.

Adam starts anew with every batch, so it remembers nothing and moves along the sign of the gradient, which is what
`momentum=0` and `beta2=0` say. The divergence sums over classes with weight one each, not 1/C: `threshold` has that
scale. The gradient of the clean pass is taken twice, which compiled and recorded passes do not allow: `compile` and
`graphs` speed up the augmented pass alone.

Departures: a tensor once selected keeps learning at its last pace, as in the public code; the paper freezes what is not
selected now (`strict_freeze`). Without a confident image the entropy term is zero, and the step learns from agreement
alone. A tensor that no gradient reaches is never selected. `reset` clears the running sensitivities too. Instead of the
deviations themselves only the pace that follows from them is kept, since they are used for nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from slomofast.augment import Per, augment
from slomofast.core.adapter import Adapter
from slomofast.core.config import option, other_default
from slomofast.core.optim import OptimConfig
from slomofast.core.params import copy_network, flatten, unflatten
from slomofast.core.registry import register
from slomofast.core.split import Classifier
from slomofast.losses import cross_entropy, entropy, masked_mean

TINY = 1e-8  # on both sides of the ratio of deviation and sensitivity


@dataclass(frozen=True)
class PalmConfig(OptimConfig):
    """Options of PALM; symbols of the paper in brackets."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar100": {"weight_decay": 5e-4, "memory": 0.1, "temperature": 100.0, "threshold": 0.5},
        "imagenet": {"lr": 5e-5, "temperature": 1000.0, "threshold": 0.3},
    }

    lr: float = option(5e-4, "step size, before a tensor's own pace", low=0.0)
    momentum: float = other_default(OptimConfig, "momentum", 0.0)
    beta2: float = option(0.0, "Adam's second-moment decay", low=0.0, high=0.999999)
    temperature: float = option(50.0, "that softens predictions before the selection [T]", above=0.0)
    threshold: float = option(1.0, "largest sum of absolute gradients of a selected tensor [eta]", low=0.0)
    memory: float = option(0.5, "share of the old running sensitivity [1 - alpha]", low=0.0, high=0.99)
    entropy_margin: float = option(0.4, "entropy, in nats, below which an image is confident", above=0.0)
    consistency: float = option(0.01, "weight per class of the agreement with the augmented view [lambda]", low=0.0)
    strict_freeze: bool = option(False, "move only tensors selected by the present batch")
    augment_per: Per = option("batch", "draw augmentation parameters once per batch or once per image")


@register("palm", paper="arXiv:2403.10650", trains="selected tensors of convolutions and norm layers")
class Palm(Adapter):
    """Choose parameter tensors by the gradient of the prediction's uncertainty, and a step size for each."""

    clips_views = True
    Config: ClassVar[type[PalmConfig]] = PalmConfig
    config: PalmConfig
    sensitivity: Tensor
    pace: Tensor
    sizes: Tensor

    def build(self, model: Classifier) -> None:
        self.student = copy_network(model, train="norm")
        for layer in self.student.modules():
            if isinstance(layer, nn.Conv2d):
                layer.requires_grad_(True)
        self.optimize("student", self.student)
        sizes = [p.numel() for p in self.optimizer().targets]
        # pace: what the step size of a tensor is multiplied by; zero until it is selected for the first time
        self.register_buffer("sensitivity", torch.zeros(sum(sizes), device=self.device))
        self.register_buffer("pace", torch.zeros(len(sizes), device=self.device))
        self.register_buffer("sizes", torch.tensor(sizes, dtype=torch.long, device=self.device), persistent=False)

    def adapt(self, x: Tensor) -> Tensor:
        config, targets = self.config, self.optimizer().targets
        if not targets:
            return self.plainly(self.student, x)
        # the view first: where its pass is recorded, no gradient of another may be due
        view = self.student(augment(x, self.rng, per=config.augment_per)).float()
        logits = self.plainly(self.student, x)
        clean = logits.float()
        distance = -(clean / config.temperature).log_softmax(1).sum(1).mean()
        selected = self._select(torch.autograd.grad(distance, targets, retain_graph=True, allow_unused=True))
        uncertainty = entropy(clean)
        sure = uncertainty.detach() < config.entropy_margin
        # the clean prediction is no fixed target: it learns from the view as well
        agreement = cross_entropy(view, clean).mean()
        certainty = masked_mean(uncertainty, sure)
        loss = certainty + config.consistency * self.classes * agreement
        gradient = torch.autograd.grad(loss, targets, allow_unused=True)
        pace = self.pace * selected if config.strict_freeze else self.pace
        self.optimizer().step(gradient, loss, self.usable(torch.ones_like(sure[0])), self._each(pace))
        self.log("loss_entropy", certainty)
        self.log("loss_consistency", agreement)
        self.log("share_sure", sure.float().mean())
        self.log("share_moving", (pace > 0).float().mean())
        return logits

    @torch.no_grad()
    def _select(self, gradients: tuple[Tensor | None, ...]) -> Tensor:
        """Which tensors have a small gradient; their running sensitivity and their pace are brought up to date."""
        targets = cast(list[Tensor], self.optimizer().targets)
        # nothing compares with NaN, so a tensor without a gradient is not selected
        dense = [torch.full_like(p, torch.nan) if g is None else g for g, p in zip(gradients, targets, strict=True)]
        gradient = flatten(dense).float()
        scores = self._sums(gradient)
        selected = self.usable(scores <= self.config.threshold)
        now = (flatten(targets) * gradient).abs()
        average = torch.lerp(now, self.sensitivity, self.config.memory)
        ratio = ((now - average).abs() + TINY) / (average + TINY)
        self.sensitivity.copy_(torch.where(self._each(selected), average, self.sensitivity))
        self.pace.copy_(torch.where(selected, self._sums(ratio) / self.sizes, self.pace))
        self.log("median_score", scores.sort().values[len(scores) // 2])
        self.log("share_selected", selected.float().mean())
        return selected

    def _sums(self, values: Tensor) -> Tensor:
        """Sum of absolute values over each tensor."""
        return torch.stack(torch._foreach_norm(unflatten(values, self.optimizer().targets), 1))

    def _each(self, figures: Tensor) -> Tensor:
        """A figure per tensor as one per value."""
        return figures.repeat_interleave(self.sizes, output_size=len(self.sensitivity))
