# mypy: ignore-errors
"""Triton kernels of `core.fused`. A batch in channels-last memory is a matrix: rows are positions, columns channels.

Every kernel runs on a grid of (part of the rows) x (block of channels).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from slomofast.core.fused import SWEEPS, layout


@triton.jit
def _norm_statistics(x, sums, rows, channels, chunk, TILE: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """Sums of (x - x_0) and of its square per part and channel; the first row x_0 keeps the difference exact."""
    part, block = tl.program_id(0), tl.program_id(1)
    columns = block * WIDTH + tl.arange(0, WIDTH)
    inside = columns < channels
    origin = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros([TILE, WIDTH], tl.float32)
    square = tl.zeros([TILE, WIDTH], tl.float32)
    start = part * chunk
    end = tl.minimum(start + chunk, rows)
    for first in range(start, end, TILE):
        index = first + tl.arange(0, TILE)
        keep = (index < end)[:, None] & inside[None, :]
        at = index.to(tl.int64)[:, None] * channels + columns[None, :]
        value = tl.load(x + at, mask=keep, other=0.0).to(tl.float32)
        value = tl.where(keep, value - origin[None, :], 0.0)
        total += value
        square += value * value
    tl.store(sums + part * channels + columns, tl.sum(total, 0), mask=inside)
    tl.store(sums + (PARTS + part) * channels + columns, tl.sum(square, 0), mask=inside)


@triton.jit
def _norm_apply(
    x, y, sums, weight, bias, mean_out, scale_out, rows, channels, chunk, eps,
    TILE: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / deviation from the parts, then the normalised rows."""
    part, block = tl.program_id(0), tl.program_id(1)
    columns = block * WIDTH + tl.arange(0, WIDTH)
    inside = columns < channels
    parts = tl.arange(0, PARTS)[:, None] * channels + columns[None, :]
    first = tl.sum(tl.load(sums + parts, mask=inside[None, :], other=0.0), 0) / rows
    second = tl.sum(tl.load(sums + PARTS * channels + parts, mask=inside[None, :], other=0.0), 0) / rows
    mean = first + tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.maximum(second - first * first, 0.0) + eps)
    if part == 0:
        tl.store(mean_out + columns, mean, mask=inside)
        tl.store(scale_out + columns, scale, mask=inside)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32) * scale
    offset = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    start = part * chunk
    end = tl.minimum(start + chunk, rows)
    for begin in range(start, end, TILE):
        index = begin + tl.arange(0, TILE)
        keep = (index < end)[:, None] & inside[None, :]
        at = index.to(tl.int64)[:, None] * channels + columns[None, :]
        value = tl.load(x + at, mask=keep, other=0.0).to(tl.float32)
        value = (value - mean[None, :]) * gain[None, :] + offset[None, :]
        if RELU:
            value = tl.where(value < 0.0, 0.0, value)  # keeps NaN, as PyTorch's does
        tl.store(y + at, value.to(y.dtype.element_ty), mask=keep)


