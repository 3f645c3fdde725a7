"""DeYO: learn from samples that are sure and whose prediction depends on the object's shape.

A low entropy alone may come from a background or a texture. So the batch is seen once more with its shapes destroyed:
a sample counts when its entropy is low and its predicted class loses clearly in probability. Both figures weigh it.

J. Lee, D. Jung, S. Lee, J. Park, J. Shin, U. Hwang, S. Yoon: "Entropy is not Enough for Test-Time Adaptation: From the
Perspective of Disentangled Factors", ICLR 2024. Returned are the logits of the clean batch from before the update.

The destroyed pass sees the samples of low entropy alone, so its BatchNorm statistics are theirs. Their number decides
a tensor shape, for which the host waits once per step; `subset="mask"` sends the whole batch and never waits.

Departures: `pixel` permutes each image in its own way, and `occlusion` covers the centre half at any image size; sides
that are no multiple of the grid are enlarged for `patch` (the public code shrinks them); SGD is Nesterov's, as in the
public benchmark. If the frozen top layers are all there are, none is frozen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from slomofast.augment import Destruction, destroy
from slomofast.core.adapter import Adapter
from slomofast.core.config import option
from slomofast.core.norms import freeze_norms
from slomofast.core.optim import OptimConfig
from slomofast.core.params import copy_network
from slomofast.core.registry import register
from slomofast.core.split import Classifier
from slomofast.losses import entropy, masked_mean, prediction_change
from slomofast.methods.sar import TOP_LAYERS


@dataclass(frozen=True)
class DeyoConfig(OptimConfig):
    """Options of DeYO; symbols of the paper in brackets."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"imagenet": {"optimizer": "sgd", "lr": 2.5e-4}}

    entropy_threshold: float = option(
        0.5, "largest entropy of a chosen sample, as a share of ln(classes) [tau_Ent]", above=0
    )
    entropy_margin: float = option(0.4, "entropy of weight one, as a share of ln(classes) [Ent_0]", above=0)
    change_threshold: float = option(
        0.2, "least loss of probability under destruction; the authors use 0.3 for unmixed streams with BatchNorm "
        "[tau_PLPD]", low=-1.0, high=1.0)  # fmt: skip
    weigh_entropy: bool = option(True, "weigh samples by their entropy")
    weigh_change: bool = option(True, "weigh samples by their loss of probability")
    destruction: Destruction = option("patch", "how the object's shape is destroyed")
    patches: int = option(4, "patches per side of the image", low=2)
    subset: Literal["exact", "mask"] = option(
        "exact", "destroyed pass on the sure samples alone, or on all of them without waiting for the device"
    )
    frozen: tuple[str, ...] = option(TOP_LAYERS, "norm layers that stay: those whose name holds one of these")


@register("deyo", paper="arXiv:2403.07366", trains="norm layers except the last stage's")
class Deyo(Adapter):
    """Lower the entropy of sure samples whose prediction rests on the object's shape."""

    Config: ClassVar[type[DeyoConfig]] = DeyoConfig
    config: DeyoConfig

    def build(self, model: Classifier) -> None:
        self.student = copy_network(model, train="norm")
        freeze_norms(self.student, self.config.frozen, exactly=("norm",) if self.config.frozen else ())
        self.optimize("student", self.student)

    def adapt(self, x: Tensor) -> Tensor:
        config, scale = self.config, math.log(self.classes)
        logits = self.student(x)
        uncertainty = entropy(logits.float())
        fixed = uncertainty.detach()
        sure = self.usable(fixed < config.entropy_threshold * scale)
        change = self._change(x, logits.detach().float(), sure)
        kept = sure & (change > config.change_threshold)
        weight = torch.zeros_like(fixed)
        if config.weigh_entropy:
            weight = weight + (config.entropy_margin * scale - fixed).exp()
        if config.weigh_change:
            weight = weight + change.exp()
        if not config.weigh_entropy and not config.weigh_change:
            weight = torch.ones_like(fixed)
        loss = masked_mean(weight * uncertainty, kept)
        self.update(loss, when=kept.any())
        self.log("entropy", uncertainty.mean())
        self.log("loss", loss)
        self.log("share_sure", sure.float().mean())
        self.log("share_kept", kept.float().mean())
        return logits

    @torch.no_grad()
    def _change(self, x: Tensor, logits: Tensor, sure: Tensor) -> Tensor:
        """How much probability the predicted class loses when shapes are destroyed; zero for samples not looked at."""
        config = self.config
        if config.subset == "mask":
            destroyed = self.student(destroy(x, self.rng, config.destruction, config.patches)).float()
            return prediction_change(logits, destroyed[None])
        change = torch.zeros_like(logits[:, 0])
        chosen = sure.nonzero().squeeze(1)
        if chosen.numel():
            destroyed = self.student(destroy(x[chosen], self.rng, config.destruction, config.patches)).float()
            change[chosen] = prediction_change(logits[chosen], destroyed[None])
        return change
