"""DPCore: a growing set of prompts, one per domain met, mixed for each batch by how its features compare with theirs.

A prompt is a small set of trained numbers that brings the mean and spread of a batch's features back to the source's;
the network itself stays. A batch tries the mix of stored prompts, near domains first: if that closes enough of the gap
the mix is refined by one step and the elements follow, otherwise a new prompt is learned and joins the set.

Y. Zhang, A. Mehra, S. Niu, J. Hamm: "DPCore: Dynamic Prompt Coreset for Continual Test-Time Adaptation", ICML 2025,
arXiv:2406.10737. Returned are the logits of the last pass before the last step: those of the mix for a known domain,
of the prompt after 49 of 50 steps for a new one. Clean source images are needed once, by `fit_source`; labels are not
used. The host waits for the device once per batch, to learn whether the domain is known.

The published method has prompt tokens in a vision transformer: `preset="vit"`. The default is a port to any network,
in which the weights of the norm layers are the prompt. BatchNorm then uses the test batch, which hides most of the
difference between domains: elements are compared by features of the source network with its stored statistics.
Distances are in units of the source's standard deviations, and `temperature` is measured on the source.

Departures: the pass that tries the mix also serves its step. The set is limited; a full one takes every batch for
known, as in a public re-run. Batches of fewer than `least_images` are predicted with the mix and not learned from. A
step that is not finite is left out, and what was not learned is not stored. Images are not fed differently on the
source and on the stream, as the public code does. Between batches nothing is kept but the set; `predict` uses the mix.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from slomofast.core.adapter import Adapter
from slomofast.core.config import option
from slomofast.core.errors import ConfigError
from slomofast.core.norms import norm_kinds
from slomofast.core.optim import OptimConfig
from slomofast.core.params import copy_network, flatten, unflatten
from slomofast.core.prompts import insert_prompt
from slomofast.core.registry import register
from slomofast.core.split import Classifier, feature_size
from slomofast.losses import entropy

LEAST_VARIANCE = 1e-12  # of a feature: the root has no slope at zero, where a unit is silent on the whole batch
LEAST_UNIT = 0.1  # of a feature, as a share of the mean standard deviation: silent source features are no fine measure
PAIRS = 32  # of source batches, for the temperature

_VIT = {"prompt": "tokens", "lr": 0.1, "temperature": 3.0, "standardise": False, "source_entropy": 0.3552}


@dataclass(frozen=True)
class DpcoreConfig(OptimConfig):
    """Options of DPCore; symbols of the paper in brackets."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "cifar100": {"source_entropy": 0.2829},  # ln(C) / 2 - 1
        "imagenet": {"source_entropy": 0.3552},
        "vit": _VIT,
        "vit_ccc": {**_VIT, "lr": 0.01},
    }

    decay: float = option(0.01, "share of each weight, times lr, that a step takes off (AdamW)", low=0.0)
    prompt: Literal["norm", "tokens"] = option("norm", "what is learned: norm layers' weights, or transformer tokens")
    tokens: int = option(8, "prompt tokens, with prompt=tokens [L]", low=1)
    known_below: float = option(0.8, "share of the gap that the mix may leave in a known domain [rho]", low=0.0)
    temperature: float = option(
        0.0, "of the weights of elements; 0: median distance of two source batches [tau]", low=0.0
    )
    standardise: bool = option(True, "measure features in units of the source's standard deviations")
    spread_weight: float = option(1.0, "weight of standard deviations against means in distances [lambda]", low=0.0)
    rate: float = option(0.999, "share of the way that an element of weight one follows a batch [a]", low=0.0, high=1.0)
    steps_new: int = option(50, "steps for a new domain", low=1)
    steps_known: int = option(1, "steps for a known domain", low=1)
    element_stats: Literal["auto", "prompted", "raw"] = option(
        "auto", "features that elements follow: with the prompt, without; auto: raw in networks with BatchNorm"
    )
    capacity: int = option(256, "elements at most", low=1)
    least_images: int = option(16, "images in the smallest batch that is learned from", low=2)
    source_images: int = option(300, "source images used for the statistics", low=2)
    source_entropy: float = option(0.4, "largest entropy of such an image, as a share of ln(classes)", above=0.0)


