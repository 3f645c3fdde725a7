"""SloMo-Fast: a student between a fast teacher that follows it and a slow teacher that remembers.

The fast teacher T1 is a moving average of the student S. Its confident, shape-dependent predictions fill one small
queue of features per class; their weighted means are prototypes made from the unlabeled stream. The slow teacher T2
learns from the prototypes where T1 is sure and T2 is not, is kept certain and diverse, and is pulled back to the source
at random places, so that it generalises over conditions that come back. S agrees with both teachers; S and T2 predict.

Reference: "SloMo-Fast: Slow-Momentum and Fast-Adaptive Teachers for Source-Free Continual Test-Time Adaptation",
arXiv:2511.18468. `slomo_fast` trains the student's normalisation layers, `slomo_fast_star` all of its parameters.

The defaults go beyond the paper, chosen on the four extra corruptions: the student learns from an augmented view and is
itself kept certain and diverse, T2 learns from all samples, T1 looks at an image and at its mirror image, T2 at the
mirror image; all three predict. In the star variant T1 alone predicts and keeps a share of the source, T2 stays close
to it, and images under the same condition share BatchNorm's statistics. Four choices save passes: the contrastive loss
takes its second view from the student's pass, a quarter of the batch is tried for the queues, T2 learns from every
other batch, and a student that does not predict looks at the augmented view alone.
`preset="paper"` is the published form.

The prediction returned is made before the step's updates. Where the paper leaves a choice or contradicts itself, the
choice made here and its reason stand in docs/reading-the-paper.md. The main ones: alpha is the share of the old
teacher; the second term of the information-maximisation loss has the sign that rewards diversity; the contrastive loss
is a mean, not a sum; the prototype distance is divided by the feature size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from slomofast.augment import MEAN_TEACHER, Destruction, Per, augment, destroy
from slomofast.conditions import Conditions, Unmixed, can_tell, marks
from slomofast.core.adapter import Adapter, Ensemble
from slomofast.core.config import option, other_default
from slomofast.core.errors import ConfigError
from slomofast.core.neighbours import Neighbours
from slomofast.core.norms import norm_kinds, share_neighbours
from slomofast.core.optim import OptimConfig
from slomofast.core.params import (
    copy_network,
    copy_weights,
    ema_update,
    flatten,
    projector,
    restore,
    trainable,
)
from slomofast.core.registry import register
from slomofast.core.split import Classifier, feature_size
from slomofast.losses import (
    certainty_diversity,
    contrastive,
    entropy,
    information_maximisation,
    masked_mean,
    prediction_change,
    soft_likelihood_ratio,
    symmetric_cross_entropy,
)
from slomofast.memory import PrototypeQueues, nearest
from slomofast.voting import Mirror, Vote, mirror_holds, mirrored

PARTNERS = ("fast", "slow", "fast_aug", "slow_aug")
MEMBERS = ("student", "fast", "slow")
LEAST_CANDIDATES = 32  # fewer images make poor batch statistics
UNMIRRORED = replace(MEAN_TEACHER, flip=False)
PAPER = {
    "consistency": ("fast", "slow"),
    "slow_share": 1.0,
    "members": ("student", "slow"),
    "select": "uncertain",
    "student_information": 0.0,
    "student_contrast": 0.0,
    "conditions": 0,
    "contrast_with": "slow",
    "candidates": 1.0,
    "soften": False,
    "against": "uniform",
    "mirror": False,
    "augment_per": "batch",
    "fast_momentum": 0.99,
    "fast_anchor": 0.0,
    "past_share": 0.0,
    "student_recall": 0.0,
    "full_batch": 0,
    "slow_every": 1,
    "restore": 0.01,
    "momentum": 0.9,
}
"""The published form, where it differs from the defaults."""


@dataclass(frozen=True)
class SloMoFastConfig(OptimConfig):
    """Options of SloMo-Fast; symbols of the paper in brackets."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {**PAPER, "lr": 1e-3}}

    lr: float = option(6e-3, "step size", low=0.0)
    consistency: tuple[str, ...] = option(
        ("fast_aug", "slow_aug"),
        "teachers the student agrees with; _aug: with an augmented view of its own",
        choices=PARTNERS,
    )
    slow_share: float = option(1.0, "weight of the agreement with the slow teacher", low=0.0)
    weighting: Literal["none", "certainty"] = option("none", "weigh the student's samples by certainty and diversity")
    student_information: float = option(1.0, "weight of information maximisation on the student", low=0.0)
    student_contrast: float = option(0.0, "weight of the contrastive loss on the student's features", low=0.0)
    student_ratio: float = option(0.0, "weight of the soft likelihood ratio on the student", low=0.0)
    student_pull: float = option(0.0, "share of the way the student returns to the source per step", low=0.0, high=1.0)
    student_follow: float = option(0.0, "share of the way the student returns to T1 per step", low=0.0, high=1.0)
    slow_agreement: float = option(0.0, "weight of T2's agreement with T1", low=0.0)
    members: tuple[str, ...] = option(
        ("student", "fast", "slow"), "networks whose logits are added to predict", choices=MEMBERS
    )
    mirror: bool = option(
        True, "T1 looks at both the image and its mirror image, T2 at the latter, while sure predictions agree on both"
    )
    conditions: int = option(
        0,
        "groups of images told apart by their detail, such as 12: BatchNorm's statistics are those of images under the "
        "same condition, where a batch mixes several; 0: those of the batch",
        low=0,
    )
    conditions_apart: float = option(7.0, "deviations from which two groups are different conditions", above=0.0)
    conditions_shared: float = option(50.0, "images' worth of the whole batch in a group's statistics", above=0.0)
    select: Literal["uncertain", "all"] = option("all", "samples T2 learns from: where T1 is sure and T2 not, or all")
    fast_momentum: float = option(0.999, "share of the old fast teacher per step [alpha]", low=0.0, high=1.0)
    fast_warmup: float = option(
        0.0, "T1 begins as a mean of the student's past: 1 plain, more for later steps weigh more, 0 for never", low=0.0
    )
    fast_prior: int = option(0, "more steps that the source counts for in that mean", low=0)
    fast_anchor: float = option(0.0, "share of the way T1 returns to the source per step", low=0.0, high=1.0)
    past_share: float = option(
        0.0,
        "share of the mean of its own past in T1, reached as the past grows: what a long visit takes away is still "
        "there; 0: none",
        low=0.0,
        high=1.0,
    )
    student_recall: float = option(
        0.0,
        "share of the way the student returns to that mean per step, reached as the past grows",
        low=0.0,
        high=1.0,
    )
    past_momentum: float = option(
        0.998, "share of the old mean per step, at first that of a plain mean", low=0.0, high=1.0
    )
    full_batch: int = option(
        0,
        "images of a full batch; of smaller ones S learns less, by the root, and S and T1 return less, in proportion; "
        "0: never",
        low=0,
    )
    slow_lr: float = option(1e-3, "step size of T2's norm layers", low=0.0)
    slow_every: int = option(2, "batches between two updates of T2; it looks at all of them", low=1)
    projector_lr: float = option(1e-2, "step size of the projector", low=0.0)
    entropy_threshold: float = option(0.5, "largest entropy of a sure prediction [sigma]", above=0.0)
    threshold_unit: Literal["nats", "share"] = option("nats", "sigma in nats, or as a share of ln(classes)")
    change_threshold: float = option(0.2, "least loss of probability under destruction [delta]", low=-1.0, high=1.0)
    destruction: Destruction = option("patch", "how the object's shape is destroyed")
    destroyed_views: int = option(1, "destroyed views that are averaged", low=1)
    candidates: float = option(
        0.25,
        "share of the batch tried for the queues, as every n-th image (n rounded), at least 32",
        above=0.0,
        high=1.0,
    )
    queue_size: int = option(10, "features kept per class [K]", low=1)
    prune_every: int = option(50, "batches between removals of the surest entry, 0 for never [p]", low=0)
    contrastive_weight: float = option(1.0, "weight of the contrastive loss [lambda_CL]", low=0.0)
    contrast_with: Literal["slow", "student"] = option(
        "student", "whose features of the second view: T2's own, or those of the pass the student learns from"
    )
    prototype_weight: float = option(1.0, "weight of the distance to the prototype [lambda_MSE]", low=0.0)
    information_weight: float = option(1.0, "weight of information maximisation [lambda_IM]", low=0.0)
    temperature: float = option(0.1, "of the contrastive loss [tau]", above=0.0)
    projection: int = option(128, "width of the projector", low=1)
    restore: float = option(
        0.01, "share of T2's trained weights returned to the source per step [r]", low=0.0, high=1.0
    )
    restore_student: float = option(0.0, "the same for the student", low=0.0, high=1.0)
    calibrate: bool = option(True, "multiply the posterior by the batch's estimated class prior")
    against: Literal["auto", "uniform", "usual"] = option(
        "auto",
        "that prior is as it is (uniform), or relative to the mean prediction of about twenty batches (usual); auto: "
        "as it is with BatchNorm, whose batch statistics leave a network no lasting preferences",
    )
    smoothing: float = option(1.0, "added to every class count of that prior [a]", above=0.0)
    soften: bool = option(True, "divide the sum by the number of members: as sure as one network, the same argmax")
    augment_flip: bool = option(True, "mirror images at random; off where a mirror image means another thing")
    augment_per: Per = option("image", "draw augmentation parameters once per batch or once per image")

    def validate(self) -> None:
        for name in ("consistency", "members"):
            chosen = getattr(self, name)
            if not chosen or len(set(chosen)) != len(chosen):
                raise ConfigError(f"{name} must name each choice once and at least one, got {chosen!r}")
        if (self.past_share or self.student_recall) and self.past_momentum == 1:
            raise ConfigError("with past_momentum=1 the past never counts; give less, for example 0.9999")


