"""TCA: a mean teacher whose student keeps class centroids apart, each pair as strongly as the stream shows its classes.

Student and teacher agree as in RMT, with CoTTA's averaged teacher where the source network is unsure. Features of an
augmented view, on the unit sphere, make running class centroids; one loss drives all centroids apart, evenly on the
first batch and later weighted by how often classes were predicted. A second loss regulates the spread inside each
class, and a third draws two augmented views of an image together.

C. Ni, F. Lyu, J. Tan, F. Hu, R. Yao, T. Zhou: "Maintaining Consistent Inter-Class Topology in Continual Test-Time
Adaptation", CVPR 2025. Returned are 0.3 of the student's and 0.7 of the teacher's logits, both from before the update.
`predict` asks both networks once, clean. The host waits for the device once per step, as in CoTTA.

Minimised as printed, the loss inside classes spreads them, although it is named after compactness; `intra="compact"`
turns it round. The weight of a pair is the mean of its two classes' weights, and averaging over batches keeps it so:
a vector stands for the matrix, and the mean squared distance inside a class follows from the class's mean.

Departures: features are normalised, which the paper leaves open (otherwise all exponentials vanish). The alignment has
a plus sign (printed with a minus, which would part the views). Weights of the losses are the paper's, which the public
code swaps. Gradients reach centroids through the current batch; the public code stops them there, which leaves that
loss without effect. Symmetric cross-entropy is averaged over directions and over clean and augmented image, and the
returned mix is 0.3 to 0.7, both after the code. No value of `centroid_momentum` is published; 0.1 is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slomofast.augment import augment
from slomofast.core.adapter import Ensemble
from slomofast.core.config import option
from slomofast.core.params import ema_update
from slomofast.core.registry import register
from slomofast.core.split import Classifier, feature_size
from slomofast.losses import agreed
from slomofast.methods.cotta import AveragedTeacher, AveragedTeacherConfig


@dataclass(frozen=True)
class TcaConfig(AveragedTeacherConfig):
    """Options of TCA; symbols of the paper in brackets."""

    align_weight: float = option(0.025, "weight of the distance between two views [lambda_1]", low=0.0)
    topology_weight: float = option(0.15, "weight of the losses between and inside classes [lambda_2]", low=0.0)
    steepness: float = option(2.0, "of the exponential of squared distances [t]", above=0.0)
    intra: Literal["spread", "compact", "none"] = option("spread", "what the loss inside classes does to them")
    centroid_momentum: float = option(0.1, "share of a stored centroid when its class is seen", low=0.0, high=1.0)
    pair_momentum: float = option(0.8, "share of the old pair weights per step [beta]", low=0.0, high=1.0)
    student_share: float = option(0.3, "share of the student's logits in the prediction", low=0.0, high=1.0)


@register("tca", paper="CVPR 2025", trains="all parameters", norms=("batch", "group", "layer", "none"),
          needs_features=True,
          returns="mix of the student's and the teacher's logits from before the update")  # fmt: skip
class Tca(AveragedTeacher):
    """A mean teacher that keeps class centroids apart, weighted by how often the stream shows their classes."""

    Config = TcaConfig
    config: TcaConfig
    student: Classifier
    centroids: Tensor
    seen: Tensor
    frequency: Tensor

    def build(self, model: Classifier) -> None:
        super().build(model)
        dim = feature_size(model, self.sample_shape, self.device)
        self.register_buffer("centroids", torch.zeros(self.classes, dim, device=self.device))
        self.register_buffer("seen", torch.zeros(self.classes, dtype=torch.bool, device=self.device))
        # half the sum of two entries is the weight of a pair
        self.register_buffer("frequency", torch.full((self.classes,), 1 / self.classes, device=self.device))

    def members(self) -> dict[str, nn.Module]:
        return {"student": self.student, "teacher": self.teacher}

    def predictor(self) -> nn.Module:
        return Ensemble(self.members(), partial(mixed, share=self.config.student_share))

    def adapt(self, x: Tensor) -> Tensor:
        config = self.config
        teacher = self.targets(x)
        logits = self.student(x).float()
        z, logits_view = self.student.both(augment(x, self.rng, per=config.augment_per))
        other = self.student.features(augment(x, self.rng, per=config.augment_per))
        unit, unit_other = F.normalize(z.float(), dim=1), F.normalize(other.float(), dim=1)
        agreement = agreed(logits, logits_view.float(), teacher)
        alignment = (unit - unit_other).square().sum(1).mean()
        with torch.autocast(x.device.type, enabled=False):  # it would round the distances to three digits
            inter, intra = self._topology(unit, logits_view.argmax(1))
        topology = inter + {"spread": 1.0, "compact": -1.0, "none": 0.0}[config.intra] * intra
        self.update(agreement + config.align_weight * alignment + config.topology_weight * topology)
        ema_update(self.teacher, self.student, config.teacher_momentum)
        for name, loss in (("agreement", agreement), ("align", alignment), ("inter", inter), ("intra", intra)):
            self.log(f"loss_{name}", loss)
        return mixed({"student": logits.detach(), "teacher": teacher}, config.student_share)

    def _topology(self, unit: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Losses between classes and inside classes; moves centroids and class weights on."""
        config, usable = self.config, self.usable(torch.isfinite(unit).all(1))
        mine = ((labels[:, None] == torch.arange(self.classes, device=labels.device)) & usable[:, None]).float()
        count = mine.sum(0)
        mean = mine.T @ torch.where(usable[:, None], unit, 0.0) / count.clamp(min=1)[:, None]
        present, first, old = count > 0, ~self.seen.any(), config.centroid_momentum * self.seen
        centroids = torch.where(present[:, None], mean.lerp(self.centroids, old[:, None]), self.centroids)
        self.centroids.copy_(centroids.detach())
        self.seen.logical_or_(present)
        root = count.sqrt()
        latest = torch.where(present.any(), root / (root.sum() + 1e-6), self.frequency)
        self.frequency.copy_(latest.lerp(self.frequency, config.pair_momentum))
        weight = torch.where(first, 1.0, self.frequency)
        inter = spread_between(centroids, weight, self.seen, config.steepness)
        return inter, spread_inside(mean, count, config.steepness)


