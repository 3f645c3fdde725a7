"""ViDA: a mean teacher whose layers carry two bottlenecks, one narrow and one wide, mixed in by how unsure it is.

The narrow bottleneck has room for what all domains share, the wide one for what is special to the present one. How far
the teacher's logits vary over augmented views is one figure per batch: from a threshold on it strengthens the wide and
weakens the narrow bottleneck, below it the other way round. The student, with all its weights, then learns from the
teacher on the clean images, and a random share of its weights returns to where they began.

J. Liu, S. Yang, P. Jia, R. Zhang, M. Lu, Y. Guo, W. Xue, S. Zhang: "ViDA: Homeostatic Visual Domain Adapter for
Continual Test Time Adaptation", ICLR 2024, arXiv:2306.04344. Returned are the teacher's logits from before the update,
under the shares that this batch has set. `predict` keeps the shares of the last batch.

Bottlenecks go beside the linear layers and packed projections of attention, and beside convolutions that are neither
the first nor grouped; in a network without either beside all linear layers but the last. Their products are added to
the weight: the same output as from branches of their own, for work that does not grow with the batch. `export` leaves
ordinary layers.

Departures: the loss goes both ways on every data set. One way, as published for CIFAR, it has no gradient while student
and teacher are equal, which nothing but rounding ends here, where dropout is off (`symmetric=False`). The authors
train the bottlenecks on source data first; here that is an option (`warmup_steps`), and without it they start from
random numbers of a size that lets them learn (`init="published"`: the authors'). Both shares are set, as in the
paper, and stay within 0 and 2; the public code sets the narrow one's alone (`allot="narrow"`). An uncertainty that is
not finite leaves the shares as they are. Batch statistics, convolutions and their options are our port: the authors'
code has transformers only.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from slomofast.augment import Per, augment
from slomofast.core.adapter import Adapter
from slomofast.core.config import option
from slomofast.core.errors import ConfigError, ModelError
from slomofast.core.optim import OptimConfig
from slomofast.core.params import copy_network, ema_update, flatten, restore, trainable
from slomofast.core.registry import register
from slomofast.core.split import Classifier
from slomofast.losses import distillation
from slomofast.memory import labelled

ATTENTION = re.compile(r"(attention|attn)(v\d+)?$", re.IGNORECASE)  # how classes of attention modules are named
PACKED = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")  # of nn.MultiheadAttention
Init = Literal["fan_in", "published"]
Allot = Literal["both", "narrow"]


@dataclass(frozen=True)
class VidaConfig(OptimConfig):
    """Options of ViDA."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "imagenet": {"optimizer": "sgd", "lr": 0.01, "adapter_lr": 1e-3, "restore": 0.001},
        "vit_cifar10": {"lr": 1e-4, "adapter_lr": 1e-5, "threshold": 0.05, "restore": 0.1},
        "vit_cifar100": {"lr": 3e-4, "adapter_lr": 1e-6, "threshold": 0.05, "restore": 0.1},
        "vit_imagenet": {
            "optimizer": "sgd", "lr": 5e-7, "adapter_lr": 2e-7, "adapter_momentum": 0.8, "restore": 0.0,
        },
    }  # fmt: skip

    lr: float = option(1e-3, "step size of the network's own weights", low=0.0)
    adapter_lr: float = option(1e-4, "step size of the bottlenecks", low=0.0)
    narrow: int = option(1, "rank of the narrow bottlenecks", low=1)
    wide: int = option(128, "rank of the wide bottlenecks", low=1)
    init: Init = option("fan_in", "spread of the first random numbers: 1 / sqrt(inputs), or the authors' 1 / rank^2")
    views: int = option(10, "augmented views of the teacher for the uncertainty", low=2)
    uncertainty_factor: float = option(0.1, "uncertainty per variance of logits", low=0.0)
    threshold: float = option(0.2, "uncertainty from which the wide bottlenecks gain", low=0.0)
    allot: Allot = option("both", "whose share follows the uncertainty: both bottlenecks', or the narrow one's alone")
    symmetric: bool = option(True, "agree in both directions, each with weight one half, or with the teacher alone")
    teacher_momentum: float = option(0.999, "share of the old teacher per step", low=0.0, high=1.0)
    adapter_momentum: float = option(0.999, "the same for its bottlenecks", low=0.0, high=1.0)
    restore: float = option(0.01, "share of the student's weights returned to the start per step", low=0.0, high=1.0)
    warmup_steps: int = option(0, "labelled source batches that the bottlenecks learn from before the stream", low=0)
    warmup_lr: float = option(1e-3, "step size of that", low=0.0)
    augment_per: Per = option("batch", "draw augmentation parameters once per view or once per image")


