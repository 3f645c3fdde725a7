"""LAME: correct the predictions of a batch jointly, so that images with similar features get similar classes.

No weight changes. The class probabilities are pulled towards those of neighbours in feature space: a Laplacian
regularised likelihood, maximised by a fixed-point iteration in which each row is a softmax of its own log-probability
plus the sum of its neighbours' assignments. It shines where a batch holds few classes, and hurts where classes are
balanced: the pairwise term is a sum over the whole batch and outweighs the network's own opinion.

M. Boudiaf, R. Mueller, I. Ben Ayed, L. Bertinetto: "Parameter-free Online Test-time Adaptation", CVPR 2022. Returned
are log-probabilities, so argmax and softmax mean what they say. BatchNorm uses the source statistics. Batches do not
depend on each other.

The iteration stops on the device, by a mask; every tenth round the host looks whether all is done.

Departures: where the bandwidth is zero (a batch of one, identical features) the network's own prediction is returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slomofast.core.adapter import Adapter
from slomofast.core.config import AdapterConfig, option
from slomofast.core.params import copy_network
from slomofast.core.registry import register
from slomofast.core.split import Classifier

Affinity = Literal["rbf", "knn", "linear"]


@dataclass(frozen=True)
class LameConfig(AdapterConfig):
    """Options of LAME."""

    affinity: Affinity = option("rbf", "how similarity follows from distance")
    neighbours: int = option(5, "neighbours that set the bandwidth (the image itself is one), or that count in knn [k]",
                             low=1)  # fmt: skip
    symmetric: bool = option(False, "average the affinity matrix with its transpose")
    pull: float = option(1.0, "weight of the neighbours [lambda]", low=0.0)
    rounds: int = option(100, "most rounds of the iteration", low=1)
    tolerance: float = option(1e-8, "relative change of the objective that ends it", low=0.0)


class Agreement(nn.Module):
    """A network whose predictions on a batch are corrected jointly; output are log-probabilities (B, C)."""

    def __init__(self, network: Classifier, config: LameConfig) -> None:
        super().__init__()
        self.network, self.config = network, config

    def forward(self, x: Tensor) -> Tensor:
        config = self.config
        features, logits = self.network.both(x)
        with torch.autocast(x.device.type, enabled=False):
            similar = affinity(features.float(), config.affinity, config.neighbours)
            if config.symmetric:
                similar = (similar + similar.T) / 2
            return agree(logits.float(), similar, config.pull, config.rounds, config.tolerance)


@register(
    "lame",
    paper="arXiv:2201.05718",
    trains="nothing",
    norms=("batch", "group", "layer", "none"),
    needs_features=True,
    batch_of_one=True,
    returns="log-probabilities of the source model, corrected within the batch",
)
class Lame(Adapter):
    """Let images with similar features agree on their classes; no weight changes."""

    Config = LameConfig
    config: LameConfig
    student: Classifier

    def build(self, model: Classifier) -> None:
        self.student = copy_network(model, statistics="source")

    def members(self) -> dict[str, nn.Module]:
        return {"corrected": self.predictor(), "source": self.student}

    def predictor(self) -> nn.Module:
        return Agreement(self.student, self.config)

    @torch.no_grad()
    def adapt(self, x: Tensor) -> Tensor:
        return self.predictor()(x)


def affinity(features: Tensor, kind: Affinity, neighbours: int) -> Tensor:
    """Similarity of all pairs of features (B, D) on the unit sphere, as (B, B).

    rbf: Gaussian of the distance; the bandwidth is the mean distance to the k-th nearest, counting the image itself.
    knn: one for each of the k nearest others of a row, else zero. linear: cosine.
    """
    unit = F.normalize(features, dim=1)
    batch = unit.shape[0]
    if kind == "linear":
        return unit @ unit.T
    # exact differences: distances by matrix product leave an image at some distance from itself
    distance = torch.cdist(unit, unit, compute_mode="donot_use_mm_for_euclid_dist")
    if kind == "rbf":
        sigma = distance.sort(1).values[:, min(neighbours, batch) - 1].mean()
        return torch.where(sigma > 0, (-0.5 * (distance / sigma.clamp_min(1e-12)).square()).exp(), 0.0)
    others = distance.masked_fill(torch.eye(batch, dtype=torch.bool, device=unit.device), float("inf"))
    nearest = others.topk(min(neighbours, batch - 1), dim=1, largest=False).indices
    return torch.zeros_like(distance).scatter_(1, nearest, 1.0)


def agree(logits: Tensor, similar: Tensor, pull: float = 1.0, rounds: int = 100, tolerance: float = 1e-8) -> Tensor:
    """Log-probabilities (B, C) after the fixed-point iteration Y <- softmax(log p + pull * W Y)."""
    own = (logits.softmax(1) + 1e-10).log()
    assigned = own.log_softmax(1)
    done = torch.zeros((), dtype=torch.bool, device=logits.device)
    before = torch.full((), float("inf"), device=logits.device)
    for round in range(rounds):
        support = pull * (similar @ assigned.exp())
        now = (own + support).log_softmax(1)
        y = now.exp()
        energy = (-own * y - pull * support * y + y * y.clamp_min(1e-20).log()).sum()
        assigned = torch.where(done, assigned, now)
        if round > 1:
            done = done | ((energy - before).abs() <= tolerance * before.abs())
        before = energy
        if round % 10 == 9 and bool(done):
            break
    return assigned
