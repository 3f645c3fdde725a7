"""OBAO: replay the surest test images, and keep classes related to one another as they were in the source.

A mean teacher and its student agree on the clean image and on an augmented view, as in RMT. A small buffer collects
test images of low entropy with the label predicted then, and every step replays some of them. A third loss compares
the cosines between the classes' mean replayed features with those between the source's class means.

Z. Zhu, X. Hong, Z. Ma, W. Zhuang, Y. Ma, Y. Dai, Y. Wang: "Reshaping the Online Data Buffering and Organizing Mechanism
for Continual Test-Time Adaptation", ECCV 2024, arXiv:2407.09367. Returned is the sum of the student's and the teacher's
logits from before the update. The head stays as it is. Labelled source images are needed once, by `fit_source`, unless
the head's rows stand for class means (`relation="head"`).

An arrival replaces the least certain stored image even where it is less certain itself, as published.

Departures: the replay batch always has its full size, so that the host need not know how many images are stored; while
they are fewer they repeat, which only BatchNorm's statistics notice, and before the first the losses are zero. A batch
that fills the buffer replaces what was stored before it, not its own first images. `reset` empties the buffer, which
the public code keeps. A class without a source image is left out of the relations. The public code's projector, which
no loss reaches, and what its configurations turn off (warm-up, source replay, restoration) are not here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slomofast.augment import Per, augment
from slomofast.core.adapter import Adapter, Ensemble, added
from slomofast.core.config import option
from slomofast.core.errors import ConfigError, ModelError
from slomofast.core.optim import OptimConfig
from slomofast.core.params import copy_network, ema_update
from slomofast.core.registry import register
from slomofast.core.split import Classifier, feature_size
from slomofast.losses import agreed, entropy, masked_mean
from slomofast.memory import CertainImages, ClassMeans, labelled


@dataclass(frozen=True)
class ObaoConfig(OptimConfig):
    """Options of OBAO."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar100": {"relation_weight": 200.0, "capacity": 200},
        "imagenet": {"optimizer": "sgd", "lr": 0.01, "replay_weight": 0.5, "entropy_margin": 0.2, "replay_batch": 64},
    }

    target_weight: float = option(1.0, "weight of the agreement with the teacher", low=0.0)
    replay_weight: float = option(1.0, "weight of the cross-entropy on replayed images", low=0.0)
    relation_weight: float = option(1.0, "weight of the agreement of class relations with the source's", low=0.0)
    relation: Literal["prototypes", "head"] = option("prototypes", "class means of source features, or the head's rows")
    entropy_margin: float = option(0.1, "entropy below which an image is stored, as a share of ln(classes)", low=0.0)
    capacity: int = option(1000, "images the buffer holds", low=1)
    replay_batch: int = option(200, "stored images replayed in a step", low=1)
    teacher_momentum: float = option(0.999, "share of the old teacher per step", low=0.0, high=1.0)
    source_images: int = option(100_000, "source images after which prototypes are ready", low=1)
    train: Literal["all", "named"] = option("named", "what learns below the head: all, or those called weight or bias")
    augment_per: Per = option("batch", "draw augmentation parameters once per batch or once per image")


@register("obao", paper="arXiv:2407.09367", trains="all parameters but the head",
          norms=("batch", "group", "layer", "none"), needs_source=True, needs_features=True,
          returns="sum of the student's and the teacher's logits from before the update")  # fmt: skip