def spread_between(centroids: Tensor, weight: Tensor, seen: Tensor, steepness: float) -> Tensor:
    """Log of the mean exp(-t d^2) over pairs of `seen` classes (C,), weighted by the sum of their two weights.

    Low where centroids (C, D) are far apart; zero where fewer than two classes were seen.
    """
    size = centroids.square().sum(1)
    squared = size[:, None] + size[None, :] - 2 * centroids @ centroids.T
    pairs = (seen[:, None] & seen[None, :]).triu(1)
    return log_mean_exp(-steepness * squared, (weight[:, None] + weight[None, :]) * pairs)


def spread_inside(mean: Tensor, count: Tensor, steepness: float) -> Tensor:
    """Log of the mean over classes of exp(-t s), where s is the mean squared distance of two samples of the class.

    `mean` (C, D) are means of unit vectors, so that s = 2 n / (n - 1) * (1 - |mean|^2). Classes of fewer than two
    samples are left out; zero where there is no other.
    """
    squared = 2 * count / (count - 1).clamp(min=1) * (1 - mean.square().sum(1))
    return log_mean_exp(-steepness * squared, (count > 1).float())


def log_mean_exp(values: Tensor, weights: Tensor) -> Tensor:
    """Log of the weighted mean of the exponentials; zero without a gradient where all weights are zero."""
    total = weights.sum()
    some = total > 0
    # where nothing weighs, zeros stand in: log-sum-exp of minus infinities has no gradient
    terms = torch.where(some, values + weights.log(), 0.0)
    return torch.where(some, terms.flatten().logsumexp(0) - torch.where(some, total, 1.0).log(), 0.0)


def mixed(logits: dict[str, Tensor], share: float) -> Tensor:
    """`share` of the student's logits and the rest of the teacher's."""
    return share * logits["student"].float() + (1 - share) * logits["teacher"].float()
