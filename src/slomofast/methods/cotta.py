"""CoTTA: a student learns from the averaged predictions of its own moving average, and is partly restored each step.

The teacher is a moving average of the student; where the source network (the anchor) is unsure about a batch, the
teacher's logits are averaged over many augmented views. All weights of the student learn from them. After each step a
small random share of the student's weights returns to the source, which bounds what errors can pile up.

Q. Wang, O. Fink, L. Van Gool, D. Dai: "Continual Test-Time Domain Adaptation", CVPR 2022. Returned are the teacher's
logits from before the update, averaged over the views where they were made. `predict` asks the teacher once, clean.

Whether views are made depends on the batch, so the host waits for the device once per step; a `threshold` of 0 (never)
or above 1 (always) needs neither the wait nor the anchor's pass. Each view is a pass of its own, because BatchNorm's
statistics are those of one view.

Departures: dropout is off; `train="named"` leaves class tokens, position tables and packed attention projections as
they are, which the public benchmark does by the names of parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from slomofast.augment import Per, augment
from slomofast.core.adapter import Adapter
from slomofast.core.config import option
from slomofast.core.optim import OptimConfig
from slomofast.core.params import copy_network, counterparts, ema_update, flatten, restore, trainable
from slomofast.core.registry import register
from slomofast.core.split import Classifier
from slomofast.losses import distillation


@dataclass(frozen=True)
class AveragedTeacherConfig(OptimConfig):
    """Options of methods whose teacher is averaged over views where the source network is unsure."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar100": {"threshold": 0.72},
        "imagenet": {"optimizer": "sgd", "lr": 0.01, "threshold": 0.1},
    }

    threshold: float = option(0.92, "mean confidence of the source network below which views are averaged", low=0.0)
    views: int = option(32, "augmented views that are averaged", low=1)
    teacher_momentum: float = option(0.999, "share of the old teacher per step", low=0.0, high=1.0)
    train: Literal["all", "named"] = option("all", "parameters that learn: all, or those called weight or bias")
    augment_per: Per = option("batch", "draw augmentation parameters once per batch and view or once per image")


class AveragedTeacher(Adapter):
    """Student, teacher and anchor; the teacher's logits are averaged over views where the anchor is unsure."""

    clips_views = True
    config: AveragedTeacherConfig

    def build(self, model: Classifier) -> None:
        self.student = copy_network(model, train=self.config.train)
        self.teacher = copy_network(model)
        self.anchor = copy_network(model)
        self.optimize("student", self.student)

    @torch.no_grad()
    def targets(self, x: Tensor) -> Tensor:
        """The teacher's logits: of the clean batch, or averaged over augmented views where the anchor is unsure."""
        if not self._unsure(x):
            self.log("views", 1)
            return self.teacher(x).float()
        total = torch.zeros(len(x), self.classes, device=x.device)
        for _ in range(self.config.views):
            total += self.teacher(augment(x, self.rng, per=self.config.augment_per)).float()
        self.log("views", self.config.views)
        return total / self.config.views

    def _unsure(self, x: Tensor) -> bool:
        threshold = self.config.threshold
        if threshold <= 0.0 or threshold > 1.0:
            return threshold > 1.0
        confidence = self.anchor(x).float().softmax(1).amax(1).mean()
        self.log("anchor_confidence", confidence)
        return bool(confidence < threshold)


@dataclass(frozen=True)
class CottaConfig(AveragedTeacherConfig):
    """Options of CoTTA."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        **AveragedTeacherConfig.PRESETS,
        "imagenet": {**AveragedTeacherConfig.PRESETS["imagenet"], "restore": 0.001, "symmetric": True},
    }

    restore: float = option(0.01, "share of the student's weights returned to the source per step", low=0.0, high=1.0)
    symmetric: bool = option(False, "add the reverse cross-entropy, each direction with weight one half")


@register("cotta", paper="arXiv:2203.13591", trains="all parameters", norms=("batch", "group", "layer", "none"),
          returns="teacher's logits from before the update, averaged over views if the source is unsure")  # fmt: skip
class Cotta(AveragedTeacher):
    """Learn from an augmentation-averaged teacher and restore random weights to the source."""

    Config = CottaConfig
    config: CottaConfig

    def members(self) -> dict[str, nn.Module]:
        return {"teacher": self.teacher, "student": self.student}

    def adapt(self, x: Tensor) -> Tensor:
        config = self.config
        target = self.targets(x)
        logits = self.student(x).float()
        loss = distillation(logits, target, config.symmetric)
        self.update(loss)
        ema_update(self.teacher, self.student, config.teacher_momentum)
        # after the teacher's update: restored values reach it with the next one
        restore(trainable(self.student), self._source(), config.restore, self.rng)
        self.log("loss", loss)
        return target

    def _source(self) -> Tensor:
        """Source values of what the student trains, from the anchor, so that no third copy is kept."""
        return flatten(counterparts(self.anchor, self.student))
