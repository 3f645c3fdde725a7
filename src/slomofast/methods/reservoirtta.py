"""ReservoirTTA: one copy of the trained weights for every domain the stream has shown, found by its style.

The style of a batch is the log variance of each channel of a few early layers. Styles are clustered as they come: one
that is further from all centres than source batches are from one another opens a domain with a copy of the weights of
its own. A batch is predicted with the average of all copies, weighted by how near their centres are, and then only the
copy of the nearest domain learns, by EATA or ROID, so that a domain which returns finds what it had learned.

Vray, Tomar, Gao, Thiran, Shelhamer, Bozorgtabar: "ReservoirTTA: Prolonged Test-time Adaptation for Evolving and
Recurring Domains", NeurIPS 2025, arXiv:2505.14511. Returned are the logits of the averaged weights, from before the
update. Clean source images are needed once, by `fit_source`; their labels are not used. `predict` weighs the copies in
the same way, but opens no domain.

The host waits for the device once per step, to learn whether a domain was opened: if so, every copy predicts the batch
and the one of highest mutual information is cloned. With `init="source"` nobody waits.

Departures: where paper and public code differ this follows the code, which predicts before the update and weighs by
plain distances. Styles come from the first convolutions of the network itself, or from its input where it has none,
because nothing is downloaded; `vgg19="FILE"` with torchvision's weights gives the authors' layers. A variance is at
least 1e-8. Batches as large as the largest so far may open a domain, where the authors configure a size (`full_batch`).
Source styles are those of batches of the loader's size, which should be the stream's; they are pooled from moments of
single images, so that each image is passed once. A new domain starts without an average prediction. A batch without a
finite style (one vector) counts as one of the source's style and opens nothing. Of the bases, ETA is `fisher="none"`;
TENT, SAR and the prompt variant are not here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from slomofast.core.config import option
from slomofast.core.errors import ConfigError
from slomofast.core.optim import FlatOptimizer, OptimConfig
from slomofast.core.params import copy_network, flatten, unflatten
from slomofast.core.registry import register
from slomofast.core.rng import Rng
from slomofast.core.split import Classifier
from slomofast.core.style import Style, vgg19_layers
from slomofast.losses import certainty_diversity, entropy, information_maximisation, masked_mean, soft_likelihood_ratio
from slomofast.methods.eata import Eata, EataConfig
from slomofast.methods.eta import EtaConfig

STYLES = 1000  # source batches whose styles are compared, at least


@dataclass(frozen=True)
class ReservoirTTAConfig(EataConfig):
    """Options of ReservoirTTA; symbols of the paper in brackets."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "imagenet": EtaConfig.PRESETS["imagenet"],
        "ccc_roid": {**EtaConfig.PRESETS["imagenet"], "base": "roid", "style_buffer": 4096},
        "ccc_vit": {**EtaConfig.PRESETS["imagenet"], "lr": 1e-4},
    }

    fisher_weight: float = option(2000.0, "weight of the penalty [beta]", low=0.0)
    base: Literal["eata", "roid"] = option("eata", "how a copy learns; roid: without consistency and prior correction")
    max_domains: int = option(16, "copies of the trained weights, at most [K_max]", low=1)
    init: Literal["information", "source"] = option(
        "information", "a new copy starts from the one of highest mutual information on the batch, or from the source"
    )
    ensemble: bool = option(True, "predict with the average of the copies, or with that of the nearest domain")
    quantile: float = option(
        0.999, "of the distances between source styles: beyond it a domain is new", above=0, high=1
    )
    source_images: int = option(2000, "source images for these styles", low=2)
    style_layers: int = option(3, "convolutions of the network, counted from the input, that make the style", low=1)
    vgg19: str | None = option(None, "file of torchvision's VGG-19 weights: conv1_2, conv2_1, conv2_2 make the style")
    style_buffer: int = option(1024, "styles kept for the centres to learn from, once all domains are open [M]", low=1)
    centre_lr: float = option(1e-4, "step size of the centres", low=0.0)
    centre_decay: float = option(0.01, "AdamW's decay of the centres, towards the source's style", low=0.0)
    full_batch: int = option(0, "images of a batch that may open a domain; 0 for the most seen so far", low=0)
    source_momentum: float = option(0.99, "roid: share of the adapted weights kept after a step", low=0.0, high=1.0)
    temperature: float = option(1 / 3, "roid: of the sample weights; lower is more selective", above=0.0)
    clip: float = option(0.99, "roid: largest probability in the likelihood ratio", above=0.0, high=0.999999)

    def validate(self) -> None:
        if self.style_buffer < self.max_domains:
            raise ConfigError(
                f"style_buffer must be at least max_domains ({self.max_domains}), a place for every domain, got "
                f"{self.style_buffer}"
            )


