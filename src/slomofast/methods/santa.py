"""SANTA: stay anchored to the source network's predictions, and align features with source class prototypes.

The normalisation layers learn to agree, on the clean image and on an augmented view, with the source network run with
test statistics, the anchor. A contrastive loss draws an image's feature, its augmented feature and the nearest source
prototype together and apart from all others. Prototypes are mean source features of each class, taken once.

G. Chakrabarty, M. Sreenivas, S. Biswas: "SANTA: Source Anchoring Network and Target Alignment for Continual Test Time
Adaptation", TMLR 2023. Returned are the student's clean logits from before the update. Labelled source images are
needed once, by `fit_source`.

In the anchor loss the student's probability multiplies the log of the anchor's: it sharpens as well as anchors.

Departures: clean and augmented term weigh one half each (the public code; the paper adds them up); a class without a
source image has no prototype and is nobody's nearest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from slomofast.augment import Per, augment
from slomofast.core.adapter import Adapter
from slomofast.core.config import option
from slomofast.core.optim import OptimConfig
from slomofast.core.params import copy_network, projector
from slomofast.core.registry import register
from slomofast.core.split import Classifier, feature_size
from slomofast.losses import contrastive, cross_entropy
from slomofast.memory import ClassMeans, labelled


@dataclass(frozen=True)
class SantaConfig(OptimConfig):
    """Options of SANTA."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"imagenet": {"optimizer": "sgd", "lr": 0.01}}

    anchor_weight: float = option(1.0, "weight of the agreement with the source network", low=0.0)
    contrastive_weight: float = option(1.0, "weight of the alignment with prototypes", low=0.0)
    temperature: float = option(0.1, "of the contrastive loss", above=0.0)
    projection: int = option(128, "width of the projector", low=1)
    source_images: int = option(100_000, "source images after which prototypes are ready", low=1)
    augment_per: Per = option("batch", "draw augmentation parameters once per batch or once per image")


@register("santa", paper="TMLR 2023", trains="norm layers", needs_source=True,
          needs_features=True)  # fmt: skip
class Santa(Adapter):
    """Agree with the source network under test statistics, and align features with its class prototypes."""

    clips_views = True
    Config = SantaConfig
    config: SantaConfig
    student: Classifier

    def build(self, model: Classifier) -> None:
        dim = feature_size(model, self.sample_shape, self.device)
        self.student = copy_network(model, train="norm")
        self.anchor = copy_network(model)
        self.projector = projector(dim, self.config.projection, self.rng).to(self.device)
        self.means = ClassMeans(self.classes, dim, self.device)
        self.optimize("student", self.student)
        self.optimize("projector", self.projector)

    def learn_source(self, loader: Iterable[tuple[Tensor, Tensor]]) -> None:
        batches = labelled(loader, self.classes, self.config.source_images)
        self.means.fit((self.anchor.features(images), labels) for images, labels in batches)

    def adapt(self, x: Tensor) -> Tensor:
        config = self.config
        with torch.no_grad():
            anchor = self.anchor(x).float()
        z, logits = self.student.both(x)
        z_view, logits_view = self.student.both(augment(x, self.rng, per=config.augment_per))
        agreement = anchored(logits.float(), logits_view.float(), anchor)
        views = torch.stack([self.means.nearest(z), z.float(), z_view.float()])
        alignment = contrastive(self.projector(views), config.temperature)
        self.update(config.anchor_weight * agreement + config.contrastive_weight * alignment)
        self.log("loss_anchor", agreement)
        self.log("loss_contrastive", alignment)
        return logits


def anchored(logits: Tensor, logits_view: Tensor, anchor: Tensor) -> Tensor:
    """One value: how unlikely the anchor finds the student's predictions on the clean and on the augmented image."""
    return 0.5 * (cross_entropy(anchor, logits) + cross_entropy(anchor, logits_view)).mean()
