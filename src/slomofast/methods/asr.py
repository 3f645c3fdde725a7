"""ASR: ETA that watches for collapse, then resets the layers near the output and remembers where it has been.

When a batch's predictions crowd on fewer classes than they used to, the normalisation weights of the output side go
back to the source: all the more of them, the sharper the drop. What was learned in between is not lost: weights and
their Fisher information are averaged over each stretch between two resets, and a penalty draws later weights there.
How far the source network disagrees says how fast the watch moves and how hard the penalty draws.

T. Lim, J. Hwang, K. Lee: "When and Where to Reset Matters for Long-Term Test-Time Adaptation", ICLR 2026. Returned are
the adapting network's logits from before the update; a reset follows the update and shows from the next batch on.

The watch is on the entropy of the mean *logits*, and any value below the running baseline resets. A stream of few
classes at a time looks like collapse. With the default slope an excess of 0.025 nat resets everything.

Departures: on top of ETA alone, not of ROID. The source network is a second copy, asked once per batch; the penalty's
gradient is written out, so a step has one backward pass. A batch with no sample to learn from takes no step and adds no
Fisher information, but counts. The options for CIFAR are ETA's with the watch of ResNet-50; none are published.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from slomofast.core.config import option
from slomofast.core.params import copy_network, flatten, unflatten
from slomofast.core.registry import register
from slomofast.core.split import Classifier
from slomofast.losses import entropy
from slomofast.methods.eta import Eta, EtaConfig


@dataclass(frozen=True)
class AsrConfig(EtaConfig):
    """Options of ASR; symbols of the paper in brackets."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "imagenet": EtaConfig.PRESETS["imagenet"],
        "transformer": {
            **EtaConfig.PRESETS["imagenet"], "baseline_rate": 0.99, "baseline_start": 0.005, "reset_slope": 50.0,
        },
        "transformer_hard": {
            **EtaConfig.PRESETS["imagenet"], "baseline_rate": 0.9995, "baseline_start": 0.005, "reset_slope": 0.1,
        },
    }  # fmt: skip

    baseline_start: float = option(
        0.5, "the baseline starts at the entropy of an even choice among this share of the classes [alpha0]", above=0.0
    )
    baseline_rate: float = option(
        0.15, "share of the baseline renewed by a batch on which the source network agrees [mu0]", low=0.0, high=1.0
    )
    reset_share: float = option(0.5, "least share of the tensors that a reset takes back [r0]", low=0.0, high=1.0)
    reset_slope: float = option(20.0, "further share for every nat below the baseline [lambda_r]", low=0.0)
    penalty_weight: float = option(
        5.0, "weight of the penalty where the source network disagrees on every image [lambda0]", low=0.0
    )
    segment_momentum: float = option(0.9, "share of the old averages kept at a reset", low=0.0, high=1.0)


