"""Batched test-time augmentations: tensors (B, 3, H, W) in [0, 1] on their own device, randomness from an `Rng`.

Two habits are offered: `per="batch"` draws one set of parameters for the whole batch (that of the public code of the
field, and the default), `per="image"` draws one set per image. Padding, affine map and centre crop are one resampling:
the map never reaches further than the padding would, so border handling of the sampler stands for the padded canvas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from slomofast.core.rng import Rng

Per = Literal["batch", "image"]


@dataclass(frozen=True)
class Chain:
    """A published augmentation chain as numbers; apply it with `augment`.

    Ranges are (low, high) of uniform draws; `border` is how the image continues beyond its edge.
    """

    brightness: tuple[float, float] = (0.6, 1.4)
    contrast: tuple[float, float] = (0.7, 1.3)
    saturation: tuple[float, float] = (0.5, 1.5)
    hue: tuple[float, float] = (-0.06, 0.06)
    gamma: tuple[float, float] = (0.7, 1.3)
    degrees: float = 15.0
    translate: float = 1 / 16  # of the padded side, which is twice the image's
    scale: tuple[float, float] = (0.9, 1.1)
    border: Literal["border", "reflection"] = "border"
    blur_sigma: tuple[float, float] | None = (0.001, 0.5)
    noise: float = 0.005
    flip: bool = True


MEAN_TEACHER = Chain()
"""Chain of CoTTA and RMT: edge padding, blur and noise."""
MEAN_TEACHER_SOFT = Chain(
    brightness=(0.8, 1.2),
    contrast=(0.85, 1.15),
    saturation=(0.75, 1.25),
    hue=(-0.03, 0.03),
    gamma=(0.85, 1.15),
    degrees=8.0,
    scale=(0.95, 1.05),
    blur_sigma=(0.001, 0.25),
)
"""The same with about half the strength, as CoTTA offers it."""
WEIGHT_ENSEMBLE = Chain(border="reflection", blur_sigma=None, noise=0.0)
"""Chain of ROID: reflection padding, no blur, no noise."""


def augment(x: Tensor, rng: Rng, chain: Chain = MEAN_TEACHER, per: Per = "batch") -> Tensor:
    """One random view of each image: colour jitter, affine map, blur, flip, noise, clipped to [0, 1]."""
    x = x.float().clamp(0.0, 1.0)
    rows = 1 if per == "batch" else x.shape[0]
    x = colour_jitter(x, rng, chain, rows)
    x = _warp(x, rng, chain, rows)
    if chain.noise:
        x = x + chain.noise * rng.normal(*x.shape)
    return x.clamp(0.0, 1.0)


def colour_jitter(x: Tensor, rng: Rng, chain: Chain, rows: int) -> Tensor:
    """Brightness, contrast, saturation, hue and gamma with random factors, in a random order."""

    def factor(bounds: tuple[float, float]) -> Tensor:
        return rng.uniform(rows, 1, 1, 1, low=bounds[0], high=bounds[1])

    operations = (
        lambda t: adjust_brightness(t, factor(chain.brightness)),
        lambda t: adjust_contrast(t, factor(chain.contrast)),
        lambda t: adjust_saturation(t, factor(chain.saturation)),
        lambda t: adjust_hue(t, factor(chain.hue)),
        lambda t: t.clamp(1e-8, 1.0) ** factor(chain.gamma),
    )
    for position in rng.order(len(operations)):
        x = operations[position](x)
    return x


def grey(x: Tensor) -> Tensor:
    """Luma of RGB images, one channel kept; images of other channel counts: the mean."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    return 0.2989 * x[:, 0:1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]


def adjust_brightness(x: Tensor, factor: Tensor | float) -> Tensor:
    """Scale all values."""
    return (x * factor).clamp(0.0, 1.0)


def adjust_contrast(x: Tensor, factor: Tensor | float) -> Tensor:
    """Move values from or towards each image's mean luma."""
    mean = grey(x).mean((1, 2, 3), keepdim=True)
    return (mean + (x - mean) * factor).clamp(0.0, 1.0)


def adjust_saturation(x: Tensor, factor: Tensor | float) -> Tensor:
    """Move values from or towards each pixel's luma."""
    luma = grey(x)
    return (luma + (x - luma) * factor).clamp(0.0, 1.0)


