"""Adam and SGD on one flat vector: their whole state is a few buffers, and a bad gradient is skipped on the device.

A gradient that holds NaN or Inf, or a value too large to be squared, leaves parameters and moments as they were. A mask
decides it rather than a branch, so the host never waits for the device.

The vector has the order of the parameters' memory, so that weights in channels-last memory are not turned round for a
step and back again. A saved state has the order of their shapes, whatever the memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from slomofast.core import fused
from slomofast.core.config import AdapterConfig, option
from slomofast.core.params import flatten, unflatten


@dataclass(frozen=True)
class OptimConfig(AdapterConfig):
    """Options of a method that takes gradient steps."""

    optimizer: Literal["adam", "sgd"] = option("adam", "kind of gradient step")
    lr: float = option(1e-3, "step size", low=0.0)
    momentum: float = option(0.9, "Adam's beta1, or SGD's momentum", low=0.0, high=0.9999)
    beta2: float = option(0.999, "Adam's second-moment decay", low=0.0, high=0.999999)
    weight_decay: float = option(0.0, "L2 penalty added to the gradient", low=0.0)
    nesterov: bool = option(True, "Nesterov momentum (SGD only)")
    relative: bool = option(False, "steps in units of each tensor's root-mean-square source weight")


EPS = 1e-8
LEAST_SCALE = 1e-3  # of a tensor whose weights are nearly zero, such as fresh biases


class FlatOptimizer(nn.Module):
    """One optimiser over a list of parameters, kept as flat vectors.

    With `relative` steps a step size means the same to every network: a weight in front of a normalisation layer may be
    multiplied by any number without a change in what the network says, but Adam moves it by `lr` whatever its size.

    Args:
        parameters: what it moves; the order must be the same when a state is loaded.
        config: kind, step size and decay.
        lr: overrides the step size of `config`.
        relative: overrides that of `config`.
    """

    skipped: Tensor
    count: Tensor
    first: Tensor
    second: Tensor
    scale: Tensor

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        config: OptimConfig,
        lr: float | None = None,
        relative: bool | None = None,
    ) -> None:
        super().__init__()
        self._parameters_list = list(parameters)
        self._layout = [(p.shape, _dense_strides(p)) for p in parameters]
        self._turned = any(_is_turned(p) for p in parameters)  # whether memory has another order than the shapes
        self.config, self.lr = config, config.lr if lr is None else lr
        self.relative = config.relative if relative is None else relative
        device = parameters[0].device if parameters else torch.device("cpu")
        size = sum(p.numel() for p in parameters)
        self.register_buffer("skipped", torch.zeros((), dtype=torch.int64, device=device))
        self.register_buffer("count", torch.zeros((), device=device))
        self.register_buffer("first", torch.zeros(size, device=device))
        self.register_buffer("second", torch.zeros(size if config.optimizer == "adam" else 0, device=device))
        # known from the source weights, hence no part of the state
        self.register_buffer("scale", sizes_of(parameters if self.relative else [], device), persistent=False)

    @property
    def targets(self) -> list[nn.Parameter]:
        """The parameters this optimiser moves."""
        return self._parameters_list

    @torch.no_grad()
    def step(
        self,
        gradients: Sequence[Tensor | None],
        loss: Tensor,
        when: Tensor | None = None,
        pace: Tensor | float | None = None,
    ) -> None:
        """Move the parameters once along `gradients`; None stands for zero. Nothing moves if anything is not finite.

        Nor does it if the square of a gradient is not: it would stay in the moments for good.

        `when` is a 0-d bool on the device: unset, the step is left out (and not counted as skipped), so that a batch
        with nothing to learn from does not coast on momentum. `pace` multiplies the change: a number, or a vector
        with one for each value.
        """
        targets = self._parameters_list
        if not targets:
            return
        dense = [torch.zeros_like(p) if g is None else g for g, p in zip(gradients, targets, strict=True)]
        gradient = self._vector(dense).float()
        if self.config.weight_decay:
            gradient = gradient + self.config.weight_decay * self._vector(targets)
        ok = torch.isfinite(torch.linalg.vector_norm(gradient, math.inf).square() + loss.detach())
        self.skipped += (~ok).long()
        ok = ok if when is None else ok & when
        self.count += ok
        change = self._fused_adam(gradient, ok) if self.fuses(gradient) else self._change(gradient, ok)
        if isinstance(pace, Tensor) and pace.dim() and self._turned:
            pace = self._vector(unflatten(pace, targets))
        if pace is not None:
            change = change * pace
        torch._foreach_add_(cast(list[Tensor], targets), self._views(change))

    def _vector(self, tensors: Sequence[Tensor]) -> Tensor:
        """All values in one vector, in the order of the parameters' memory."""
        return torch.cat(
            [_in_memory(t.detach(), strides) for t, (_, strides) in zip(tensors, self._layout, strict=True)]
        )

    def _views(self, vector: Tensor) -> list[Tensor]:
        """The parts of such a vector, laid out as the parameters are."""
        parts = vector.split([math.prod(shape) for shape, _ in self._layout])
        return [
            part.as_strided(*layout, part.storage_offset()) for part, layout in zip(parts, self._layout, strict=True)
        ]

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in _moments(destination, prefix) if self._turned else ():
            destination[name] = flatten(self._views(destination[name]))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        for name in _moments(state_dict, prefix) if self._turned else ():
            if state_dict[name].numel() == self.first.numel():  # others are refused, by name, further on
                state_dict[name] = self._vector(unflatten(state_dict[name], self._parameters_list))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def fuses(self, gradient: Tensor) -> bool:
        """Whether a step is one kernel: Adam without weight decay, of many weights, on CUDA."""
        plain = self.config.optimizer == "adam" and not self.config.weight_decay
        large = gradient.is_cuda and gradient.numel() >= fused.MANY
        return plain and large and fused.available() and not torch.compiler.is_compiling()

    def _change(self, gradient: Tensor, ok: Tensor) -> Tensor:
        gradient = torch.where(ok, gradient, 0.0)
        change = self._adam(gradient, ok) if self.config.optimizer == "adam" else self._sgd(gradient, ok)
        return change * self.scale if self.relative else change

    def _fused_adam(self, gradient: Tensor, ok: Tensor) -> Tensor:
        step, debias = self._adam_factors(ok)
        factors = torch.stack([ok.float(), step, debias])
        betas = self.config.momentum, self.config.beta2
        return fused.kernels().adam(gradient, self.first, self.second, self.scale, factors, *betas, EPS)

    @torch.no_grad()
    def forget(self, when: Tensor | None = None) -> None:
        """Clear the moments, as if no step had been taken; with a 0-d bool `when` only where it is set."""
        for moment in (self.count, self.first, self.second):
            if when is None:
                moment.zero_()
            else:
                moment.masked_fill_(when, 0.0)

    def _adam(self, gradient: Tensor, ok: Tensor) -> Tensor:
        beta1, beta2 = self.config.momentum, self.config.beta2
        # lerp weights of zero keep both moments when the step is skipped
        self.first.lerp_(gradient, (1 - beta1) * ok)
        self.second.lerp_(gradient.square(), (1 - beta2) * ok)
        step, debias = self._adam_factors(ok)
        return self.first / (self.second / debias).sqrt_().add_(EPS) * -step

    def _adam_factors(self, ok: Tensor) -> tuple[Tensor, Tensor]:
        """Step size with the first moment's debiasing, zero for a step left out; the second moment's debiasing."""
        steps = self.count.clamp(min=1)
        # 1 - beta^n, exact for small n also in fp32
        first, second = (
            -torch.expm1(steps * math.log(beta or 1e-30)) for beta in (self.config.momentum, self.config.beta2)
        )
        return self.lr * ok / first, second

    def _sgd(self, gradient: Tensor, ok: Tensor) -> Tensor:
        mu = self.config.momentum
        self.first.mul_(torch.where(ok, mu, 1.0)).add_(gradient)
        direction = gradient + mu * self.first if self.config.nesterov else self.first
        return direction * (-self.lr * ok)


def _moments(state: Any, prefix: str) -> list[str]:
    """Names of the vectors of a state that have a value for each of the parameters'."""
    names = (prefix + "first", prefix + "second")
    return [name for name in names if name in state and state[name].numel()]


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Of a tensor whose memory has the order of its shape.

    >>> _strides((2, 3, 5))
    (15, 5, 1)
    """
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _is_turned(tensor: Tensor) -> bool:
    """Whether a tensor lies in channels-last memory, and that is not the order of its shape as well."""
    turned = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return turned and not tensor.is_contiguous()


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """Those of a tensor that fills its memory, or else of its shape."""
    return tensor.stride() if tensor.is_contiguous() or _is_turned(tensor) else _strides(tensor.shape)


def _in_memory(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The values as a vector, in the order that a tensor of these strides has in memory; a view where it can be one."""
    if tensor.stride() != strides:
        tensor = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,))


@torch.no_grad()
def sizes_of(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """For every value of the tensors, in one vector, the root mean square of the tensor it is in."""
    each = [t.float().square().mean().sqrt().clamp(min=LEAST_SCALE).expand(t.numel()) for t in tensors]
    return torch.cat(each).to(device) if each else torch.zeros(0, device=device)
