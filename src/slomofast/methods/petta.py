"""PeTTA: a mean teacher that slows down and holds on to the source the further its features have drifted.

Running means of the teacher's features, class by class, are compared with those of the source. The larger the distance,
the more the student's weights are tied to the source's and the less of the student reaches the teacher, so that errors
do not pile up over many visits of the same domains. Images are learned from a class-balanced bank, under BatchNorm
statistics that follow it slowly, as in RoTTA; the source network, run with such statistics of its own, is an anchor.

T.-H. Hoang, D. M. Vo, M. N. Do: "Persistent Test-time Adaptation in Recurring Testing Scenarios", NeurIPS 2024,
arXiv:2311.18193. Returned are the teacher's logits from before the update. Clean source images are needed once, by
`fit_source`; their labels are not used, the source network's predictions stand for them.

Who enters the bank is decided on the host, with one wait for the device per step that also brings the divergence.

Departures: divergence is one exponential of a mean over classes and dimensions, as in the authors' code (the paper's
sum would be close to one for any shift); a class predicted for fewer than two source images takes the variance of all
images, and without any also their mean; a step follows every batch, also one of a single image (the authors' loop skips
those); images that give no finite features are neither banked nor averaged, and a batch of nothing else is not learned
from; dropout and stochastic depth stay off. The l2 regulariser sums the squares of a tensor before the mean over
tensors. Networks without BatchNorm train their other norm layers; the authors have none (preset `vit` is our port).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from slomofast.augment import Per, augment
from slomofast.core.adapter import Adapter
from slomofast.core.config import option
from slomofast.core.norms import measuring
from slomofast.core.optim import OptimConfig
from slomofast.core.params import copy_network, counterparts, ema_update, trainable
from slomofast.core.registry import register
from slomofast.core.split import Classifier, feature_size
from slomofast.losses import agreed, cross_entropy
from slomofast.memory import BalancedBank, BalancedLedger, ClassDrift


@dataclass(frozen=True)
class PettaConfig(OptimConfig):
    """Options of PeTTA; symbols of the paper in brackets."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "imagenet": {"symmetric": False},
        "domainnet": {"symmetric": False, "regulariser_weight": 1.0},
        "vit": {"symmetric": False, "optimizer": "sgd", "lr": 2.5e-4},
    }

    symmetric: bool = option(True, "agree both ways on the clean and the augmented bank, or one way on the augmented")
    regulariser: Literal["cosine", "l2", "none"] = option("cosine", "what ties the student's weights to the source's")
    regulariser_weight: float = option(10.0, "its weight at full divergence [lambda_0]", low=0.0)
    anchor_weight: float = option(1.0, "weight of the agreement with the source network", low=0.0)
    teacher_momentum: float = option(0.999, "least share of the old teacher per step [1 - alpha_0]", low=0.0, high=1.0)
    drift_rate: float = option(0.05, "share of the batch in the running class means [nu]", low=0.0, high=1.0)
    capacity: int = option(64, "images the bank holds [N]", low=1)
    alpha: float = option(0.05, "share of the bank's statistics in BatchNorm's average per pass", low=0.0, high=1.0)
    age_weight: float = option(1.0, "how much age makes an item leave the bank [lambda_t]", low=0.0)
    uncertainty_weight: float = option(1.0, "how much entropy makes an item leave the bank [lambda_u]", low=0.0)
    source_images: int = option(100_000, "source images used for the class statistics", low=1)
    augment_per: Per = option("batch", "draw augmentation parameters once per step or once per image")


@register("petta", paper="arXiv:2311.18193", trains="norm layers", needs_source=True, needs_features=True,
          returns="teacher's logits from before the update")  # fmt: skip
