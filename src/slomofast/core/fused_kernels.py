# mypy: ignore-errors
"""Triton kernels of `core.fused`. A batch in channels-last memory is a matrix: rows are positions, columns channels.

Every kernel of the normalisation runs on a grid of (part of the rows) x (block of channels).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from slomofast.core.fused import STRIP, SWEEPS, WARPS, layout


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
def _norm_totals(sums, totals, channels, WIDTH: tl.constexpr, PARTS: tl.constexpr):
    """The parts added up, always in the same order."""
    which, block = tl.program_id(0), tl.program_id(1)
    columns = block * WIDTH + tl.arange(0, WIDTH)
    inside = columns < channels
    parts = (which * PARTS + tl.arange(0, PARTS))[:, None] * channels + columns[None, :]
    total = tl.sum(tl.load(sums + parts, mask=inside[None, :], other=0.0), 0)
    tl.store(totals + which * channels + columns, total, mask=inside)


@triton.jit
def _norm_apply(
    x, y, totals, weight, bias, mean_out, scale_out, rows, channels, chunk, eps,
    TILE: tl.constexpr, WIDTH: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / deviation from the sums, then the normalised rows."""
    part, block = tl.program_id(0), tl.program_id(1)
    columns = block * WIDTH + tl.arange(0, WIDTH)
    inside = columns < channels
    first = tl.load(totals + columns, mask=inside, other=0.0) / rows
    second = tl.load(totals + channels + columns, mask=inside, other=0.0) / rows
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
    g, x, gx, totals, weight, bias, mean_in, scale_in, rows, channels, chunk,
    TILE: tl.constexpr, WIDTH: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """The gradient of x; the sums are those of bias and weight."""
    part, block = tl.program_id(0), tl.program_id(1)
    columns = block * WIDTH + tl.arange(0, WIDTH)
    inside = columns < channels
    total = tl.load(totals + columns, mask=inside, other=0.0) / rows
    product = tl.load(totals + channels + columns, mask=inside, other=0.0) / rows
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


