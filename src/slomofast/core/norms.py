"""Normalisation layers: finding them, and choosing which statistics BatchNorm uses at test time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from slomofast.core import fused
from slomofast.core.neighbours import Neighbours, neighbour_norm

Statistics = Literal["batch", "source", "blend", "ema", "robust"]


class TestTimeNorm(nn.Module):
    """BatchNorm with a choice of statistics.

    batch: mean and variance of the current batch; nothing is accumulated and gradients flow through both.
    source: the stored statistics.
    blend: (1 - alpha) * source + alpha * batch, constants to the gradient.
    ema: a running average that starts at the source statistics; a pass with `measuring` set normalises with the
        batch and moves the average by `alpha`, any other pass uses the average.
    robust: the same average of biased variances, but a measuring pass normalises with the average it has just moved;
        gradients flow through the batch's part of it.

    Where a batch holds one value per channel its variance means nothing, so the stored statistics serve. With
    `neighbours` the statistics of a batch are gathered for each image from images like it.
    """

    __test__ = False  # the name starts like a test class; pytest must not collect it
    running_mean: Tensor | None
    running_var: Tensor | None

    def __init__(self, layer: _BatchNorm, statistics: Statistics = "batch", alpha: float = 0.1) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = layer.weight, layer.bias, layer.eps
        self.statistics, self.alpha, self.measuring = statistics, alpha, False
        self.neighbours: Neighbours | None = None
        self.register_buffer("running_mean", _clone(layer.running_mean))
        self.register_buffer("running_var", _clone(layer.running_var))

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        """The normalised batch, behind a ReLU if asked for (one kernel on CUDA)."""
        lone = x.numel() == x.shape[1]
        if self.running_mean is None or (self.statistics == "batch" and not lone):
            rows = self.neighbours.of(x) if self.neighbours else None
            if rows is not None:
                return neighbour_norm(x, rows, self.weight, self.bias, self.eps, relu)
            if fused.suits(x, self.weight, self.bias):
                return fused.batch_norm(x, self.weight, self.bias, self.eps, relu)
            y = F.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)
        else:
            y = self._stored(x, lone)
        return F.relu(y) if relu else y

    def _stored(self, x: Tensor, lone: bool) -> Tensor:
        """With statistics that outlive the batch."""
        if self.statistics == "blend" and not lone:
            mean, variance = self._blended(x.detach())
            return F.batch_norm(x, mean, variance, self.weight, self.bias, False, 0.0, self.eps)
        if self.statistics == "robust" and self.measuring and not lone:
            return self._followed(x)
        measuring = self.statistics == "ema" and self.measuring and not lone
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, measuring, self.alpha, self.eps
        )

    def _followed(self, x: Tensor) -> Tensor:
        assert self.running_mean is not None and self.running_var is not None
        mean, variance = self._blended(x, unbiased=False)
        self.running_mean.copy_(mean.detach())
        self.running_var.copy_(variance.detach())
        # written out, because batch_norm passes no gradient to statistics it is given
        scale = (variance + self.eps).rsqrt() * (1.0 if self.weight is None else self.weight)
        shift = (0.0 if self.bias is None else self.bias) - mean * scale
        shape = [1, -1] + [1] * (x.dim() - 2)
        return (x.float() * scale.view(shape) + shift.view(shape)).to(x.dtype)

    def _blended(self, x: Tensor, unbiased: bool = True) -> tuple[Tensor, Tensor]:
        assert self.running_mean is not None and self.running_var is not None
        axes = [axis for axis in range(x.dim()) if axis != 1]
        variance, mean = torch.var_mean(x.float(), axes, unbiased=unbiased)
        return torch.lerp(self.running_mean, mean, self.alpha), torch.lerp(self.running_var, variance, self.alpha)

    def extra_repr(self) -> str:
        return f"statistics={self.statistics}, eps={self.eps}"


def norm_relu(norm: nn.Module, x: Tensor) -> Tensor:
    """ReLU behind a normalisation layer: one kernel where the layer has one."""
    return norm(x, relu=True) if isinstance(norm, TestTimeNorm) else F.relu(norm(x))


def _clone(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def set_statistics(module: nn.Module, statistics: Statistics, alpha: float = 0.1) -> nn.Module:
    """Replace every BatchNorm of `module` (in place) by one that uses the chosen statistics.

    A layer that stands in several places is replaced by one layer in all of them.
    """
    replaced: dict[nn.Module, TestTimeNorm] = {}
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):  # named_children would tell of each layer once
            if isinstance(child, _BatchNorm):
                if child not in replaced:
                    replaced[child] = TestTimeNorm(child, statistics, alpha)
                setattr(parent, name, replaced[child])
            elif isinstance(child, TestTimeNorm):
                child.statistics, child.alpha = statistics, alpha
    return module


def share_neighbours(module: nn.Module, neighbours: Neighbours) -> None:
    """Let every BatchNorm of `module` look up whose statistics an image is normalised with."""
    for layer in module.modules():
        if isinstance(layer, TestTimeNorm):
            layer.neighbours = neighbours


@contextmanager
def measuring(module: nn.Module) -> Iterator[None]:
    """Passes inside move the running averages of layers with `ema` or `robust` statistics."""
    layers = [child for child in module.modules() if isinstance(child, TestTimeNorm)]
    try:
        for layer in layers:
            layer.measuring = True
        yield
    finally:
        for layer in layers:
            layer.measuring = False


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a normalisation layer: PyTorch's, or any with weights and "norm" in its class name."""
    named = "norm" in type(module).__name__.lower()
    return named and next(module.parameters(recurse=False), None) is not None and not any(module.children())


def norm_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Affine weights of every normalisation layer, in the order of the network, each once."""
    found = {id(p): p for m in module.modules() if is_norm(m) for p in m.parameters(recurse=False)}
    return list(found.values())


def freeze_norms(module: nn.Module, names: Sequence[str], exactly: Sequence[str] = ()) -> nn.Module:
    """Freeze (in place) the normalisation layers whose name holds one of `names` or is one of `exactly`.

    Names are those of the user's model. Those of `exactly` count for a layer as wide as the first one, as in a ViT:
    a wider one ends a network of stages, such as Swin. A choice that would freeze every layer is not applied.
    """
    layers = {_own_name(name): m for name, m in module.named_modules() if is_norm(m)}
    widths = [next(m.parameters(recurse=False)).numel() for m in layers.values()]
    chosen = [
        m
        for (name, m), width in zip(layers.items(), widths, strict=True)
        if any(part in name for part in names) or (name in exactly and width == widths[0])
    ]
    if len(chosen) < len(layers):
        for layer in chosen:
            layer.requires_grad_(False)
    return module


def _own_name(name: str) -> str:
    """A layer's name without the prefix that `split` put before it."""
    first, _, rest = name.partition(".")
    return rest if first in ("body", "model") and rest else name


def norm_kinds(module: nn.Module) -> set[str]:
    """Which normalisation a network uses: a subset of {"batch", "group", "layer", "other"}."""
    kinds = set()
    for child in module.modules():
        if isinstance(child, _BatchNorm | TestTimeNorm):
            kinds.add("batch")
        elif isinstance(child, nn.GroupNorm):
            kinds.add("group")
        elif isinstance(child, nn.LayerNorm):
            kinds.add("layer")
        elif is_norm(child):
            kinds.add("other")
    return kinds