class Petta(Adapter):
    """A mean teacher on a class-balanced bank that holds on to the source the further its features drift."""

    clips_views = True
    Config = PettaConfig
    config: PettaConfig

    def build(self, model: Classifier) -> None:
        config = self.config
        self.student = copy_network(model, train="norm", statistics="robust", alpha=config.alpha)
        self.teacher = copy_network(model, statistics="robust", alpha=config.alpha)
        self.anchor = copy_network(model, statistics="robust", alpha=config.alpha)
        self.bank = BalancedBank(config.capacity, self.sample_shape or (), self.device)
        self.drift = ClassDrift(self.classes, feature_size(model, self.sample_shape, self.device), self.device)
        self.optimize("student", self.student)

    def members(self) -> dict[str, nn.Module]:
        return {"teacher": self.teacher, "student": self.student}

    def learn_source(self, loader: Iterable[tuple[Tensor, Tensor]]) -> None:
        def predicted() -> Iterable[tuple[Tensor, Tensor]]:
            left = self.config.source_images
            for images, _ in loader:
                z, logits = self.anchor.both(images[:left])
                yield z, logits.argmax(1)
                left -= len(z)
                if not left:
                    return

        self.drift.fit(predicted())

    def adapt(self, x: Tensor) -> Tensor:
        config = self.config
        with torch.no_grad():
            z, logits = (output.float() for output in self.teacher.both(x))
        usable = self.usable(torch.isfinite(z).all(1) & torch.isfinite(logits).all(1))
        divergence = self.drift.follow(z, logits.argmax(1), usable, config.drift_rate)
        ledger = BalancedLedger(config.capacity, self.classes, config.age_weight, config.uncertainty_weight)
        labels, uncertainties, (distance,) = self.bank.fetch(ledger, logits, usable, divergence)
        rows: dict[int, int] = {}
        for row, (label, uncertainty) in enumerate(zip(labels, uncertainties, strict=True)):
            slot = ledger.add(label, uncertainty) if uncertainty == uncertainty else None
            if slot is not None:
                rows[slot] = row
        self.bank.store(x, rows)
        self.bank.record(ledger)
        if any(uncertainty == uncertainty for uncertainty in uncertainties):
            self._learn(self.bank.images[: len(ledger.labels)], -math.expm1(-distance))
        self.log("bank_fill", len(ledger.labels) / config.capacity)
        return logits

    def _learn(self, images: Tensor, gamma: float) -> None:
        """One update of student and teacher on the whole bank; BatchNorm averages move during these passes only."""
        config = self.config
        altered = augment(images, self.rng, per=config.augment_per)
        with measuring(self):
            with torch.no_grad():
                target, anchor = self.teacher(images).float(), self.anchor(images).float()
            with torch.set_grad_enabled(config.symmetric):  # without it the pass serves the averages alone
                clean = self.student(images).float()
            view = self.student(altered).float()
        if config.symmetric:
            agreement = agreed(clean, view, target)
        else:
            agreement = cross_entropy(view, target).mean()
        anchored = cross_entropy(view, anchor).mean()
        loss = agreement + config.anchor_weight * anchored
        moving = trainable(self.student)
        if moving and config.regulariser != "none":
            distance = weight_distance(moving, counterparts(self.anchor, self.student), config.regulariser)
            loss = loss + gamma * config.regulariser_weight * distance  # lambda = gamma lambda_0
            self.log("loss_regulariser", distance)
        self.update(loss)
        # alpha = (1 - gamma) alpha_0
        ema_update(self.teacher, self.student, 1.0 - (1.0 - gamma) * (1.0 - config.teacher_momentum))
        self.log("divergence", gamma)
        self.log("loss_agreement", agreement)
        self.log("loss_anchor", anchored)


def weight_distance(moving: list[nn.Parameter], source: list[nn.Parameter], kind: Literal["cosine", "l2"]) -> Tensor:
    """Mean over tensors of minus their cosine with the source's, or of the squared distance.

    A tensor that is zero in the source has no direction: its cosine is zero and moves nothing.
    """
    # rows of one length, zeros behind the end, so that all tensors are compared at once
    now, then = (pad_sequence([p.flatten() for p in tensors], batch_first=True) for tensors in (moving, source))
    if kind == "cosine":
        return -F.cosine_similarity(now, then, dim=1).mean()
    return (now - then).square().sum(1).mean()