def adjust_hue(x: Tensor, shift: Tensor | float) -> Tensor:
    """Turn the hue by a share of the full circle; images that are not RGB stay as they are."""
    if x.shape[1] != 3:
        return x
    high, low = x.amax(1), x.amin(1)
    chroma = high - low
    safe = torch.where(chroma > 0, chroma, 1.0)
    r, g, b = x.unbind(1)
    hue = torch.where(high == r, (g - b) / safe, torch.where(high == g, 2.0 + (b - r) / safe, 4.0 + (r - g) / safe))
    turned = hue + 6.0 * (shift.squeeze(1) if isinstance(shift, Tensor) else shift)
    # channel n of an HSV colour is V - chroma * clip(min(k, 4 - k), 0, 1) with k = (n + hue) mod 6
    offsets = torch.tensor([5.0, 3.0, 1.0], device=x.device)[None, :, None, None]
    k = (offsets + turned[:, None]) % 6.0
    return high[:, None] - chroma[:, None] * torch.minimum(k, 4.0 - k).clamp(0.0, 1.0)


def _warp(x: Tensor, rng: Rng, chain: Chain, rows: int) -> Tensor:
    batch, _, height, width = x.shape
    margin = 2 if chain.blur_sigma else 0
    angle = rng.uniform(rows, low=-chain.degrees, high=chain.degrees) * (math.pi / 180.0)
    scale = rng.uniform(rows, low=chain.scale[0], high=chain.scale[1])
    reach_x, reach_y = 2 * width * chain.translate, 2 * height * chain.translate
    shift_x = rng.uniform(rows, low=-reach_x, high=reach_x).round()
    shift_y = rng.uniform(rows, low=-reach_y, high=reach_y).round()
    mirror = (rng.uniform(rows) < 0.5) & chain.flip
    ys = torch.arange(-margin, height + margin, device=x.device, dtype=torch.float32) - (height - 1) / 2
    xs = torch.arange(-margin, width + margin, device=x.device, dtype=torch.float32) - (width - 1) / 2
    xs = torch.where(mirror, -1.0, 1.0)[:, None] * xs[None, :]  # flipping the output is flipping where it looks
    across, down = xs[:, None, :] - shift_x[:, None, None], ys[None, :, None] - shift_y[:, None, None]
    cos, sin = (angle.cos() / scale)[:, None, None], (angle.sin() / scale)[:, None, None]
    source_x, source_y = cos * across + sin * down, cos * down - sin * across
    grid = torch.stack([source_x * (2 / max(1, width - 1)), source_y * (2 / max(1, height - 1))], -1)
    grid = grid.expand(batch, -1, -1, -1)
    x = F.grid_sample(x, grid, mode="bilinear", padding_mode=chain.border, align_corners=True)
    if chain.blur_sigma:
        x = _blur5(x, rng.uniform(rows, low=chain.blur_sigma[0], high=chain.blur_sigma[1]))
    return x


def _blur5(x: Tensor, sigma: Tensor) -> Tensor:
    """Separable 5x5 Gaussian without padding; sigma (1,) or (B,)."""
    taps = torch.arange(-2.0, 3.0, device=x.device)
    weight = (-0.5 * (taps[None, :] / sigma[:, None]) ** 2).softmax(1)
    for axis in (2, 3):
        length = x.shape[axis] - 4
        parts = [x.narrow(axis, tap, length) * weight[:, tap, None, None, None] for tap in range(5)]
        x = parts[0] + parts[1] + parts[2] + parts[3] + parts[4]
    return x


Destruction = Literal["patch", "pixel", "occlusion"]


def destroy(x: Tensor, rng: Rng, kind: Destruction = "patch", grid: int = 4) -> Tensor:
    """Images whose object shape is gone but whose local statistics stay.

    patch: a `grid` x `grid` raster of patches in random order, another order per image. Sides that are no multiple of
    the grid are resized for the shuffle and back. pixel: all pixels in random order. occlusion: the centre half
    replaced by the image's mean colour.
    """
    batch, channels, height, width = x.shape
    if kind == "occlusion":
        middle = torch.zeros(height, width, dtype=torch.bool, device=x.device)
        middle[height // 4 : height - height // 4, width // 4 : width - width // 4] = True
        return torch.where(middle, x.mean((2, 3), keepdim=True), x)
    if kind == "pixel":
        order = rng.uniform(batch, height * width).argsort(1)
        return x.flatten(2).gather(2, order[:, None, :].expand(-1, channels, -1)).view_as(x)
    tall, wide = -(-height // grid) * grid, -(-width // grid) * grid
    even = x if (tall, wide) == (height, width) else F.interpolate(x, (tall, wide), mode="bilinear")
    side_y, side_x = tall // grid, wide // grid
    patches = even.view(batch, channels, grid, side_y, grid, side_x).permute(0, 2, 4, 1, 3, 5)
    patches = patches.reshape(batch, grid * grid, -1)
    order = rng.uniform(batch, grid * grid).argsort(1)
    mixed = patches.gather(1, order[:, :, None].expand_as(patches))
    mixed = mixed.view(batch, grid, grid, channels, side_y, side_x).permute(0, 3, 1, 4, 2, 5)
    mixed = mixed.reshape(batch, channels, tall, wide)
    return mixed if even is x else F.interpolate(mixed, (height, width), mode="bilinear")