@register("reservoirtta", paper="arXiv:2505.14511", trains="norm layers", needs_source=True,
          returns="logits of the weights averaged over domains, from before the update")  # fmt: skip
class ReservoirTTA(Eata):
    """Keep a copy of the trained weights for every domain, found by its style, and let only the nearest one learn."""

    Config: ClassVar[type[ReservoirTTAConfig]] = ReservoirTTAConfig
    config: ReservoirTTAConfig
    full: Tensor

    def build(self, model: Classifier) -> None:
        super().build(model)
        config = self.config
        if config.base == "roid":
            self.average.fill_(1.0 / self.classes)
        shape = self.sample_shape or ()
        if config.vgg19:
            if len(shape) != 3 or shape[0] != 3:
                raise ConfigError(
                    f"vgg19 looks at images of three channels, got samples of shape {shape}; leave it out"
                )
            network, which = vgg19_layers(config.vgg19).to(self.device), slice(1, 4)
        else:
            network, which = copy_network(model, statistics="source"), slice(config.style_layers)
        self.style = Style(network, torch.zeros(2, *shape, device=self.device), which)
        self.reservoir = Reservoir(config, self.style.size, flatten(self._held()), self.source.numel())
        self.register_buffer("full", torch.full((), config.full_batch, device=self.device))

    def predictor(self) -> nn.Module:
        network = self.student
        if isinstance(network, Classifier):  # without recorded passes: those know one place for the weights
            network = Classifier(network.body, network.head)
        return Blend(network, self.style, self.reservoir, self.config.ensemble)

    @property
    def needs_source(self) -> bool:
        return True

    def learn_source(self, loader: Iterable[tuple[Tensor, Tensor]]) -> None:
        config = self.config
        found: list[tuple[Tensor, Tensor]] = []

        def left() -> int:
            return config.source_images - sum(len(mean) for mean, _ in found)

        def watched() -> Iterator[tuple[Tensor, Tensor]]:
            for images, labels in loader:
                if left():
                    found.append(self.style.moments(images[: left()]))
                yield images, labels

        batches = watched()
        if config.base == "eata" and super().needs_source:
            super().learn_source(batches)
        while left() and next(batches, None) is not None:
            pass
        mean, variance = (torch.cat(part) for part in zip(*found, strict=True))
        size = config.full_batch or len(found[0][0])
        if len(mean) <= size:
            raise ConfigError(
                f"styles of source batches cannot be compared: {len(mean)} images make one batch of {size}. Give more "
                "images, or batches of the stream's size"
            )
        styles: list[Tensor] = []
        while len(styles) < STYLES:
            order = self.rng.order(len(mean))
            chosen = [torch.tensor(order[k : k + size], device=self.device) for k in range(0, len(order), size)]
            styles += [self.style.pooled(mean[rows], variance[rows]) for rows in chosen]
        self.reservoir.fit(torch.stack(styles), config.quantile)

    def adapt(self, x: Tensor) -> Tensor:
        style, fine = self.reservoir.relative(self.style(x))
        fine = self.usable(fine)
        if not self.config.full_batch:
            self.full.copy_(torch.where(fine, self.full.clamp(min=len(x)), self.full))
        q, new = self.reservoir.follow(style, fine, self.full <= len(x), self.rng)
        if self.config.init == "information":
            self._choose_start(x, new)
        nearest = q.argmax()[None]
        averaged: Tensor | None = None
        if self.config.ensemble:
            with torch.no_grad():
                self._wear(self.reservoir.mixed(q))
                averaged = self.student(x)
        self._take(nearest)
        own = self.look(x)
        self._learn(own)
        self._put(nearest)
        self.log("domain", nearest[0])
        self.log("domains", self.reservoir.count.clone())
        self.log("new_domain", new)
        self.log("share", q.max())
        return own if averaged is None else averaged

    def _learn(self, logits: Tensor) -> None:
        """One step of the copy that the student wears, by the base method."""
        if self.config.base == "roid":
            loss, usable = self._certain_and_diverse(logits.float())
            self.update(loss, when=usable)
            weights = flatten(self.optimizer().targets).to(self.device)
            self._wear(weights.lerp(self.source, (1.0 - self.config.source_momentum) * usable))
        else:
            loss, kept = self.objective(logits)
            loss = loss + self.penalty(logits)
            self.update(loss, when=kept.any())
        self.log("loss", loss)

    def _certain_and_diverse(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """ROID's loss without consistency, and whether the batch counts; it joins the average prediction."""
        weight, kept = certainty_diversity(logits.detach(), self.average, self.config.temperature)
        now = logits.detach().softmax(1).mean(0)
        usable = self.usable(torch.isfinite(now).all())
        moved = self.average.lerp(now, 1.0 - self.config.probability_momentum)
        self.average.copy_(torch.where(usable, moved, self.average))
        self.log("share_kept", kept.float().mean())
        return (weight * soft_likelihood_ratio(logits, self.config.clip)).sum() / len(logits), usable

    @torch.no_grad()
    def _choose_start(self, x: Tensor, new: Tensor) -> None:
        """Give a domain that was just opened the weights and moments of the copy that is best informed about `x`."""
        opened, domains = torch.stack([new.long(), self.reservoir.count]).tolist()  # the one wait
        if not opened:
            return
        scores = []
        for weights in self.reservoir.weights[: domains - 1]:
            self._wear(weights)
            scores.append(information_maximisation(self.student(x).float()))
        self.reservoir.clone(torch.stack(scores).argmin()[None], domains - 1, self.classes + 1)

    def _held(self) -> list[Tensor]:
        """What belongs to one copy: weights, the optimiser's moments, the base method's average."""
        steps = self.optimizer()
        moving = [*steps.targets, steps.count, steps.first, steps.second] if steps.targets else []
        return [*moving, self.average, self.started]

    @torch.no_grad()
    def _wear(self, weights: Tensor) -> None:
        """Let the student have these weights, given as one vector."""
        targets = cast(list[Tensor], self.optimizer().targets)
        if targets:
            torch._foreach_copy_(targets, unflatten(weights, targets))

    @torch.no_grad()
    def _take(self, domain: Tensor) -> None:
        held = self._held()
        *parts, started = unflatten(self.reservoir.copies.index_select(0, domain)[0], held)
        torch._foreach_copy_(held[:-1], parts)
        self.started.copy_(started > 0)

    @torch.no_grad()
    def _put(self, domain: Tensor) -> None:
        self.reservoir.copies.index_copy_(0, domain, flatten(self._held())[None])


class Reservoir(nn.Module):
    """Domains found so far: where their styles lie, and what the copy of each has learned.

    Styles are relative to the source's, so that the first domain lies at zero. A centre is where its domain was opened
    plus how far it has moved since.

    Args:
        style: length of a style.
        copy: what a copy holds at first, in one vector; its weights are the first `weights` values.
    """

    origin: Tensor
    threshold: Tensor
    opened: Tensor
    count: Tensor
    copies: Tensor
    styles: Tensor
    filled: Tensor
    seen: Tensor

    def __init__(self, config: ReservoirTTAConfig, style: int, copy: Tensor, weights: int) -> None:
        super().__init__()
        domains, device, self.size = config.max_domains, copy.device, weights
        self.places, self.decay = config.style_buffer // domains, config.centre_decay * config.centre_lr
        self.register_buffer("origin", torch.zeros(style, device=device))
        self.register_buffer("threshold", torch.full((), float("inf"), device=device))
        self.register_buffer("copies", copy.float().repeat(domains, 1))
        self.register_buffer("count", torch.ones((), dtype=torch.int64, device=device))
        self.register_buffer("opened", torch.zeros(domains, style, device=device))
        self.moved = nn.Parameter(torch.zeros(domains, style, device=device))
        self.optimizer = FlatOptimizer([self.moved], OptimConfig(lr=config.centre_lr))
        # a sample of earlier styles: how many there are, and the counter that says how likely one is replaced
        self.register_buffer("styles", torch.zeros(self.places * domains, style, device=device))
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64, device=device))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64, device=device))

    @property
    def weights(self) -> Tensor:
        """Trained weights of every copy (K, P)."""
        return self.copies[:, : self.size]

    @torch.no_grad()
    def fit(self, styles: Tensor, quantile: float) -> None:
        """Take the source's style and the distance at which a style is new from styles (N, D) of source batches."""
        styles = styles[torch.isfinite(styles).all(1)][:5000]  # the quantile of more pairs is refused
        distances = F.pdist(styles) if len(styles) > 1 else styles.new_zeros(1)
        distances = distances[distances > 0]
        if not len(distances):
            raise ConfigError(
                "all source batches have the same style, or none at all; check the images and their number"
            )
        self.origin.copy_(styles.mean(0))
        self.threshold.copy_(distances.quantile(quantile))

    def relative(self, style: Tensor) -> tuple[Tensor, Tensor]:
        """A style from the source's; and whether it is finite, as zeros stand for one that is not."""
        fine = torch.isfinite(style).all()
        return torch.where(fine, style - self.origin, 0.0), fine

    def scores(self, styles: Tensor) -> Tensor:
        """Minus the distances (N, K) of styles (N, D) to the centres; very low where no domain is open yet."""
        centres = self.opened + self.moved
        # written out, differences keep the digits that a matrix product loses
        distances = torch.cdist(styles, centres, compute_mode="donot_use_mm_for_euclid_dist")
        closed = torch.arange(len(centres), device=styles.device) >= self.count
        return (-distances).masked_fill(closed, -1e9)

    def mixed(self, q: Tensor) -> Tensor:
        """Average (P,) of the copies' weights."""
        return (q[:, None] * self.weights).sum(0)

    def follow(self, style: Tensor, fine: Tensor, full: Tensor, rng: Rng) -> tuple[Tensor, Tensor]:
        """Shares (K,) of the domains in a style, and whether it opened one; then centres and kept styles move on.

        Args:
            fine: whether the style counts; otherwise nothing changes.
            full: whether it comes from a batch that may open a domain.
        """
        with torch.autocast(style.device.type, enabled=False):  # it would round distances to three digits
            new = self._open(style, fine & full)
            rows = torch.cat([self.styles, style[None]])
            counts = torch.cat([torch.arange(len(self.styles), device=style.device) < self.filled, fine[None]])
            scores = self.scores(rows)
            shares = scores.softmax(1)
            mean = torch.where(counts[:, None], shares, 0.0).sum(0) / counts.sum().clamp(min=1)
            loss = masked_mean(entropy(scores), counts) + (mean * (mean + 1e-8).log()).sum()
            gradients = torch.autograd.grad(loss, [self.moved])
        with torch.no_grad():
            # AdamW: the share that decays is of the centres before the step, and goes only where a step was made
            decayed, steps = self.decay * (self.opened + self.moved), self.optimizer.count.clone()
            self.optimizer.step(gradients, loss, fine)
            self.moved.sub_(decayed * (self.optimizer.count > steps))
            self._keep(style, fine, rng)
        return shares[-1].detach(), new

    @torch.no_grad()
    def clone(self, source: Tensor, target: int, fresh: int) -> None:
        """Let copy `target` hold what copy `source` (1,) does, except the last `fresh` values."""
        self.copies[target, :-fresh] = self.copies.index_select(0, source)[0, :-fresh]

    @torch.no_grad()
    def _open(self, style: Tensor, may: Tensor) -> Tensor:
        """Open a domain at a style that is far from all centres; the centres' optimiser then starts anew."""
        distance = -self.scores(style[None]).max()
        new = may & (distance > self.threshold) & (self.count < len(self.opened))
        place = torch.arange(len(self.opened), device=style.device) == self.count
        self.opened.copy_(torch.where((place & new)[:, None], style, self.opened))
        self.count += new
        self.optimizer.forget(new)
        return new

    def _keep(self, style: Tensor, fine: Tensor, rng: Rng) -> None:
        """Reservoir sampling over as many places as the open domains have; the count is cut, so that it never ends."""
        capacity = self.places * self.count
        full = self.filled >= capacity
        place = torch.where(full, (rng.uniform(1) * self.seen).long(), self.filled)
        place, stays = place.clamp(max=len(self.styles) - 1), ~fine | (place >= capacity)
        kept = torch.where(stays[:, None], self.styles.index_select(0, place), style)
        self.styles.index_copy_(0, place, kept)
        self.filled += fine & ~full
        self.seen.copy_(torch.where(fine & full & (self.seen > 10 * capacity), capacity, self.seen) + fine)


class Blend(nn.Module):
    """A network with the average of all copies' weights, weighted by how near their domains are to a batch's style."""

    def __init__(self, network: nn.Module, style: Style, reservoir: Reservoir, ensemble: bool) -> None:
        super().__init__()
        self.network, self.style, self.reservoir, self.ensemble = network, style, reservoir, ensemble
        self.names = [name for name, p in network.named_parameters() if p.requires_grad]

    def forward(self, x: Tensor) -> Tensor:
        style, _ = self.reservoir.relative(self.style(x))
        with torch.autocast(x.device.type, enabled=False):
            q = self.reservoir.scores(style[None]).softmax(1)[0]
        if not self.ensemble:
            q = (torch.arange(len(q), device=q.device) == q.argmax()).float()
        weights = unflatten(self.reservoir.mixed(q), [self.network.get_parameter(name) for name in self.names])
        return cast(Tensor, functional_call(self.network, dict(zip(self.names, weights, strict=True)), (x,)))
