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

from slomofast.core.errors import InputError
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


def require_images(x: Tensor) -> Tensor:
    """The batch, if it holds images (B, channels, H, W)."""
    if x.dim() != 4:
        raise InputError(
            f"this method looks at altered images (B, channels, H, W), got a batch of shape {tuple(x.shape)}; use one "
            "that needs none, for example tent or eta"
        )
    return x


def augment(x: Tensor, rng: Rng, chain: Chain = MEAN_TEACHER, per: Per = "batch") -> Tensor:
    """One random view of each image: colour jitter, affine map, blur, flip, noise, clipped to [0, 1]."""
    x = require_images(x).float().clamp(0.0, 1.0)
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
    # (5, 3, 1), made on the device: a tensor made of Python numbers would be copied there, and the host would wait
    offsets = (5.0 - 2.0 * torch.arange(3, device=x.device))[None, :, None, None]
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
    batch, channels, height, width = require_images(x).shape
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


Crop = Literal["pad", "resized", "none"]


def augmix(x: Tensor, rng: Rng, crop: Crop = "pad") -> Tensor:
    """One random AugMix view of each image: three chains of one to three mild 8-bit operations, mixed with the image.

    Operations and strengths are those of MEMO (severity 1, nothing that resembles a corruption): at that strength
    whole numbers are cut off, so posterising is always to four bits and a rotation by zero to two degrees.

    Args:
        crop: what happens first, together with a random flip. pad: shifted by up to four pixels, black beyond the edge;
            resized: a random 8 to 100 % of the area, stretched to the whole; none: neither crop nor flip.
    """
    base = (require_images(x).float().clamp(0.0, 1.0) * 255).round()
    base = base if crop == "none" else _random_crop(base, rng, crop)
    batch, chains = base.shape[0], 3
    mixed = base.repeat(chains, 1, 1, 1)
    # the host draws which operation meets which image, so that each image undergoes its own only and nobody waits
    depth = torch.randint(1, 4, (chains * batch,), generator=rng.host)
    for position in range(3):
        kind = torch.randint(0, 9, (chains * batch,), generator=rng.host)
        mixed = _operation(mixed, kind.masked_fill(depth <= position, -1), rng)
    weight = -rng.uniform(chains, batch, 1, 1, 1).clamp_min(1e-12).log()  # Dirichlet(1, 1, 1) once normalised
    mix = (weight / weight.sum(0) * mixed.view(chains, *base.shape)).sum(0)
    return (torch.lerp(mix, base, rng.uniform(batch, 1, 1, 1)) / 255).clamp(0.0, 1.0)


def _random_crop(x: Tensor, rng: Rng, crop: Crop) -> Tensor:
    batch, _, height, width = x.shape
    flip = torch.where(rng.uniform(batch) < 0.5, -1.0, 1.0)
    scale_x = scale_y = torch.ones(batch, device=x.device)
    if crop == "pad":
        left, top = ((rng.uniform(batch, low=0.0, high=9.0).floor() - 4).clamp(max=4) for _ in range(2))
    else:
        area = rng.uniform(batch, low=0.08, high=1.0)
        ratio = rng.uniform(batch, low=math.log(3 / 4), high=math.log(4 / 3)).exp()
        scale_x, scale_y = (area * ratio).sqrt().clamp(max=1.0), (area / ratio).sqrt().clamp(max=1.0)
        left = (rng.uniform(batch) * width * (1 - scale_x)).floor()
        top = (rng.uniform(batch) * height * (1 - scale_y)).floor()
    zero = torch.zeros_like(left)
    left = torch.where(flip < 0, left + width * scale_x, left)
    across, down = torch.stack([flip * scale_x, zero, left], 1), torch.stack([zero, scale_y, top], 1)
    return affine(x, torch.stack([across, down], 1))


