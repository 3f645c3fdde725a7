"""BatchNorm with the batch's own statistics, and the ReLU behind it, as three Triton kernels each way.

Test-time adaptation runs every BatchNorm on fresh statistics in every pass of every network, so this layer is the
largest cost beside the convolutions. In channels-last memory an image batch is a matrix of positions by channels; its
column sums, the normalisation and the gradients are each one sweep over it at the speed of the memory. Sums are made in
fixed parts that are added in a fixed order, so that equal inputs give equal bits.

CUDA and channels-last only, and only where it pays, since each launch costs the host more than one of PyTorch's: in
passes that are recorded as graphs (`core.graphs`), and for large batches without gradient. Everything else stays with
`F.batch_norm`.

Adam's step is one more kernel where there are many weights: as single operations it goes over them again and again.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

PARTS = 256  # most parts a column sum is made of
SWEEPS = 512  # most programs per block of channels that write
TILE = 4096  # values a program looks at together
STRIP = 1024  # values of a vector a program looks at: eight a thread
WARPS = 4
LARGE = 2**22  # values in a batch from which the kernels outrun the host's launches
MANY = 2**20  # weights of an Adam step that is one kernel; fewer are not worth building it
_on = ContextVar("fused", default=False)


@contextmanager
def kernels_on() -> Iterator[None]:
    """Use the kernels inside, whatever the size."""
    token = _on.set(True)
    try:
        yield
    finally:
        _on.reset(token)


def suits(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the kernels take this batch: on CUDA, channels-last, with weight and bias, and worth it."""
    return (
        x.is_cuda
        and (_on.get() or (x.numel() >= LARGE and not torch.is_grad_enabled()))
        and x.dim() == 4
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and weight is not None
        and bias is not None
        and not torch.compiler.is_compiling()
        and x.is_contiguous(memory_format=torch.channels_last)
        and available()
    )


@lru_cache(maxsize=1)
def available() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool = False) -> Tensor:
    """`F.batch_norm` of a channels-last batch with its own statistics, then a ReLU if asked for."""
    return _BatchNorm.apply(x, weight, bias, eps, relu)


class _BatchNorm(torch.autograd.Function):
    """y = (x - mean) / sqrt(variance + eps) * weight + bias over all but the channel axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool) -> Tensor:
        y, mean, scale = kernels().forward(x, weight, bias, eps, relu)
        ctx.save_for_backward(x, weight, bias, mean, scale)
        ctx.relu = relu
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, scale = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=torch.channels_last)
        gx, gw, gb = kernels().backward(gradient, x, weight, bias, mean, scale, ctx.relu)
        return gx, gw.to(weight.dtype), gb.to(bias.dtype), None, None


def layout(rows: int, channels: int) -> tuple[int, int, int]:
    """(channels per program, rows per tile, parts of a sum), all of them powers of two."""
    width = next((w for w in (64, 32, 16) if channels % w == 0), 64)
    tile = TILE // width
    parts = 1
    while parts < PARTS and parts * tile * 2 <= rows:
        parts *= 2
    return width, tile, parts


@lru_cache(maxsize=1)
def kernels() -> Any:
    """The kernels' module, imported when first used, since it needs Triton."""
    from slomofast.core import fused_kernels

    return fused_kernels