class Obao(Adapter):
    """A mean teacher with replay of sure test images and class relations kept as in the source."""

    clips_views = True
    Config = ObaoConfig
    config: ObaoConfig
    student: Classifier
    source_relations: Tensor

    def build(self, model: Classifier) -> None:
        config = self.config
        self.student = copy_network(model, train=config.train)
        self.student.head.requires_grad_(False)
        self.teacher = copy_network(model)
        self.buffer = CertainImages(config.capacity, self.sample_shape or (), self.device)
        # (C, C); the row, column and diagonal of a class without a source image are zero
        self.register_buffer("source_relations", torch.zeros(self.classes, self.classes, device=self.device))
        if config.relation == "head":
            rows = getattr(model.head, "weight", None)
            if not isinstance(rows, Tensor) or rows.dim() != 2:
                raise ModelError("the head has no weight of shape (classes, features); use relation='prototypes'")
            self.source_relations.copy_(relations(rows.detach()))
        self.stored_below = config.entropy_margin * math.log(self.classes)
        self.optimize("student", self.student)

    def members(self) -> dict[str, nn.Module]:
        return {"student": self.student, "teacher": self.teacher}

    def predictor(self) -> nn.Module:
        return Ensemble(self.members(), added)

    @property
    def needs_source(self) -> bool:
        return self.config.relation == "prototypes" and self.config.relation_weight > 0

    @torch.no_grad()
    def learn_source(self, loader: Iterable[tuple[Tensor, Tensor]]) -> None:
        if self.config.relation != "prototypes":
            raise ConfigError(f"relation={self.config.relation!r} takes nothing from source data; drop the call")
        means = ClassMeans(self.classes, feature_size(self.student, self.sample_shape, self.device), self.device)
        batches = labelled(loader, self.classes, self.config.source_images)
        # with the batches' own BatchNorm statistics, as the features of the stream are made
        means.fit((self.student.features(images), labels) for images, labels in batches)
        pairs = means.present[:, None] & means.present[None, :]
        self.source_relations.copy_(torch.where(pairs, relations(means.prototypes), 0.0))

    def adapt(self, x: Tensor) -> Tensor:
        config = self.config
        with torch.no_grad():
            teacher = self.teacher(x).float()
        logits = self.student(x).float()
        logits_view = self.student(augment(x, self.rng, per=config.augment_per)).float()
        agreement = agreed(logits, logits_view, teacher)
        loss = config.target_weight * agreement
        if config.replay_weight or config.relation_weight:
            replayed, relation = self._replay()
            loss = loss + config.replay_weight * replayed + config.relation_weight * relation
            self.log("loss_replay", replayed)
            self.log("loss_relation", relation)
        self.update(loss)
        output = added({"student": logits.detach(), "teacher": teacher})
        # as predicted before the step, and only now: no image is replayed in the step that meets it
        uncertainty = entropy(logits.detach())
        sure = self.usable(uncertainty < self.stored_below)
        self.buffer.push(x, output.argmax(1), uncertainty, sure)
        ema_update(self.teacher, self.student, config.teacher_momentum)
        self.log("loss_agreement", agreement)
        self.log("share_stored", sure.float().mean())
        self.log("buffer_fill", self.buffer.fill())
        return output

    def _replay(self) -> tuple[Tensor, Tensor]:
        """Cross-entropy with the stored labels and distance of class relations, on one batch from the buffer."""
        count = min(self.config.replay_batch, self.config.capacity)
        images, labels, fresh = self.buffer.draw(count, self.rng)
        # a pass of its own: old and new images must not share BatchNorm statistics
        z, logits = self.student.both(images)
        replayed = masked_mean(F.cross_entropy(logits.float(), labels, reduction="none"), fresh)
        return replayed, relation_distance(z, labels, fresh, self.source_relations)


def relations(vectors: Tensor) -> Tensor:
    """Cosines between all rows (C, D), as (C, C) with a diagonal of exactly one."""
    with torch.autocast(vectors.device.type, enabled=False):  # it would round cosines to three digits
        unit = F.normalize(vectors.float(), dim=1)
        cosines = unit @ unit.T
    return torch.where(torch.eye(len(vectors), dtype=torch.bool, device=vectors.device), 1.0, cosines)


def relation_distance(z: Tensor, labels: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """One value: minus the cosine of two matrices, the relations of class means of features and the source's.

    Only classes present in both count, and only features (B, D) where the mask is set. No class: zero. One class: the
    constant -1, since a class is always related to itself by one.
    """
    mine = (labels[:, None] == torch.arange(len(source), device=labels.device)) & mask[:, None]
    with torch.autocast(z.device.type, enabled=False):
        means = mine.float().T @ z.float() / mine.sum(0).clamp(min=1)[:, None]
    present = mine.any(0) & (source.diagonal() > 0)
    now = torch.where(present[:, None] & present[None, :], relations(means), 0.0)
    then = torch.where(present[:, None] & present[None, :], source, 0.0)
    # the diagonals alone make both sums at least one where there is a class
    return -(then * now).sum() / (then.square().sum() * now.square().sum()).clamp(min=1.0).sqrt()