@register("vida", paper="arXiv:2306.04344", trains="all parameters and added bottlenecks",
          norms=("batch", "group", "layer", "none"),
          returns="teacher's logits from before the update")  # fmt: skip
class Vida(Adapter):
    """A mean teacher with a narrow and a wide bottleneck beside its layers, mixed in by the teacher's uncertainty."""

    clips_views = True
    Config = VidaConfig
    config: VidaConfig
    shares: Tensor
    initial: Tensor

    def build(self, model: Classifier) -> None:
        config = self.config
        self.student = copy_network(model, train="all")
        chosen = adapted_weights(self.student)
        if not chosen:
            raise ModelError("the model has no attention, convolution or linear layer to put bottlenecks beside")
        for layer, name in chosen:
            weight = getattr(layer, name)
            down = first_numbers(weight, config.narrow, config.wide, config.init, self.rng.host)
            parametrize.register_parametrization(layer, name, Bottlenecks(weight, down))
        self.teacher = copy_network(self.student)
        own, added = parameter_groups(self.student)
        self.optimize("student", own)
        self.optimize("adapters", added, config.adapter_lr)
        self.register_buffer("shares", torch.ones(config.narrow + config.wide, device=self.device))
        kept = flatten(trainable(self.student)) if config.restore else torch.zeros(0, device=self.device)
        self.register_buffer("initial", kept)

    def members(self) -> dict[str, nn.Module]:
        return {"teacher": self.teacher, "student": self.student}

    def export(self) -> nn.Module:
        plain = super().export()
        for layer in list(plain.modules()):
            if parametrize.is_parametrized(layer):
                fold(layer)
        return plain

    @property
    def needs_source(self) -> bool:
        return self.config.warmup_steps > 0

    def learn_source(self, loader: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Let the bottlenecks alone learn source labels; what comes out is the start that `restore` knows."""
        config, optimizer = self.config, self.optimizer("adapters")
        if not config.warmup_steps:
            raise ConfigError("warmup_steps=0 takes nothing from source data; drop the call of fit_source")
        optimizer.lr = config.warmup_lr
        for images, labels in itertools.islice(labelled(loader, self.classes), config.warmup_steps):
            self.update(F.cross_entropy(self.student(images).float(), labels), "adapters")
        optimizer.lr = config.adapter_lr
        optimizer.forget()
        ema_update(self.teacher, self.student, 0.0)
        if config.restore:
            self.initial.copy_(flatten(trainable(self.student)))

    def adapt(self, x: Tensor) -> Tensor:
        config = self.config
        with torch.no_grad():
            self._allot(x)
            target = self.teacher(x).float()
        logits = self.student(x).float()
        loss = distillation(logits, target, config.symmetric)
        self.update(loss)
        pairs = zip(parameter_groups(self.teacher), parameter_groups(self.student), strict=True)
        for (old, new), momentum in zip(pairs, (config.teacher_momentum, config.adapter_momentum), strict=True):
            ema_update(old, new, momentum)
        # after the teacher's update: restored values reach it with the next one
        restore(trainable(self.student), self.initial, config.restore, self.rng)
        self.log("loss", loss)
        return target

    def _allot(self, x: Tensor) -> None:
        """Set the bottlenecks' shares in both networks by how far the teacher's logits vary over views."""
        config = self.config
        # a pass for each view, because BatchNorm's statistics are those of one view
        views = [self.teacher(augment(x, self.rng, per=config.augment_per)).float() for _ in range(config.views)]
        uncertainty = config.uncertainty_factor * torch.stack(views).var(0).mean()
        narrow, wide = allotted(uncertainty, config.threshold, config.allot)
        found = torch.cat([narrow.expand(config.narrow), wide.expand(config.wide)])
        shares = torch.where(self.usable(torch.isfinite(uncertainty)), found, self.shares)
        self.shares.copy_(shares)
        layers = [m.shares for m in self.modules() if isinstance(m, Bottlenecks)]
        torch._foreach_copy_(layers, [shares] * len(layers))
        self.log("uncertainty", uncertainty)
        self.log("share_narrow", shares[0])
        self.log("share_wide", shares[-1])


class Bottlenecks(nn.Module):
    """A weight plus two products of low rank, each with a share: W + s_low U_1 D_1 + s_high U_2 D_2.

    Both products are kept as one: rows of `down` (ranks, inputs) and columns of `up` (outputs, ranks) of the narrow
    bottleneck come first, and `shares` (ranks,) has a value for each of them. `up` starts at zero, and the weight hence
    as it was.
    """

    shares: Tensor

    def __init__(self, weight: Tensor, down: Tensor) -> None:
        super().__init__()
        self.down = nn.Parameter(down.to(weight.device))
        self.up = nn.Parameter(torch.zeros(len(weight), len(down), device=weight.device))
        self.register_buffer("shares", torch.ones(len(down), device=weight.device))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + ((self.up * self.shares) @ self.down).view(weight.shape)


def adapted_weights(network: nn.Module) -> list[tuple[nn.Module, str]]:
    """Layers beside which bottlenecks go, each with the name of its weight: see the head of this file."""
    modules = list(network.modules())
    inside = {id(m) for block in modules if ATTENTION.search(type(block).__name__) for m in block.modules()}
    packed = [(m, name) for m in modules if isinstance(m, nn.MultiheadAttention) for name in PACKED]
    found: list[tuple[nn.Module, str]] = [(m, name) for m, name in packed if getattr(m, name) is not None]
    linear = [m for m in modules if isinstance(m, nn.Linear)]
    convolutions = [m for m in modules if isinstance(m, nn.Conv2d)][1:]
    found += [(m, "weight") for m in linear if id(m) in inside]
    found += [(m, "weight") for m in convolutions if m.groups == 1]
    found = found or [(m, "weight") for m in linear[:-1] or linear]
    return found


@torch.no_grad()
def fold(layer: nn.Module) -> None:
    """Turn a layer whose weights are computed (in place) into an ordinary one that holds them.

    PyTorch's own removal takes the weight from the class, which copies of the layer share.
    """
    computed = cast(nn.ModuleDict, layer.parametrizations)
    weights = {name: getattr(layer, name).detach().clone() for name in computed}
    layer.__class__ = parametrize.type_before_parametrizations(layer)
    del layer.parametrizations
    for name, weight in weights.items():
        layer.register_parameter(name, nn.Parameter(weight, requires_grad=False))


def first_numbers(weight: Tensor, narrow: int, wide: int, init: Init, generator: torch.Generator) -> Tensor:
    """Normal numbers (narrow + wide, inputs) that the two bottlenecks of a weight start from, on the host."""
    inputs = weight[0].numel()
    spread = [1 / math.sqrt(inputs) if init == "fan_in" else 1 / rank**2 for rank in (narrow, wide)]
    rows = torch.tensor([spread[0]] * narrow + [spread[1]] * wide)
    return rows[:, None] * torch.randn(narrow + wide, inputs, generator=generator)


def parameter_groups(network: nn.Module) -> tuple[nn.ParameterList, nn.ParameterList]:
    """A network's own parameters, and those of its bottlenecks."""
    added = nn.ParameterList(p for m in network.modules() if isinstance(m, Bottlenecks) for p in m.parameters())
    known = {id(p) for p in added}
    return nn.ParameterList(p for p in network.parameters() if id(p) not in known), added


def allotted(uncertainty: Tensor, threshold: float, allot: Allot = "both") -> tuple[Tensor, Tensor]:
    """Shares of the narrow and the wide bottleneck: one gains by the uncertainty what the other loses."""
    gain = torch.where(uncertainty >= threshold, uncertainty, -uncertainty)
    narrow, wide = (1 - gain).clamp(0.0, 2.0), (1 + gain).clamp(0.0, 2.0)
    return narrow, wide if allot == "both" else torch.ones_like(wide)