class SloMoFastAdapter(Adapter):
    """What both variants share: three networks, the queues, one step."""

    clips_views = True
    Config = SloMoFastConfig
    config: SloMoFastConfig
    part: ClassVar[Literal["norm", "all"]] = "norm"
    student: Classifier
    slow_source: Tensor
    student_source: Tensor
    anchor: Classifier | None
    recent: Classifier | None
    past: Classifier | None
    conditions: Conditions | None
    average: Tensor
    agreement: Tensor

    def build(self, model: Classifier) -> None:
        config = self.config
        self.student = copy_network(model, train=self.part)
        self.fast = copy_network(model)
        self.slow = copy_network(model, train="norm")
        self.anchor = copy_network(model) if config.fast_anchor or config.student_pull else None
        remembers = config.past_share > 0 or config.student_recall > 0  # T1 is then made of `recent` and `past`
        self.recent, self.past = (copy_network(model) if remembers else None for _ in range(2))
        dim, weight = feature_size(model, self.sample_shape, self.device), next(model.parameters())
        self.projector = projector(dim, config.projection, self.rng).to(self.device)
        self.queues = PrototypeQueues(self.classes, config.queue_size, dim, self.device, weight.dtype)
        self.neighbours, self.conditions = Neighbours(), None
        if config.conditions and "batch" in norm_kinds(model) and can_tell(self.sample_shape or ()):
            self.conditions = Conditions(
                config.conditions, apart=config.conditions_apart, shared=config.conditions_shared
            ).to(self.device)
            for network in self._networks().values():
                share_neighbours(network, self.neighbours)
        self.optimize("student", self.student, **self.student_steps())
        self.optimize("slow", self.slow, lr=config.slow_lr)
        self.optimize("projector", self.projector, lr=config.projector_lr)
        self.register_buffer("slow_source", flatten(trainable(self.slow)))
        self.register_buffer("student_source", flatten(trainable(self.student) if config.restore_student else []))
        self.register_buffer("average", torch.full((self.classes,), 1.0 / self.classes, device=self.device))
        self.register_buffer("agreement", torch.full((), -1.0, device=self.device))  # below zero: not known yet
        relative = config.against == "usual" or (config.against == "auto" and "batch" not in norm_kinds(model))
        self.vote = Vote(
            self.classes,
            looks={"fast": 2} if self.mirrors else {},
            calibrate=config.calibrate,
            relative=relative,
            smoothing=config.smoothing,
            soften=config.soften,
        ).to(self.device)
        share = math.log(self.classes) if config.threshold_unit == "share" else 1.0
        self.sure_below = config.entropy_threshold * share

    def student_steps(self) -> dict[str, Any]:
        """Size and kind of the student's steps, where the config's do not count."""
        return {}

    def members(self) -> dict[str, nn.Module]:
        return {name: self._unmixed(network) for name, network in self._networks().items()}

    def predictor(self) -> nn.Module:
        networks = self._networks()
        if self.mirrors:
            networks["fast"] = Mirror(self.fast, self.agreement, both=True)
            networks["slow"] = Mirror(self.slow, self.agreement, both=False)
        return self._unmixed(Ensemble({name: networks[name] for name in self.config.members}, self.vote))

    def _networks(self) -> dict[str, nn.Module]:
        return {"student": self.student, "fast": self.fast, "slow": self.slow}

    def _unmixed(self, network: nn.Module) -> nn.Module:
        return network if self.conditions is None else Unmixed(network, self.conditions, self.neighbours)

    def adapt(self, x: Tensor) -> Tensor:
        config = self.config
        self._tell_apart(x)
        fast_z, fast, sure = self._observe(x)
        prototypes, present = self.queues.prototypes()
        view = self._view(x)

        (student_z, student), (seen_z, seen) = self._student_looks(x, view)
        slow_learns = self.steps % config.slow_every == 0
        with torch.set_grad_enabled(slow_learns):
            slow_z, slow = _float(self.slow.both(mirrored(x, self.agreement) if self.mirrors else x))
        self.member_logits = {"fast": fast, "slow": slow.detach()}
        if self.looks_at_clean:
            self.member_logits = {"student": student.detach(), **self.member_logits}
        voters = {name: self.member_logits[name] for name in config.members}
        self.vote.remember(voters, self.steps, self.usable(torch.ones_like(sure[0])))
        output = self.vote(voters)

        loss = self._student_loss(student, seen, fast, slow.detach())
        if config.student_contrast:
            clean_z = student_z if self.learns_from_clean else fast_z
            loss = loss + config.student_contrast * self._contrast(clean_z, seen_z, prototypes, present)
        filled = self._filled(len(x))
        self.update(loss, "student", pace=math.sqrt(filled) if filled < 1 else None)
        if config.restore_student:
            restore(trainable(self.student), self.student_source, config.restore_student, self.rng)
        if self.anchor is not None and config.student_pull:
            ema_update(self.student, self.anchor, 1.0 - config.student_pull * filled)
        self._follow(filled)

        if slow_learns:
            second = seen_z.detach() if config.contrast_with == "student" else self._second_view(view)
            self.update(self._slow_loss(second, slow_z, slow, fast, sure, prototypes, present), "slow", "projector")
            restore(trainable(self.slow), self.slow_source, config.restore, self.rng)
        self._log_members(self.member_logits)
        return output

    def _follow(self, filled: float) -> None:
        """T1 follows the student, S returns to T1 and T1 to the source, as far as asked for; T1 remembers its past."""
        config = self.config
        recent = self.fast if self.recent is None else self.recent
        steps, kept = self.steps + 1, config.past_momentum
        grown = 1.0 - kept**steps  # how much of a past there is
        if self.past is not None and config.student_recall:
            ema_update(self.student, self.past, 1.0 - config.student_recall * grown * filled)
        ema_update(recent, self.student, self.fast_share)
        if config.student_follow:
            ema_update(self.student, recent, 1.0 - config.student_follow * filled)
        if self.anchor is not None and config.fast_anchor:
            ema_update(recent, self.anchor, 1.0 - config.fast_anchor * filled)
        if self.past is not None:
            ema_update(self.past, recent, min(kept, steps / (steps + 1)))
            copy_weights(self.fast, recent)
            ema_update(self.fast, self.past, 1.0 - config.past_share * grown)

    def _tell_apart(self, x: Tensor) -> None:
        """Learn what conditions look like, and tell the norm layers whose statistics each image is normalised with."""
        if self.conditions is None:
            return
        found = marks(x)
        with self.only_if_usable(self.conditions.buffers()):
            self.conditions.learn(found, self.steps)
        self.alike = self.conditions.alike(found)
        rows = self.conditions.rows(self.alike)
        self.neighbours.set(rows)
        self.log("group_size", 1.0 / rows.square().sum(1).mean())

    def _filled(self, images: int) -> float:
        """How full a batch is. The noise of a gradient grows as batches shrink; ways back are counted in images."""
        return min(1.0, images / self.config.full_batch) if self.config.full_batch else 1.0

    @property
    def fast_share(self) -> float:
        """Share of the old fast teacher in this step."""
        share, power, past = self.config.fast_momentum, self.config.fast_warmup, self.steps + 1 + self.config.fast_prior
        return min(share, past / (past + power)) if power else share

    @property
    def mirrors(self) -> bool:
        """Whether the teachers look at mirror images."""
        return self.config.mirror and self.config.augment_flip

    def _student_looks(self, x: Tensor, view: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The student's features and logits of the batch and of its augmented view; one may stand for both."""
        plain = seen = None
        if self.looks_at_clean:
            with torch.set_grad_enabled(self.learns_from_clean):
                plain = _float(self.student.both(x))
        if self.learns_from_view:
            seen = _float(self.student.both(view))
        return cast(Any, (plain or seen, seen or plain))

    @property
    def learns_from_clean(self) -> bool:
        """Whether the student learns from the batch as it is, or from its augmented view alone."""
        return bool({"fast", "slow"} & set(self.config.consistency))

    @property
    def learns_from_view(self) -> bool:
        """Whether the student learns from an augmented view."""
        return any(partner.endswith("_aug") for partner in self.config.consistency)

    @property
    def looks_at_clean(self) -> bool:
        """Whether the student needs a pass over the batch as it is: to learn, to predict, to weigh samples."""
        predicts = "student" in self.config.members
        return self.learns_from_clean or predicts or self.config.weighting != "none"

    def _second_view(self, view: Tensor) -> Tensor:
        """T2's features of the augmented view, where the contrastive loss wants them."""
        return self.slow.features(view).float() if self.config.contrastive_weight else view

    def _log_members(self, logits: dict[str, Tensor]) -> None:
        for name, member in logits.items():
            self.log(f"entropy_{name}", entropy(member).mean())
        for one, other in combinations(logits, 2):
            differing = logits[one].argmax(1) != logits[other].argmax(1)
            self.log(f"disagreement_{one}_{other}", differing.float().mean())

    @torch.no_grad()
    def _observe(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """T1's view of the batch, and the confident, shape-dependent part of it into the queues."""
        config = self.config
        z, logits = self.fast.both(x)
        logits = logits.float()
        if self.mirrors:
            logits = self._with_mirror_image(logits, self.fast(x.flip(-1)).float())
        uncertainty = entropy(logits)
        sure = uncertainty <= self.sure_below
        # every n-th image, another first one each time
        stride = max(1, min(round(1 / config.candidates), len(x) // LEAST_CANDIDATES))
        tried = slice(self.steps % stride, None, stride)
        if self.conditions is not None and stride > 1:
            self.neighbours.set(self.conditions.rows(self.alike[tried, tried]))
        views = [self.fast(destroy(x[tried], self.rng, config.destruction)) for _ in range(config.destroyed_views)]
        shaped = prediction_change(logits[tried], torch.stack(views).float()) >= config.change_threshold
        fit = sure[tried] & shaped
        self.queues.push(z[tried], uncertainty[tried], logits[tried].argmax(1), self.usable(fit))
        if config.prune_every and (self.steps + 1) % config.prune_every == 0:
            self.queues.drop_most_confident()
        self.log("share_sure", sure.float().mean())
        self.log("share_shaped", shaped.float().mean())
        self.log("share_queued", fit.float().mean())
        self.log("queue_fill", self.queues.fill())
        return z.float(), logits, sure

    def _with_mirror_image(self, plain: Tensor, other: Tensor) -> Tensor:
        """The mean of T1's two looks, if sure predictions agree; letters and signs mean another thing in a mirror."""
        sure = self.usable(entropy(plain) <= self.sure_below)
        same = masked_mean((plain.argmax(1) == other.argmax(1)).float(), sure)
        moved = torch.where(self.agreement < 0, same, self.agreement.lerp(same, 0.1))
        self.agreement.copy_(torch.where(sure.any(), moved, self.agreement))
        self.log("mirror_agreement", self.agreement.clamp(min=0))
        return torch.where(mirror_holds(self.agreement), (plain + other) / 2, plain)

    def _view(self, x: Tensor) -> Tensor:
        """The augmented view, mirrored at random where mirror images mean the same."""
        config = self.config
        if not self.mirrors:
            return augment(x, self.rng, MEAN_TEACHER if config.augment_flip else UNMIRRORED, config.augment_per)
        view = augment(x, self.rng, UNMIRRORED, config.augment_per)
        chosen = self.rng.uniform(len(x) if config.augment_per == "image" else 1, 1, 1, 1) < 0.5
        return torch.where(chosen, mirrored(view, self.agreement), view)

    def _student_loss(self, student: Tensor, seen: Tensor, fast: Tensor, slow: Tensor) -> Tensor:
        """L_ST: agreement with the chosen teachers; beyond the paper: certain and diverse predictions of its own."""
        config = self.config
        weight = self._sample_weights(student.detach())
        total = torch.zeros_like(weight)
        for suffix, own in (("", student), ("_aug", seen)):
            if "fast" + suffix in config.consistency:
                total = total + symmetric_cross_entropy(own, fast)
            if "slow" + suffix in config.consistency:
                total = total + config.slow_share * symmetric_cross_entropy(own, slow)
        learning = student if self.learns_from_clean else seen
        if config.student_ratio:
            total = total + config.student_ratio * soft_likelihood_ratio(learning)
        loss = (weight * total).mean()
        if config.student_information:
            loss = loss + config.student_information * information_maximisation(learning)
        self.log("loss_student", loss)
        return loss

    @torch.no_grad()
    def _sample_weights(self, logits: Tensor) -> Tensor:
        """One per sample, or more for samples that are certain and unlike the average prediction."""
        if self.config.weighting == "none":
            return torch.ones_like(logits[:, 0])
        weight, kept = certainty_diversity(logits, self.average, 1 / 3)
        now = logits.softmax(1).mean(0)
        self.average.lerp_(torch.where(self.usable(torch.isfinite(now)), now, self.average), 0.1)
        self.log("share_weighted", kept.float().mean())
        return weight

    def _contrast(
        self, z: Tensor, second: Tensor, prototypes: Tensor, present: Tensor, chosen: Tensor | None = None
    ) -> Tensor:
        """L_CL: two views of an image and the prototype nearest to it belong together."""
        near = nearest(z.detach(), prototypes, present)
        chosen = present.any().expand(len(z)) if chosen is None else chosen
        return contrastive(self.projector(torch.stack([z, second, near])), self.config.temperature, chosen)

    def _slow_loss(
        self,
        second: Tensor,
        z: Tensor,
        logits: Tensor,
        fast: Tensor,
        sure: Tensor,
        prototypes: Tensor,
        present: Tensor,
    ) -> Tensor:
        """L_T2: prototypes where T1 is sure and T2 is not, and certain, diverse predictions everywhere."""
        config = self.config
        label, unsure = fast.argmax(1), entropy(logits.detach()) > self.sure_below
        chosen = (sure & unsure) if config.select == "uncertain" else torch.ones_like(sure)
        chosen = chosen & present[label]
        self.log("share_taught", chosen.float().mean())
        loss = torch.zeros((), device=self.device)
        if config.contrastive_weight:
            term = self._contrast(z, second, prototypes, present, chosen)
            self.log("loss_contrastive", term)
            loss = loss + config.contrastive_weight * term
        if config.prototype_weight:
            term = masked_mean((z - prototypes[label]).square().mean(1), chosen)
            self.log("loss_prototype", term)
            loss = loss + config.prototype_weight * term
        if config.information_weight:
            term = information_maximisation(logits)
            self.log("loss_information", term)
            loss = loss + config.information_weight * term
        if config.slow_agreement:
            term = symmetric_cross_entropy(logits, fast).mean()
            self.log("loss_slow_agreement", term)
            loss = loss + config.slow_agreement * term
        return loss


@register("slomo_fast", paper="arXiv:2511.18468", trains="norm layers", needs_features=True,
          returns="sum of the members' logits from before the update, calibrated")  # fmt: skip
class SloMoFast(SloMoFastAdapter):
    """A fast and a slow teacher with prototypes from the stream; only normalisation layers move."""


@dataclass(frozen=True)
class SloMoFastStarConfig(SloMoFastConfig):
    """Options of SloMo-Fast*, whose student trains all parameters."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {**PAPER, "lr": 3e-4}}

    lr: float | None = option(  # type: ignore[assignment]  # wider than in the other methods
        None, "step size; left out: student_share with BatchNorm, 1e-4 without", low=0.0
    )
    student_share: float = option(
        0.03, "with BatchNorm and no lr: the student's step, as a share of each tensor's root mean square", above=0.0
    )
    slow_share: float = other_default(SloMoFastConfig, "slow_share", 2.0)
    student_contrast: float = other_default(SloMoFastConfig, "student_contrast", 0.5)
    members: tuple[str, ...] = other_default(SloMoFastConfig, "members", ("fast",))
    conditions: int = other_default(SloMoFastConfig, "conditions", 12)
    momentum: float = other_default(SloMoFastConfig, "momentum", 0.5)
    fast_momentum: float = other_default(SloMoFastConfig, "fast_momentum", 0.98)
    fast_anchor: float = other_default(SloMoFastConfig, "fast_anchor", 0.01)
    full_batch: int = other_default(SloMoFastConfig, "full_batch", 200)
    restore: float = other_default(SloMoFastConfig, "restore", 0.3)

    def validate(self) -> None:
        super().validate()
        if self.relative and self.lr is None:
            raise ConfigError("relative=True needs a step size of its own: give lr as a share, for example lr=0.04")


@register("slomo_fast_star", paper="arXiv:2511.18468", trains="all parameters", needs_features=True,
          norms=("batch", "group", "layer", "none"),
          returns="sum of the members' logits from before the update, calibrated")  # fmt: skip
class SloMoFastStar(SloMoFastAdapter):
    """SloMo-Fast whose student moves all of its parameters."""

    Config = SloMoFastStarConfig
    config: SloMoFastStarConfig
    part = "all"

    def student_steps(self) -> dict[str, Any]:
        # a weight in front of BatchNorm has no scale of its own: a share of its size means the same to every network
        if self.config.lr is not None:
            return {}
        with_batch_norm = "batch" in norm_kinds(self.student)
        return {"lr": self.config.student_share, "relative": True} if with_batch_norm else {"lr": 1e-4}


def _float(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return pair[0].float(), pair[1].float()