@register("asr", paper="arXiv:2603.03796", trains="norm layers")
class Asr(Eta):
    """Run ETA, reset the output side when predictions concentrate, and stay near what earlier stretches learned."""

    Config: ClassVar[type[AsrConfig]] = AsrConfig
    config: AsrConfig
    source: Tensor
    place: Tensor
    fisher_sum: Tensor
    theta_sum: Tensor
    fisher_mean: Tensor
    theta_mean: Tensor
    remembers: Tensor
    batches: Tensor
    baseline: Tensor
    pull: Tensor

    def build(self, model: Classifier) -> None:
        super().build(model)
        self.anchor = copy_network(model)
        weights = flatten(self.optimizer().targets).to(self.device)
        self.register_buffer("source", weights)
        # the tensor that a weight belongs to, counted from the input side; known from the network, hence not saved
        sizes = torch.tensor([p.numel() for p in self.optimizer().targets], dtype=torch.int64, device=self.device)
        self.register_buffer("place", torch.arange(len(sizes), device=self.device).repeat_interleave(sizes), False)
        # of the stretch since the last reset: sums, and batches in them
        self.register_buffer("fisher_sum", torch.zeros_like(weights))
        self.register_buffer("theta_sum", torch.zeros_like(weights))
        self.register_buffer("batches", torch.zeros((), device=self.device))
        # of all stretches before; they mean nothing until `remembers`
        self.register_buffer("fisher_mean", torch.zeros_like(weights))
        self.register_buffer("theta_mean", torch.zeros_like(weights))
        self.register_buffer("remembers", torch.zeros((), dtype=torch.bool, device=self.device))
        self.start = math.log(self.config.baseline_start * self.classes)
        self.register_buffer("baseline", torch.full((), self.start, device=self.device))
        self.register_buffer("pull", torch.zeros((), device=self.device))

    def adapt(self, x: Tensor) -> Tensor:
        logits = self.student(x)
        loss, kept = self.objective(logits)
        if not loss.requires_grad:
            return logits
        spread = entropy(logits.detach().float().mean(0, keepdim=True)).squeeze(0)
        seen = self.usable(torch.isfinite(spread))
        self._step(loss, kept.any(), seen)
        with torch.no_grad():
            disagreement = (self.anchor(x).argmax(1) != logits.argmax(1)).float().mean()
        self._watch(spread, disagreement, seen)
        return logits

    def _step(self, loss: Tensor, learns: Tensor, seen: Tensor) -> None:
        """Add the batch to the stretch's sums, then step down loss + pull * sum_k F_k (theta_k - mean_k)^2."""
        targets = self.optimizer().targets
        found = torch.autograd.grad(loss, targets, allow_unused=True)
        gradient = flatten([torch.zeros_like(p) if g is None else g for g, p in zip(found, targets, strict=True)])
        here = flatten(targets)
        information = gradient.square()
        self.fisher_sum += torch.where(seen & torch.isfinite(information.sum()), information, 0.0)
        self.theta_sum += torch.where(seen, here, 0.0)
        self.batches += seen
        away = here - self.theta_mean
        slope = self.pull * self.fisher_mean * away  # half the penalty's gradient
        total = loss.detach() + (slope * away).sum()
        self.optimizer().step(unflatten(gradient + 2.0 * slope, targets), total, learns)
        self.log("loss", total)

    @torch.no_grad()
    def _watch(self, spread: Tensor, disagreement: Tensor, seen: Tensor) -> None:
        """Reset where the mean prediction's entropy `spread` fell below the baseline; else let the baseline follow."""
        config = self.config
        back = seen & (spread < self.baseline)
        self._remember(back)
        self._take_back(back, config.reset_share + config.reset_slope * (self.baseline - spread))
        followed = self.baseline.lerp(spread, config.baseline_rate * (1.0 - disagreement))  # mu = mu0 phi + 1 - mu0
        self.baseline.copy_(torch.where(back, self.start, torch.where(seen, followed, self.baseline)))
        self.pull.copy_(torch.where(seen, config.penalty_weight * disagreement.square(), self.pull))
        self.log("concentration", -spread)
        self.log("disagreement", disagreement)
        self.log("baseline", self.baseline.clone())
        self.log("reset", back.float())

    def _remember(self, back: Tensor) -> None:
        """Take the means of the stretch that ends into those of the stretches before, and clear its sums."""
        rate = torch.where(self.remembers, 1.0 - self.config.segment_momentum, 1.0) * back
        for mean, total in ((self.fisher_mean, self.fisher_sum), (self.theta_mean, self.theta_sum)):
            mean.lerp_(total / self.batches.clamp(min=1), rate)
            total.masked_fill_(back, 0.0)
        self.batches.masked_fill_(back, 0.0)
        self.remembers |= back

    def _take_back(self, back: Tensor, share: Tensor) -> None:
        """Return the last `share` of the tensors to the source; optimiser and average prediction start afresh."""
        targets = cast(list[Tensor], self.optimizer().targets)
        lost = back & (self.place >= (1.0 - share).clamp(min=0.0) * len(targets))
        torch._foreach_copy_(targets, unflatten(torch.where(lost, self.source, flatten(targets)), targets))
        self.optimizer().forget(back)
        self.average.masked_fill_(back, 0.0)
        self.started &= ~back
        self.log("share_reset", lost.float().mean())
