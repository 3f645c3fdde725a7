"""BatchNorm whose statistics are gathered for each image from images like it.

A batch that mixes conditions has the mean and variance of none of them. Here every image has a row of weights over the
batch; the mean and the second moment it is normalised with are the weighted means of those of all images. With equal
weights this is BatchNorm. Gradients flow through the statistics as they do there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from slomofast.core import fused

MOST_SIZES = 64  # sizes of batches that are kept; further ones are normalised as one group


class Neighbours:
    """The weights of the present batch, by its size: what the norm layers of several networks look up.

    They are written in place, so that a recorded pass reads those of the batch it is replayed for. Where the host can
    see without waiting that all weights are equal, layers are told nothing and take their usual way.
    """

    def __init__(self) -> None:
        self._rows: dict[int, Tensor] = {}
        self._one_group: set[int] = set()  # sizes of batches whose weights are known to be equal

    def set(self, rows: Tensor) -> None:
        """Take the weights (B, B) for the next passes over as many images."""
        size = len(rows)
        if rows.device.type == "cpu" and float(rows.max() - rows.min()) < 1e-6 / size:
            self._one_group.add(size)
        else:
            self._one_group.discard(size)
        kept = self._rows.get(size)
        if kept is not None and kept.device == rows.device:
            kept.copy_(rows)
        elif kept is not None or len(self._rows) < MOST_SIZES:
            with torch.inference_mode(False):  # it will be written to outside of that mode, too
                self._rows[size] = rows.detach().float().clone()

    def of(self, x: Tensor) -> Tensor | None:
        """The weights for a batch of this size, if there are any."""
        rows = self._rows.get(len(x)) if x.dim() == 4 and len(x) not in self._one_group else None
        return rows if rows is not None and rows.device == x.device else None


def neighbour_norm(
    x: Tensor, rows: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, relu: bool = False
) -> Tensor:
    """(B, C, H, W) normalised with statistics gathered by `rows` (B, B), then a ReLU if asked for."""
    if weight is None or bias is None:
        plain = torch.zeros(x.shape[1], device=x.device)
        weight, bias = plain + 1 if weight is None else weight, plain if bias is None else bias
    if fused.suits(x, weight, bias):
        return _Neighbourly.apply(x, rows, weight, bias, eps, relu)
    if torch.compiler.is_compiling():
        y, _, _, _ = _normalised(x.float(), rows, weight, bias, eps)
        y = y.to(x.dtype)
    else:
        y = _Neighbourly.apply(x, rows, weight, bias, eps, False)
    return F.relu(y) if relu else y


def _normalised(x: Tensor, rows: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, ...]:
    """The result; the value per channel that moments are counted from; mean from there and 1 / deviation by image."""
    origin = x[:1, :, :1, :1].detach()  # close to the mean, which keeps the difference of moments exact
    with torch.autocast(x.device.type, enabled=False):
        shifted, area = x - origin, x.shape[2] * x.shape[3]
        second = rows @ (torch.linalg.vector_norm(shifted, dim=(2, 3)).square() / area)
        mean = rows @ shifted.mean((2, 3))
        scale = ((second - mean.square()).clamp(min=0.0) + eps).rsqrt()
        gain = scale * weight
        y = torch.addcmul((bias - (mean + origin[:, :, 0, 0]) * gain)[..., None, None], x, gain[..., None, None])
    return y, origin, mean, scale


class _Neighbourly(torch.autograd.Function):
    """With a = weight / deviation: y = a (x - mean) + bias, mean and deviation gathered for each image."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, weight: Tensor, bias: Tensor, eps: float, relu: bool) -> Tensor:
        ctx.fused, ctx.relu = fused.suits(x, weight, bias), relu
        if ctx.fused:
            y, mean, scale = fused.kernels().neighbours_forward(x, rows, weight, bias, eps, relu)
            ctx.save_for_backward(x, rows, weight, bias, mean, scale)
            return y
        wide = x.float()
        y, origin, mean, scale = _normalised(wide, rows, weight, bias, eps)
        ctx.save_for_backward(x, rows, weight, origin, mean, scale)
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, rows, weight, other, mean, scale = ctx.saved_tensors
        if ctx.fused:
            gradient = gradient.contiguous(memory_format=torch.channels_last)
            gx, gw, gb = fused.kernels().neighbours_backward(gradient, x, rows, weight, other, mean, scale, ctx.relu)
            return gx, None, gw.to(weight.dtype), gb.to(other.dtype), None, None
        with torch.autocast(x.device.type, enabled=False):
            slope, area = gradient.float(), x.shape[2] * x.shape[3]
            x = x.float() - other
            total = slope.sum((2, 3))
            product = ((slope * x).sum((2, 3)) - mean * total) * scale  # with the normalised x
            to_second = -0.5 * scale.square() * weight * product
            to_mean = -scale * weight * total - 2.0 * mean * to_second
            back = rows.T @ torch.cat([to_mean, 2.0 * to_second], 1) / area
            of_mean, of_second = back[..., None, None].chunk(2, 1)
            gx = torch.addcmul(of_mean, x, of_second).addcmul_(slope, (scale * weight)[..., None, None])
        return gx.to(gradient.dtype), None, product.sum(0).to(weight.dtype), total.sum(0).to(weight.dtype), None, None
