"""Copies of a network with a chosen part trainable, and whole-network updates in one stroke."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from slomofast.core.norms import Statistics, norm_parameters, set_statistics
from slomofast.core.rng import Rng

Part = Literal["norm", "all", "named", "none"]
"""norm: affine weights of normalisation layers. named: what is called weight or bias, so that class tokens, position
tables and packed attention projections stay."""
Network = TypeVar("Network", bound=nn.Module)


def copy_network(model: Network, train: Part = "none", statistics: Statistics = "batch", alpha: float = 0.1) -> Network:
    """An independent copy in eval mode (dropout off): BatchNorm uses `statistics`, the part `train` may learn.

    >>> net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    >>> [p.requires_grad for p in copy_network(net, train="norm").parameters()]
    [False, False, True, True]
    """
    copy = deepcopy(model).eval().requires_grad_(False)
    set_statistics(copy, statistics, alpha)
    named = [p for name, p in copy.named_parameters() if name.rpartition(".")[2] in ("weight", "bias")]
    chosen = {"norm": norm_parameters(copy), "all": list(copy.parameters()), "named": named, "none": []}[train]
    for parameter in chosen:
        if parameter.is_floating_point():
            parameter.requires_grad_(True)
    return copy


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that a gradient step may move."""
    return [p for p in module.parameters() if p.requires_grad]


def counterparts(copy: nn.Module, learner: nn.Module) -> list[nn.Parameter]:
    """The parameters of a copy, such as a teacher or an anchor, that stand for what the learner trains.

    >>> net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    >>> [p.shape for p in counterparts(net, copy_network(net, train="norm"))]
    [torch.Size([4]), torch.Size([4])]
    """
    pairs = zip(copy.parameters(), learner.parameters(), strict=True)
    return [parameter for parameter, moving in pairs if moving.requires_grad]


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """All values in one vector; an empty one where there are none."""
    if not tensors:
        return torch.zeros(0)
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def unflatten(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Views of a vector in the shapes of `like`."""
    parts = flat.split([t.numel() for t in like])
    return [part.view(t.shape) for part, t in zip(parts, like, strict=True)]


@torch.no_grad()
def ema_update(target: nn.Module, source: nn.Module, momentum: float) -> None:
    """theta_target <- momentum * theta_target + (1 - momentum) * theta_source, over all parameters at once."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), 1.0 - momentum)


@torch.no_grad()
def copy_weights(target: nn.Module, source: nn.Module) -> None:
    """theta_target <- theta_source, over all parameters at once."""
    torch._foreach_copy_(list(target.parameters()), list(source.parameters()))


@torch.no_grad()
def pull_towards(parameters: Sequence[Tensor], anchor: Tensor, share: float) -> None:
    """Move parameters by `share` of the way to the values in the flat vector `anchor` (weight ensembling)."""
    if not parameters:
        return
    torch._foreach_lerp_(list(parameters), unflatten(anchor, parameters), share)


@torch.no_grad()
def restore(parameters: Sequence[Tensor], source: Tensor, probability: float, rng: Rng) -> None:
    """Return each scalar to its value in the flat vector `source` with the given probability."""
    if not parameters or probability <= 0:
        return
    now = flatten(parameters)
    back = rng.uniform(now.numel()) < probability
    torch._foreach_copy_(list(parameters), unflatten(torch.where(back, source, now), parameters))


def projector(dim: int, width: int, rng: Rng) -> nn.Sequential:
    """Linear, ReLU, Linear with PyTorch's usual ranges, drawn from the adapter's own generator."""
    make = nn.utils.skip_init  # the layers' own initialisation would use the global generator
    layers = nn.Sequential(make(nn.Linear, dim, width), nn.ReLU(), make(nn.Linear, width, width))
    with torch.no_grad():
        for layer, inputs in ((layers[0], dim), (layers[2], width)):
            for parameter in layer.parameters():
                parameter.uniform_(-1 / math.sqrt(inputs), 1 / math.sqrt(inputs), generator=rng.host)
    return layers
