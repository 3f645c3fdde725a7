"""RMT: a mean teacher with a symmetric loss, and features tied to source class prototypes.

Student and teacher agree on the clean image and on an augmented view through a cross-entropy in both directions, whose
gradient is gentler on sure mistakes. A contrastive loss draws an image's feature, its augmented feature and the nearest
source prototype together. Labelled source images may be replayed at each step, and warm both networks up before.

M. Doebler, R. A. Marsden, B. Yang: "Robust Mean Teacher for Continual and Gradual Test-Time Adaptation", CVPR 2023.
Returned is the sum of the student's and the teacher's logits from before the update. `fit_source` takes the prototypes
and, if asked, a bounded sample of source images that the adapter keeps.

Departures: replay and warm-up are off by default, which leaves prototypes as the only use of source data (preset
`replay` turns both on); both draw from the kept sample, not from the whole source set; `train="named"` leaves class
tokens, position tables and packed attention projections as they are, as the public code does by parameter names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slomofast.augment import Per, augment
from slomofast.core.adapter import Adapter, Ensemble, added
from slomofast.core.config import option
from slomofast.core.optim import OptimConfig
from slomofast.core.params import copy_network, ema_update, projector
from slomofast.core.registry import register
from slomofast.core.split import Classifier, feature_size
from slomofast.losses import agreed, contrastive, symmetric_cross_entropy
from slomofast.memory import ClassMeans, SourceReplay, labelled


@dataclass(frozen=True)
class RmtConfig(OptimConfig):
    """Options of RMT."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "imagenet": {"optimizer": "sgd", "lr": 0.01, "replay_images": 500},
        "replay": {"source_weight": 1.0, "warmup_images": 50_000},
    }

    target_weight: float = option(1.0, "weight of the agreement with the teacher", low=0.0)
    contrastive_weight: float = option(1.0, "weight of the alignment with prototypes", low=0.0)
    source_weight: float = option(0.0, "weight of the labelled source batch replayed at each step", low=0.0)
    warmup_images: int = option(0, "source images of the warm-up before the stream", low=0)
    replay_images: int = option(2000, "source images kept for replay and warm-up", low=1)
    teacher_momentum: float = option(0.999, "share of the old teacher per step", low=0.0, high=1.0)
    temperature: float = option(0.1, "of the contrastive loss", above=0.0)
    projection: int = option(128, "width of the projector", low=1)
    source_images: int = option(100_000, "source images after which prototypes are ready", low=1)
    train: Literal["all", "named"] = option("all", "parameters that learn: all, or those called weight or bias")
    augment_per: Per = option("batch", "draw augmentation parameters once per batch or once per image")


@register("rmt", paper="arXiv:2211.13081", trains="all parameters", norms=("batch", "group", "layer", "none"),
          needs_source=True, needs_features=True,
          returns="sum of the student's and the teacher's logits from before the update")  # fmt: skip
class Rmt(Adapter):
    """A mean teacher with symmetric cross-entropy and features tied to source prototypes."""

    clips_views = True
    Config = RmtConfig
    config: RmtConfig
    student: Classifier

    def build(self, model: Classifier) -> None:
        config, dim = self.config, feature_size(model, self.sample_shape, self.device)
        self.student = copy_network(model, train=config.train)
        self.teacher = copy_network(model)
        self.projector = projector(dim, config.projection, self.rng).to(self.device)
        self.means = ClassMeans(self.classes, dim, self.device)
        kept = config.replay_images if config.source_weight or config.warmup_images else 0
        self.replay = SourceReplay(kept, self.sample_shape or (), self.device)
        self.optimize("student", self.student)
        self.optimize("projector", self.projector)

    def members(self) -> dict[str, nn.Module]:
        return {"student": self.student, "teacher": self.teacher}

    def predictor(self) -> nn.Module:
        return Ensemble(self.members(), added)

    def learn_source(self, loader: Iterable[tuple[Tensor, Tensor]]) -> None:
        size = 0

        def features() -> Iterator[tuple[Tensor, Tensor]]:
            nonlocal size
            for images, labels in labelled(loader, self.classes, self.config.source_images):
                size = size or len(images)
                if len(self.replay.keys):
                    self.replay.push(images, labels, self.rng)
                yield self.teacher.features(images), labels

        self.means.fit(features())
        self._warm_up(size)

    def _warm_up(self, size: int) -> None:
        """Let student and teacher agree on source images while the step size grows to its final value."""
        steps = self.config.warmup_images // size
        optimizer = self.optimizer()
        for step in range(1, steps + 1):
            optimizer.lr = self.config.lr * step / steps
            images, _ = self.replay.draw(size, self.rng)
            with torch.no_grad():
                target = self.teacher(images).float()
            self.update(symmetric_cross_entropy(self.student(images).float(), target, 0.5, 0.5).mean(), "student")
            ema_update(self.teacher, self.student, self.config.teacher_momentum)
        optimizer.lr = self.config.lr

    def adapt(self, x: Tensor) -> Tensor:
        config = self.config
        with torch.no_grad():
            teacher = self.teacher(x).float()
        z, logits = self.student.both(x)
        z_view, logits_view = self.student.both(augment(x, self.rng, per=config.augment_per))
        agreement = agreed(logits.float(), logits_view.float(), teacher)
        views = torch.stack([self.means.nearest(z), z.float(), z_view.float()])
        alignment = contrastive(self.projector(views), config.temperature)
        loss = config.target_weight * agreement + config.contrastive_weight * alignment
        if config.source_weight:
            images, labels = self.replay.draw(len(x), self.rng)
            # a pass of its own: source and test images must not share BatchNorm statistics
            replayed = F.cross_entropy(self.student(images).float(), labels)
            self.log("loss_source", replayed)
            loss = loss + config.source_weight * replayed
        self.update(loss)
        ema_update(self.teacher, self.student, config.teacher_momentum)
        self.log("loss_agreement", agreement)
        self.log("loss_contrastive", alignment)
        return added({"student": logits.detach(), "teacher": teacher})
