"""RoTTA: learn from a small class-balanced bank of recent, certain images instead of from the raw batch.

The teacher predicts with BatchNorm statistics that follow the stream slowly, so neither a batch of one nor a burst of
one class upsets it. Its predictions decide which images a bank keeps: few per class, young and certain. Every 64 images
the student learns the teacher's view of the bank, old items counting less, and the teacher takes a small step to it.

L. Yuan, B. Xie, S. Li: "Robust Test-Time Adaptation in Dynamic Scenarios", CVPR 2023, arXiv:2303.13899. Returned are
the teacher's logits from before any update of the batch, though several updates may fall inside it.

Who leaves the bank depends on everyone who came before, so that rule runs on the host over labels and entropies of at
most the batch, with one wait for the device per step; images stay where they are.

Departures: dropout and stochastic depth stay off during updates (the public code switches to train mode).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from slomofast.augment import Per, augment
from slomofast.core.adapter import Adapter
from slomofast.core.config import option
from slomofast.core.norms import measuring
from slomofast.core.optim import OptimConfig
from slomofast.core.params import copy_network, ema_update
from slomofast.core.registry import register
from slomofast.core.split import Classifier
from slomofast.losses import cross_entropy
from slomofast.memory import BalancedBank, BalancedLedger, sent


@dataclass(frozen=True)
class RottaConfig(OptimConfig):
    """Options of RoTTA; symbols of the paper in brackets."""

    capacity: int = option(64, "images the bank holds [N]", low=1)
    update_every: int = option(64, "images between updates", low=1)
    teacher_momentum: float = option(0.999, "share of the old teacher per update [1 - nu]", low=0.0, high=1.0)
    alpha: float = option(0.05, "share of the bank's statistics in BatchNorm's average per update", low=0.0, high=1.0)
    age_weight: float = option(1.0, "how much age makes an item leave the bank [lambda_t]", low=0.0)
    uncertainty_weight: float = option(1.0, "how much entropy makes an item leave the bank [lambda_u]", low=0.0)
    augment_per: Per = option("batch", "draw augmentation parameters once per update or once per image")


@register("rotta", paper="arXiv:2303.13899", trains="norm layers", batch_of_one=True,
          returns="teacher's logits from before the update")  # fmt: skip
class Rotta(Adapter):
    """Learn from a class-balanced bank of recent, certain images, with slowly moving statistics."""

    clips_views = True
    Config = RottaConfig
    config: RottaConfig
    waiting: Tensor

    def build(self, model: Classifier) -> None:
        config = self.config
        self.student = copy_network(model, train="norm", statistics="robust", alpha=config.alpha)
        self.teacher = copy_network(model, statistics="robust", alpha=config.alpha)
        self.bank = BalancedBank(config.capacity, self.sample_shape or (), self.device)
        self.register_buffer("waiting", torch.zeros((), dtype=torch.int64, device=self.device))
        self.optimize("student", self.student)

    def members(self) -> dict[str, nn.Module]:
        return {"teacher": self.teacher, "student": self.student}

    def adapt(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            logits = self.teacher(x).float()
        config = self.config
        ledger = BalancedLedger(config.capacity, self.classes, config.age_weight, config.uncertainty_weight)
        usable = self.usable(torch.isfinite(logits).all(1))
        labels, uncertainties, (count,) = self.bank.fetch(ledger, logits, usable, self.waiting)
        waiting = int(count)
        rows: dict[int, int] = {}
        for row, (label, uncertainty) in enumerate(zip(labels, uncertainties, strict=True)):
            slot = ledger.add(label, uncertainty) if uncertainty == uncertainty else None
            if slot is not None:
                rows[slot] = row
            waiting += 1
            if waiting == config.update_every:
                self.bank.store(x, rows)
                self._learn(ledger)
                rows, waiting = {}, 0
        self.bank.store(x, rows)
        self.bank.record(ledger)
        self.waiting.fill_(waiting)
        self.log("bank_fill", len(ledger.labels) / config.capacity)
        return logits

    def _learn(self, ledger: BalancedLedger) -> None:
        """One update of both networks on the whole bank; their BatchNorm averages move during these passes only."""
        count = len(ledger.labels)
        if not count:
            return
        images = self.bank.images[:count]
        ages = sent(ledger.ages, images.device).float() / self.config.capacity
        with measuring(self):
            with torch.no_grad():
                target = self.teacher(images).float()
            logits = self.student(augment(images, self.rng, per=self.config.augment_per)).float()
        # exp(-age) / (1 + exp(-age)): at most one half, and the mean is over items, not over weights
        loss = (torch.sigmoid(-ages) * cross_entropy(logits, target)).mean()
        self.update(loss)
        self.gradients_taken()  # one recorded pass serves all updates of a batch
        ema_update(self.teacher, self.student, self.config.teacher_momentum)
        self.log("loss", loss)