def _operation(x: Tensor, kind: Tensor, rng: Rng) -> Tensor:
    """Each image under the operation `kind` (B,), on the host, -1 for none; strengths are drawn here."""
    level = rng.uniform(x.shape[0], low=0.1, high=1.0) / 10
    sign = torch.where(rng.uniform(x.shape[0]) < 0.5, -1.0, 1.0)
    out = x.clone()
    for operation in range(5):
        rows = ((kind >= 4) if operation == 4 else (kind == operation)).nonzero().squeeze(1)
        if not len(rows):
            continue
        chosen = rows.to(x.device, non_blocking=True)
        part = x[chosen]
        if operation == 0:
            part = autocontrast(part)
        elif operation == 1:
            part = equalise(part)
        elif operation == 2:
            part = posterise(part)
        elif operation == 3:
            part = solarise(part, 256 - (256 * level[chosen]).floor())
        else:
            part = affine(part, _motion(part, kind[rows].to(x.device, non_blocking=True), (sign * level)[chosen]))
        out[chosen] = part
    return out


def _motion(x: Tensor, kind: Tensor, level: Tensor) -> Tensor:
    """Matrices (B, 2, 3) for `affine`: 4 rotation about the centre, 5 and 6 shears, 7 and 8 shifts along x and y."""
    height, width = x.shape[2:]

    def only(operation: int, value: Tensor) -> Tensor:
        return torch.where(kind == operation, value, torch.zeros_like(value))

    angle = only(4, (30 * level).trunc()) * (math.pi / 180)
    cos, sin, middle_x, middle_y = angle.cos(), angle.sin(), width / 2, height / 2
    shift_x = (1 - cos) * middle_x - sin * middle_y + only(7, (width / 3 * level).trunc())
    shift_y = (1 - cos) * middle_y + sin * middle_x + only(8, (height / 3 * level).trunc())
    across = torch.stack([cos, sin + only(5, 0.3 * level), shift_x], 1)
    down = torch.stack([only(6, 0.3 * level) - sin, cos, shift_y], 1)
    return torch.stack([across, down], 1)


def affine(x: Tensor, matrix: Tensor) -> Tensor:
    """Images (B, C, H, W) of values up to 255 seen through an affine map, bilinear, black outside.

    `matrix` (B, 2, 3) says for a point of the output where in the input to look, in pixels from the upper left edge;
    the centre of the first pixel is (0.5, 0.5).
    """
    height, width = x.shape[2:]
    across = (torch.arange(width, device=x.device) + 0.5)[None, None, :]
    down = (torch.arange(height, device=x.device) + 0.5)[None, :, None]
    a = matrix[:, :, :, None, None]  # products written out: autocast would round a matrix product to three digits
    look_x = a[:, 0, 0] * across + a[:, 0, 1] * down + a[:, 0, 2]
    look_y = a[:, 1, 0] * across + a[:, 1, 1] * down + a[:, 1, 2]
    inside = (look_x >= 0) & (look_x < width) & (look_y >= 0) & (look_y < height)
    grid = torch.stack([2 * look_x / width - 1, 2 * look_y / height - 1], -1)
    seen = F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return (seen * inside[:, None]).round()


def autocontrast(x: Tensor) -> Tensor:
    """Each channel stretched to 0..255; a flat one stays."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    stretched = ((x - low) * (255.0 / (high - low).clamp_min(1.0)) + 1e-3).floor()
    return torch.where(high > low, stretched, x)


def equalise(x: Tensor) -> Tensor:
    """Each channel with an even histogram; one of too few values stays."""
    flat = x.flatten(2).flatten(0, 1).contiguous()
    ordered = flat.sort(1).values
    levels = torch.arange(256.0, device=x.device).expand(flat.shape[0], 256).contiguous()
    below = torch.searchsorted(ordered, levels)  # how many pixels are darker than each level
    step = below.gather(1, ordered[:, -1:].long()) // 255
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255).to(x.dtype)
    even = table.gather(1, flat.long())
    return torch.where(step > 0, even, flat).view_as(x)


def posterise(x: Tensor) -> Tensor:
    """Values cut to their four highest bits."""
    return (x / 16).floor() * 16


def solarise(x: Tensor, threshold: Tensor) -> Tensor:
    """Values from each image's threshold (B,) on are inverted."""
    return torch.where(x >= threshold[:, None, None, None], 255 - x, x)
