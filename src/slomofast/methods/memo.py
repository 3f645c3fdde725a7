"""MEMO: adapt to one image at a time, by making the average prediction over its augmented views certain, and forget.

Many AugMix views of an image should be predicted alike and with confidence: the entropy of their mean prediction says
how far they are from that. One gradient step on all parameters lowers it, the image itself is predicted, and the
source weights return before the next image. Nothing is carried over.

M. Zhang, S. Levine, C. Finn: "MEMO: Test Time Robustness via Adaptation and Augmentation", NeurIPS 2022. Returned are
the logits of the clean images from after their update. BatchNorm mixes (1 - alpha) source statistics with alpha of
those at hand, that is of one image's views, or of the image alone.

The images of a batch are handled one after the other, each at the cost of `views` images forward and backward: that is
the method. The host does not wait for the device in between.

Departures: SGD has no momentum, as in the authors' code (`momentum=0.9, nesterov=True` is the public benchmark's); with
several steps the views are drawn once; a resized crop is bilinear and never larger than the image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from slomofast.augment import Crop, augmix
from slomofast.core.adapter import Adapter
from slomofast.core.config import option, other_default
from slomofast.core.norms import norm_kinds
from slomofast.core.optim import OptimConfig
from slomofast.core.params import copy_network, flatten, trainable, unflatten
from slomofast.core.registry import register
from slomofast.core.split import Classifier
from slomofast.losses import marginal_entropy

VALUES_AT_ONCE = 2**25
"""Numbers in the chains of the views that are made together; bounds memory."""


@dataclass(frozen=True)
class MemoConfig(OptimConfig):
    """Options of MEMO."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"imagenet": {"lr": 2.5e-4, "views": 64, "crop": "resized"}}

    optimizer: Literal["adam", "sgd"] = option("sgd", "kind of gradient step")
    lr: float = other_default(OptimConfig, "lr", 5e-3)
    momentum: float = other_default(OptimConfig, "momentum", 0.0)
    nesterov: bool = option(False, "Nesterov momentum (SGD only)")
    views: int = option(32, "augmented views of an image", low=1)
    steps: int = option(1, "updates per image", low=1)
    alpha: float = option(0.1, "share of the images at hand in BatchNorm's statistics", low=0.0, high=1.0)
    crop: Crop = option("pad", "crop before the augmentation: shifted by up to four pixels, resized, or none")


class OneByOne(nn.Module):
    """A network that sees the images of a batch one at a time, so that its statistics are each image's own."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.network(image) for image in x.split(1)])


@register(
    "memo",
    paper="arXiv:2110.09506",
    trains="all parameters",
    norms=("batch", "group", "layer", "none"),
    batch_of_one=True,
    returns="logits from after the update, each image's own",
)
class Memo(Adapter):
    """For each image, agree on its augmented views with one step on all parameters, predict, forget."""

    clips_views = True
    Config: ClassVar[type[MemoConfig]] = MemoConfig
    config: MemoConfig
    source: Tensor

    def build(self, model: Classifier) -> None:
        self.student = copy_network(model, train="all", statistics="blend", alpha=self.config.alpha)
        self.optimize("student", self.student)
        self.register_buffer("source", flatten(trainable(self.student)))

    def members(self) -> dict[str, nn.Module]:
        # batch statistics of several images would not be what each of them is predicted with
        return {"student": OneByOne(self.student) if "batch" in norm_kinds(self.student) else self.student}

    def adapt(self, x: Tensor) -> Tensor:
        outputs = []
        for image, views in self._with_views(x):
            try:
                for _ in range(self.config.steps):
                    loss = marginal_entropy(self.student(views).float()[:, None]).mean()
                    self.update(loss)
                    self.gradients_taken()  # one recorded pass serves all images
                with torch.no_grad():
                    outputs.append(self.student(image))
            finally:
                self._forget()
        self.log("marginal_entropy", loss)
        return torch.cat(outputs)

    def _with_views(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Each image (1, C, H, W) and its augmented views (V, C, H, W)."""
        count = self.config.views
        together = max(1, VALUES_AT_ONCE // (3 * count * x[0].numel()))
        for part in x.split(together):
            views = augmix(part.repeat_interleave(count, 0), self.rng, self.config.crop)
            yield from zip(part.split(1), views.split(count), strict=True)

    @torch.no_grad()
    def _forget(self) -> None:
        moved = trainable(self.student)
        torch._foreach_copy_(cast(list[Tensor], moved), unflatten(self.source, moved))
        self.optimizer().forget()