class _Plan:
    """How a batch is cut up: programs that add up (`reading`), and programs that write."""

    def __init__(self, x: Tensor) -> None:
        self.channels = x.shape[1]
        self.rows = x.numel() // self.channels
        self.width, self.tile, self.parts = layout(self.rows, self.channels)
        self.blocks = triton.cdiv(self.channels, self.width)
        self.reading = triton.cdiv(self.rows, self.parts)
        sweeps = min(SWEEPS, triton.cdiv(self.rows, self.tile))
        self.writing = triton.cdiv(self.rows, sweeps)
        self.read_grid, self.write_grid = (self.parts, self.blocks), (sweeps, self.blocks)
        self.shape = {"TILE": self.tile, "WIDTH": self.width, "num_warps": WARPS}

    def empty(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Room for two sums per channel: in parts, and in total."""
        parts = torch.empty(2 * self.parts, self.channels, device=x.device)
        return parts, torch.empty(2, self.channels, device=x.device)

    def add_up(self, parts: Tensor, totals: Tensor) -> None:
        """Both totals from their parts."""
        _norm_totals[(2, self.blocks)](parts, totals, self.channels, WIDTH=self.width, PARTS=self.parts)


def forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised batch, mean and 1 / deviation per channel."""
    plan, y = _Plan(x), torch.empty_like(x)
    parts, totals = plan.empty(x)
    mean, scale = torch.empty(2, plan.channels, device=x.device)
    sizes = (plan.rows, plan.channels)
    _norm_statistics[plan.read_grid](x, parts, *sizes, plan.reading, PARTS=plan.parts, **plan.shape)
    plan.add_up(parts, totals)
    _norm_apply[plan.write_grid](
        x, y, totals, weight, bias, mean, scale, *sizes, plan.writing, eps, RELU=relu, **plan.shape
    )  # fmt: skip
    return y, mean, scale


def backward(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the batch, the weight and the bias."""
    plan, gx = _Plan(x), torch.empty_like(x)
    parts, totals = plan.empty(x)
    known, sizes = (weight, bias, mean, scale), (plan.rows, plan.channels)
    _norm_gradient_sums[plan.read_grid](
        g, x, parts, *known, *sizes, plan.reading, PARTS=plan.parts, RELU=relu, **plan.shape
    )  # fmt: skip
    plan.add_up(parts, totals)
    _norm_gradient[plan.write_grid](g, x, gx, totals, *known, *sizes, plan.writing, RELU=relu, **plan.shape)
    return gx, totals[1], totals[0]


@triton.jit
def _image_moments(x, moments, area, channels, values, TILE: tl.constexpr, WIDTH: tl.constexpr):
    """Mean of (x - x_0) and of its square per image and channel; the batch's first row x_0 keeps differences exact."""
    image, block = tl.program_id(0), tl.program_id(1)
    columns = block * WIDTH + tl.arange(0, WIDTH)
    inside = columns < channels
    origin = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros([TILE, WIDTH], tl.float32)
    square = tl.zeros([TILE, WIDTH], tl.float32)
    start = image * area
    for first in range(start, start + area, TILE):
        index = first + tl.arange(0, TILE)
        keep = (index < start + area)[:, None] & inside[None, :]
        at = index.to(tl.int64)[:, None] * channels + columns[None, :]
        value = tl.load(x + at, mask=keep, other=0.0).to(tl.float32)
        value = tl.where(keep, value - origin[None, :], 0.0)
        total += value
        square += value * value
    tl.store(moments + image * channels + columns, tl.sum(total, 0) / area, mask=inside)
    tl.store(moments + values + image * channels + columns, tl.sum(square, 0) / area, mask=inside)


@triton.jit
def _gather(
    rows, pair, first_out, second_out, images, channels, values, eps,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, WIDTH: tl.constexpr, TURNED: tl.constexpr, SCALE: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """A pair of matrices times the weights or, TURNED, their transpose; SCALE: moments to mean and 1 / deviation."""
    mine = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = columns < channels
    one = tl.zeros([SIDE, WIDTH], tl.float32)
    two = tl.zeros([SIDE, WIDTH], tl.float32)
    for first in range(0, images, STRIDE):
        other = first + tl.arange(0, STRIDE)
        known = (mine < images)[:, None] & (other < images)[None, :]
        if TURNED:
            at = other[None, :] * images + mine[:, None]
        else:
            at = mine[:, None] * images + other[None, :]
        share = tl.load(rows + at, mask=known, other=0.0)
        where = other[:, None] * channels + columns[None, :]
        there = (other < images)[:, None] & inside[None, :]
        one = tl.dot(share, tl.load(pair + where, mask=there, other=0.0), one, input_precision=EXACT)
        two = tl.dot(share, tl.load(pair + values + where, mask=there, other=0.0), two, input_precision=EXACT)
    if SCALE:
        two = 1.0 / tl.sqrt(tl.maximum(two - one * one, 0.0) + eps)
    to = mine[:, None] * channels + columns[None, :]
    keep = (mine < images)[:, None] & inside[None, :]
    tl.store(first_out + to, one, mask=keep)
    tl.store(second_out + to, two, mask=keep)


@triton.jit
def _image_apply(
    x, y, mean_in, scale_in, weight, bias, area, channels,
    TILE: tl.constexpr, WIDTH: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """The normalised rows of one image."""
    image, block = tl.program_id(0), tl.program_id(1)
    columns = block * WIDTH + tl.arange(0, WIDTH)
    inside = columns < channels
    mean = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
    mean += tl.load(mean_in + image * channels + columns, mask=inside, other=0.0)
    gain = tl.load(scale_in + image * channels + columns, mask=inside, other=0.0)
    gain *= tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    start = image * area
    for first in range(start, start + area, TILE):
        index = first + tl.arange(0, TILE)
        keep = (index < start + area)[:, None] & inside[None, :]
        at = index.to(tl.int64)[:, None] * channels + columns[None, :]
        value = tl.load(x + at, mask=keep, other=0.0).to(tl.float32)
        value = (value - mean[None, :]) * gain[None, :] + offset[None, :]
        if RELU:
            value = tl.where(value < 0.0, 0.0, value)  # keeps NaN, as PyTorch's does
        tl.store(y + at, value.to(y.dtype.element_ty), mask=keep)


@triton.jit
def _image_gradient_sums(
    g, x, sums, slopes, weight, bias, mean_in, scale_in, area, channels, values,
    TILE: tl.constexpr, WIDTH: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Per image and channel: sums of g and of g * normalised x, and what they say to the mean and the second moment."""
    image, block = tl.program_id(0), tl.program_id(1)
    columns = block * WIDTH + tl.arange(0, WIDTH)
    inside = columns < channels
    here = image * channels + columns
    shift = tl.load(mean_in + here, mask=inside, other=0.0)
    mean = shift + tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(scale_in + here, mask=inside, other=0.0)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros([TILE, WIDTH], tl.float32)
    product = tl.zeros([TILE, WIDTH], tl.float32)
    start = image * area
    for first in range(start, start + area, TILE):
        index = first + tl.arange(0, TILE)
        keep = (index < start + area)[:, None] & inside[None, :]
        at = index.to(tl.int64)[:, None] * channels + columns[None, :]
        slope = tl.load(g + at, mask=keep, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=keep, other=0.0).to(tl.float32)
        value = (value - mean[None, :]) * scale[None, :]
        if RELU:
            slope = tl.where(value * gain[None, :] + offset[None, :] > 0.0, slope, 0.0)
        total += slope
        product += slope * value
    summed, along = tl.sum(total, 0), tl.sum(product, 0)
    tl.store(sums + here, summed, mask=inside)
    tl.store(sums + values + here, along, mask=inside)
    second = -0.5 * scale * scale * gain * along
    tl.store(slopes + here, -scale * gain * summed - 2.0 * shift * second, mask=inside)
    tl.store(slopes + values + here, second, mask=inside)


@triton.jit
def _image_gradient(
    g, x, gx, weight, bias, mean_in, scale_in, first_in, second_in, area, channels,
    TILE: tl.constexpr, WIDTH: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """The gradient of one image, its own part and that of the statistics it went into."""
    image, block = tl.program_id(0), tl.program_id(1)
    columns = block * WIDTH + tl.arange(0, WIDTH)
    inside = columns < channels
    here = image * channels + columns
    origin = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
    mean = tl.load(mean_in + here, mask=inside, other=0.0)
    scale = tl.load(scale_in + here, mask=inside, other=0.0)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    one = tl.load(first_in + here, mask=inside, other=0.0) / area
    two = 2.0 * tl.load(second_in + here, mask=inside, other=0.0) / area
    start = image * area
    for first in range(start, start + area, TILE):
        index = first + tl.arange(0, TILE)
        keep = (index < start + area)[:, None] & inside[None, :]
        at = index.to(tl.int64)[:, None] * channels + columns[None, :]
        slope = tl.load(g + at, mask=keep, other=0.0).to(tl.float32)
        value = tl.load(x + at, mask=keep, other=0.0).to(tl.float32) - origin[None, :]
        if RELU:
            normal = (value - mean[None, :]) * scale[None, :]
            slope = tl.where(normal * gain[None, :] + offset[None, :] > 0.0, slope, 0.0)
        slope = slope * (gain * scale)[None, :] + one[None, :] + value * two[None, :]
        tl.store(gx + at, slope.to(gx.dtype.element_ty), mask=keep)


SIDE, STRIDE = 16, 32  # images whose statistics a program gathers, and from how many at a time
EXACT = "tf32x3"  # each product in three of half the digits, for the tensor cores: not less exact, and a quarter faster


class _ImagePlan:
    """How a batch is cut up by images."""

    def __init__(self, x: Tensor) -> None:
        self.images, self.channels = x.shape[:2]
        self.area = x.shape[2] * x.shape[3]
        self.width, tile, _ = layout(self.area, self.channels)
        tile = min(tile, max(16, triton.next_power_of_2(self.area)))
        self.blocks = triton.cdiv(self.channels, self.width)
        self.grid, self.sizes = (self.images, self.blocks), (self.area, self.channels)
        self.values = self.images * self.channels
        self.shape = {"TILE": tile, "WIDTH": self.width, "num_warps": WARPS}

    def pair(self, x: Tensor) -> Tensor:
        """Room for two values per image and channel."""
        return torch.empty(2, self.images, self.channels, device=x.device)

    def gather(self, rows: Tensor, pair: Tensor, turned: bool, eps: float | None = None) -> Tensor:
        """Both matrices of `pair` times `rows` or its transpose; with `eps` mean and 1 / deviation."""
        out = torch.empty_like(pair)
        width = min(self.width, 32)
        grid = (triton.cdiv(self.images, SIDE), triton.cdiv(self.channels, width))
        _gather[grid](
            rows, pair, out[0], out[1], self.images, self.channels, self.values, eps or 0.0,
            SIDE=SIDE, STRIDE=STRIDE, WIDTH=width, TURNED=turned, SCALE=eps is not None, EXACT=EXACT, num_warps=WARPS,
        )  # fmt: skip
        return out


def neighbours_forward(
    x: Tensor, rows: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalised batch; by image and channel the mean, from the batch's first row on, and 1 / deviation."""
    plan, y = _ImagePlan(x), torch.empty_like(x)
    moments = plan.pair(x)
    _image_moments[plan.grid](x, moments, *plan.sizes, plan.values, **plan.shape)
    mean, scale = plan.gather(rows, moments, False, eps)
    _image_apply[plan.grid](x, y, mean, scale, weight, bias, *plan.sizes, RELU=relu, **plan.shape)
    return y, mean, scale


def neighbours_backward(
    g: Tensor, x: Tensor, rows: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the batch, the weight and the bias."""
    plan, gx = _ImagePlan(x), torch.empty_like(x)
    sums, slopes, known = plan.pair(x), plan.pair(x), (weight, bias, mean, scale)
    _image_gradient_sums[plan.grid](
        g, x, sums, slopes, *known, *plan.sizes, plan.values, RELU=relu, **plan.shape
    )  # fmt: skip
    first, second = plan.gather(rows, slopes, True)
    _image_gradient[plan.grid](g, x, gx, *known, first, second, *plan.sizes, RELU=relu, **plan.shape)
    total, along = sums.sum(1)
    return gx, along, total


@triton.jit
def _adam(
    gradient, first, second, sizes, change, factors, count, share1, share2, eps,
    TILE: tl.constexpr, RELATIVE: tl.constexpr,
):  # fmt: skip
    """Both moments moved by a share and the change made of them. Factors: 1, or 0 for no step; step size; debiasing."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = at < count
    taken = tl.load(factors)
    slope = tl.load(gradient + at, mask=inside, other=0.0)
    slope = tl.where(taken > 0.0, slope, 0.0)  # a factor of zero would keep NaN
    mean = tl.load(first + at, mask=inside, other=0.0)
    mean += share1 * taken * (slope - mean)
    square = tl.load(second + at, mask=inside, other=0.0)
    square += share2 * taken * (slope * slope - square)
    step = mean / (tl.sqrt(square / tl.load(factors + 2)) + eps) * -tl.load(factors + 1)
    if RELATIVE:
        step *= tl.load(sizes + at, mask=inside, other=0.0)
    tl.store(first + at, mean, mask=inside)
    tl.store(second + at, square, mask=inside)
    tl.store(change + at, step, mask=inside)


def adam(
    gradient: Tensor, first: Tensor, second: Tensor, sizes: Tensor, factors: Tensor,
    beta1: float, beta2: float, eps: float,
) -> Tensor:  # fmt: skip
    """The change of the parameters; the moments move in place. `sizes` is empty where all steps are alike."""
    change, count = torch.empty_like(gradient), gradient.numel()
    _adam[(triton.cdiv(count, STRIP),)](
        gradient, first, second, sizes, change, factors, count, 1 - beta1, 1 - beta2, eps,
        TILE=STRIP, RELATIVE=bool(sizes.numel()), num_warps=WARPS,
    )  # fmt: skip
    return change