@triton.jit
def _norm_gradient_sums(
    g, x, sums, weight, bias, mean_in, scale_in, rows, channels, chunk,
    TILE: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Sums of g and of g * normalised x per part and channel."""
    part, block = tl.program_id(0), tl.program_id(1)
    columns = block * WIDTH + tl.arange(0, WIDTH)
    inside = columns < channels
    mean = tl.load(mean_in + columns, mask=inside, other=0.0)
    scale = tl.load(scale_in + columns, mask=inside, other=0.0)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros([TILE, WIDTH], tl.float32)
    product = tl.zeros([TILE, WIDTH], tl.float32)
    start = part * chunk
    end = tl.minimum(start + chunk, rows)
    for first in range(start, end, TILE):
        index = first + tl.arange(0, TILE)
        keep = (index < end)[:, None] & inside[None, :]
        at = index.to(tl.int64)[:, None] * channels + columns[None, :]
        slope = tl.load(g + at, mask=keep, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=keep, other=0.0).to(tl.float32)
        value = (value - mean[None, :]) * scale[None, :]
        if RELU:
            slope = tl.where(value * gain[None, :] + offset[None, :] > 0.0, slope, 0.0)
        total += slope
        product += slope * value
    tl.store(sums + part * channels + columns, tl.sum(total, 0), mask=inside)
    tl.store(sums + (PARTS + part) * channels + columns, tl.sum(product, 0), mask=inside)


@triton.jit
def _norm_gradient(
    g, x, gx, sums, weight, bias, mean_in, scale_in, gw, gb, rows, channels, chunk,
    TILE: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Gradients of weight and bias from the parts, then that of x."""
    part, block = tl.program_id(0), tl.program_id(1)
    columns = block * WIDTH + tl.arange(0, WIDTH)
    inside = columns < channels
    parts = tl.arange(0, PARTS)[:, None] * channels + columns[None, :]
    total = tl.sum(tl.load(sums + parts, mask=inside[None, :], other=0.0), 0)
    product = tl.sum(tl.load(sums + PARTS * channels + parts, mask=inside[None, :], other=0.0), 0)
    if part == 0:
        tl.store(gb + columns, total, mask=inside)
        tl.store(gw + columns, product, mask=inside)
    total = total / rows
    product = product / rows
    mean = tl.load(mean_in + columns, mask=inside, other=0.0)
    scale = tl.load(scale_in + columns, mask=inside, other=0.0)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    start = part * chunk
    end = tl.minimum(start + chunk, rows)
    for first in range(start, end, TILE):
        index = first + tl.arange(0, TILE)
        keep = (index < end)[:, None] & inside[None, :]
        at = index.to(tl.int64)[:, None] * channels + columns[None, :]
        slope = tl.load(g + at, mask=keep, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=keep, other=0.0).to(tl.float32)
        value = (value - mean[None, :]) * scale[None, :]
        if RELU:
            slope = tl.where(value * gain[None, :] + offset[None, :] > 0.0, slope, 0.0)
        slope = (slope - total[None, :] - value * product[None, :]) * (gain * scale)[None, :]
        tl.store(gx + at, slope.to(gx.dtype.element_ty), mask=keep)


def _grids(x: Tensor) -> tuple[int, int, int, int, int, tuple[int, int], int, tuple[int, int], int]:
    channels = x.shape[1]
    rows = x.numel() // channels
    width, tile, parts = layout(rows, channels)
    blocks = triton.cdiv(channels, width)
    reading = triton.cdiv(rows, parts)
    sweeps = min(SWEEPS, triton.cdiv(rows, tile))
    writing = triton.cdiv(rows, sweeps)
    return rows, channels, width, tile, parts, (parts, blocks), reading, (sweeps, blocks), writing


def forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised batch, mean and 1 / deviation per channel."""
    rows, channels, width, tile, parts, read_grid, reading, write_grid, writing = _grids(x)
    y = torch.empty_like(x)
    sums = torch.empty(2 * parts, channels, device=x.device)
    mean, scale = torch.empty(2, channels, device=x.device)
    shape = {"TILE": tile, "WIDTH": width, "PARTS": parts, "num_warps": 8}
    _norm_statistics[read_grid](x, sums, rows, channels, reading, **shape)
    _norm_apply[write_grid](
        x, y, sums, weight, bias, mean, scale, rows, channels, writing, eps, RELU=relu, **shape
    )  # fmt: skip
    return y, mean, scale


def backward(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the batch, the weight and the bias."""
    rows, channels, width, tile, parts, read_grid, reading, write_grid, writing = _grids(x)
    gx = torch.empty_like(x)
    sums = torch.empty(2 * parts, channels, device=x.device)
    gw, gb = torch.empty(2, channels, device=x.device)
    shape = {"TILE": tile, "WIDTH": width, "PARTS": parts, "RELU": relu, "num_warps": 8}
    _norm_gradient_sums[read_grid](g, x, sums, weight, bias, mean, scale, rows, channels, reading, **shape)
    _norm_gradient[write_grid](
        g, x, gx, sums, weight, bias, mean, scale, gw, gb, rows, channels, writing, **shape
    )  # fmt: skip
    return gx, gw, gb