@register("dpcore", paper="arXiv:2406.10737", trains="norm layers, or prompt tokens", needs_source=True,
          needs_features=True, returns="logits of the last pass before the last step")  # fmt: skip
class DPCore(Adapter):
    """Mix stored prompts by the distance of their domains; refine the mix, or learn another for a new domain."""

    Config = DpcoreConfig
    config: DpcoreConfig
    student: Classifier
    source_mean: Tensor
    source_std: Tensor
    unit: Tensor

    def build(self, model: Classifier) -> None:
        config = self.config
        self.source = copy_network(model)
        self.witness: Classifier | None = None  # whose features tell domains apart, where not the source's own
        if "batch" in norm_kinds(model):
            self.witness = copy_network(model, statistics="source")
        self.student = copy_network(model, train="norm" if config.prompt == "norm" else "none")
        if config.prompt == "tokens":
            insert_prompt(self.student.body, self.rng.uniform(2, *(self.sample_shape or ())), config.tokens, self.rng)
        self.optimize("student", self.student)
        dim = feature_size(model, self.sample_shape, self.device)
        initial = flatten(self.optimizer().targets).to(self.device)
        self.coreset = Coreset(config.capacity, dim, initial, config.spread_weight)
        self.register_buffer("source_mean", torch.zeros(dim, device=self.device))
        self.register_buffer("source_std", torch.ones(dim, device=self.device))
        self.register_buffer("unit", torch.ones(dim, device=self.device))

    def members(self) -> dict[str, nn.Module]:
        return {"student": Mixed(self.source, self.witness, self.student, self.coreset)}

    @torch.no_grad()
    def learn_source(self, loader: Iterable[tuple[Tensor, Tensor]]) -> None:
        config = self.config
        kept: list[tuple[Tensor, Tensor]] = []
        seen = found = size = 0  # images, those that count, those of the largest batch
        for images, _ in loader:
            z, logits, told = look(self.source, self.witness, images)
            sure = entropy(logits) < config.source_entropy * math.log(self.classes)  # never where it is no number
            kept.append((z[sure][: config.source_images - found], told[sure][: config.source_images - found]))
            seen, found, size = seen + len(images), found + len(kept[-1][0]), max(size, len(images))
            if found >= config.source_images:
                break
        if found < 2:
            raise ConfigError(
                f"of {seen} source images {found} are predicted with an entropy below source_entropy="
                f"{config.source_entropy:g} times ln({self.classes}), and two are needed; raise it, or check the model"
            )
        z, told = (torch.cat(parts) for parts in zip(*kept, strict=True))
        mean, std = moments(z)
        self.source_mean.copy_(mean)
        self.source_std.copy_(std)
        if config.standardise:
            for unit, spread in ((self.unit, std), (self.coreset.unit, moments(told)[1])):
                unit.copy_(spread.clamp(min=LEAST_UNIT * float(spread.mean())))
        if config.temperature:
            self.coreset.temperature.fill_(config.temperature)
        else:
            rows = (self.rng.uniform(2 * PAIRS, max(2, size)) * found).long().clamp(max=found - 1)
            drawn = [moments(told[batch]) for batch in rows]
            pairs = [self.coreset.distance(*a, *b) for a, b in zip(drawn[::2], drawn[1::2], strict=True)]
            self.coreset.temperature.copy_(torch.stack(pairs).median().clamp(min=1e-6))

    def adapt(self, x: Tensor) -> Tensor:
        config, targets = self.config, self.optimizer().targets
        if not targets or len(x) < config.least_images:
            with torch.no_grad():
                return cast(Tensor, self.members()["student"](x))
        with torch.no_grad():
            z, raw, told = look(self.source, self.witness, x)
            signature, gap = moments(told), self._gap(*moments(z))
            weights, mix = self.coreset.mix(*signature)
        put(targets, mix)
        passed = self.student.both(x)  # with a gradient: in a known domain this is the pass that learns
        closed = self._gap(*moments(passed[0])).detach()
        known = (self.coreset.count > 0) & (closed < config.known_below * gap) | self.coreset.full()
        usable = self.usable(torch.isfinite(gap + signature[0].sum() + signature[1].sum()))
        is_known, is_usable = torch.stack([known, usable]).tolist()  # the one wait for the device
        self.log("gap", gap)
        self.log("gap_of_mix", closed)
        self.log("known", float(is_known))
        if not is_usable:
            put(targets, self.coreset.initial)
            return raw
        if is_known:
            logits, prompted = self._learn(x, config.steps_known, passed)
        else:
            del passed  # its activations are not needed
            put(targets, self.coreset.initial)
            logits, prompted = self._learn(x, config.steps_new)
        prompt = flatten(targets)
        learned = (self.optimizer().count > 0) & torch.isfinite(prompted[0].sum() + prompted[1].sum())
        if is_known:
            follows = config.element_stats
            if follows == "raw" or (follows == "auto" and self.witness is not None):
                prompted = signature
            self.coreset.follow(weights, *prompted, prompt, config.rate, learned)
        else:
            self.coreset.append(*signature, prompt, learned)
        put(targets, self.coreset.initial)
        self.log("elements", self.coreset.count.clone())
        return logits

    def _gap(self, mean: Tensor, std: Tensor) -> Tensor:
        """Distance of a batch's statistics from the source's."""
        return distance(mean, std, self.source_mean, self.source_std, self.unit, self.config.spread_weight)

    def _learn(
        self, x: Tensor, steps: int, passed: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Close the gap by AdamW from a fresh start; logits and feature statistics of the last pass.

        `passed` are features and logits under the present prompt, where there are some.
        """
        optimizer = self.optimizer()
        targets = cast(list[Tensor], optimizer.targets)
        optimizer.forget()
        for _ in range(steps):
            z, logits = passed or self.student.both(x)
            passed, found = None, moments(z)
            before, count = flatten(targets), optimizer.count.clone()
            loss = self._gap(*found)
            self.update(loss)
            lost = optimizer.lr * self.config.decay * (optimizer.count - count)  # nothing where the step was left out
            with torch.no_grad():
                torch._foreach_sub_(targets, unflatten(before * lost, targets))
            self.gradients_taken()  # one recorded pass serves all steps
        self.log("loss", loss)
        return logits.detach(), (found[0].detach(), found[1].detach())


class Coreset(nn.Module):
    """Up to `capacity` elements: a prompt, and the mean and standard deviation of features in the domain it is for.

    Args:
        dim: length of a feature vector.
        initial: (P,) the prompt that every new one starts from.
        spread_weight: of standard deviations against means in distances.
    """

    means: Tensor
    stds: Tensor
    prompts: Tensor
    count: Tensor
    initial: Tensor
    unit: Tensor
    temperature: Tensor

    def __init__(self, capacity: int, dim: int, initial: Tensor, spread_weight: float) -> None:
        super().__init__()
        device = initial.device
        self.spread_weight = spread_weight
        self.register_buffer("means", torch.zeros(capacity, dim, device=device))
        self.register_buffer("stds", torch.zeros(capacity, dim, device=device))
        self.register_buffer("prompts", torch.zeros(capacity, len(initial), device=device))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64, device=device))
        self.register_buffer("initial", initial)
        self.register_buffer("unit", torch.ones(dim, device=device))
        self.register_buffer("temperature", torch.ones((), device=device))

    def full(self) -> Tensor:
        """Whether no element can be added (0-d)."""
        return self.count == len(self.means)

    def distance(self, mean: Tensor, std: Tensor, other_mean: Tensor, other_std: Tensor) -> Tensor:
        """Of two domains by their features' statistics (..., D)."""
        return distance(mean, std, other_mean, other_std, self.unit, self.spread_weight)

    @torch.no_grad()
    def mix(self, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (capacity,) of the elements for a batch with these statistics (D,), and the mixed prompt (P,).

        Without elements the weights are zero and the prompt is the initial one.
        """
        used = torch.arange(len(self.means), device=self.means.device) < self.count
        scores = -self.distance(mean, std, self.means, self.stds) / self.temperature
        weights = scores.masked_fill(~used, torch.finfo(scores.dtype).min).softmax(0) * used
        with torch.autocast(weights.device.type, enabled=False):  # it would round the prompt to three digits
            prompt = weights @ self.prompts
        return weights, torch.where(self.count > 0, prompt, self.initial)

    @torch.no_grad()
    def follow(self, weights: Tensor, mean: Tensor, std: Tensor, prompt: Tensor, rate: float, when: Tensor) -> None:
        """Move each element by `rate` times its weight to what a batch gave; standard deviations only grow."""
        share = (rate * weights)[:, None]
        for held, change in (
            (self.means, mean - self.means),
            (self.stds, (std - self.stds).clamp(min=0.0)),
            (self.prompts, prompt - self.prompts),
        ):
            held.copy_(torch.where(when, held + share * change, held))

    @torch.no_grad()
    def append(self, mean: Tensor, std: Tensor, prompt: Tensor, when: Tensor) -> None:
        """Add an element where `when` (0-d bool) is set; there must be room."""
        slot = self.count[None]
        for held, value in ((self.means, mean), (self.stds, std), (self.prompts, prompt)):
            held.index_copy_(0, slot, torch.where(when, value, held.index_select(0, slot)))
        self.count += when


class Mixed(nn.Module):
    """Predicts a batch with the mix of prompts that fits it and learns nothing; without elements, as the source."""

    def __init__(self, source: Classifier, witness: Classifier | None, student: Classifier, coreset: Coreset) -> None:
        super().__init__()
        self.source, self.witness, self.student, self.coreset = source, witness, student, coreset
        self.names = [name for name, p in student.named_parameters() if p.requires_grad]

    def forward(self, x: Tensor) -> Tensor:
        _, raw, told = look(self.source, self.witness, x)
        own = dict(self.student.named_parameters())
        targets = [own[name] for name in self.names]
        put(targets, self.coreset.mix(*moments(told))[1])
        logits = self.student(x).float()
        put(targets, self.coreset.initial)
        return torch.where(self.coreset.count > 0, logits, raw)


def look(source: Classifier, witness: Classifier | None, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Without a prompt: features and logits, and the features by which domains are told apart."""
    z, logits = source.both(x)
    told = z if witness is None else witness.features(x)
    return z.float(), logits.float(), told.float()


def put(targets: list[nn.Parameter], prompt: Tensor) -> None:
    """Write a flat prompt into a network."""
    if targets:
        with torch.no_grad():
            torch._foreach_copy_(cast(list[Tensor], targets), unflatten(prompt, targets))


def moments(z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased standard deviation (D,) of features (B, D); a lone image has no spread."""
    variance, mean = torch.var_mean(z.float(), 0, correction=1 if len(z) > 1 else 0)
    return mean, variance.clamp(min=LEAST_VARIANCE).sqrt()


def distance(
    mean: Tensor, std: Tensor, other_mean: Tensor, other_std: Tensor, unit: Tensor, spread_weight: float
) -> Tensor:
    """|mean - other mean| + spread_weight * |std - other std| over the last axis; norms, not their squares."""
    means: Tensor = torch.linalg.vector_norm((mean - other_mean) / unit, dim=-1)
    stds: Tensor = torch.linalg.vector_norm((std - other_std) / unit, dim=-1)
    return means + spread_weight * stds
