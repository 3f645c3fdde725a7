"""Weather: snow, frost and fog."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from slomofast.corruptions._frost import frost_texture
from slomofast.corruptions._levels import frost_scale, level
from slomofast.corruptions._ops import motion_blur8, separable, truncate8, zoom_map
from slomofast.corruptions._registry import register
from slomofast.corruptions.rng import SampleRng


@register("weather", "Falling snow: bright streaks over a whitened scene")
def snow(images: Tensor, severity: float, rng: SampleRng) -> Tensor:
    """Whiten the scene and add a layer of streaked flakes and its copy turned by half a turn."""
    size = images.shape[-1]
    mean, spread, zoom, threshold, radius, sigma, share = level("snow", severity, size)
    flakes = rng.normal(1, size, size).mul_(spread).add_(mean)
    if zoom > 1:
        flakes = separable(flakes, zoom_map(size, zoom, images.device))
    flakes *= flakes >= threshold
    angle = rng.uniform(1, low=-0.75 * math.pi, high=-0.25 * math.pi)[:, 0]
    layer = motion_blur8(truncate8(flakes), radius, sigma, angle).div(255)
    red, green, blue = images[:, 0:1], images[:, 1:2], images[:, 2:3]
    grey = (0.299 * red).add_(green, alpha=0.587).add_(blue, alpha=0.114)
    white = torch.maximum(images, grey.mul_(1.5).add_(0.5))
    layer = layer + layer.flip(2, 3)
    return white.mul_(1 - share).add_(images, alpha=share).add_(layer)


@register("weather", "Ice crystals on the lens")
def frost(images: Tensor, severity: float, rng: SampleRng) -> Tensor:
    """Blend with a random window of one of five ice textures."""
    size = images.shape[-1]
    keep, ice = level("frost", severity, size)
    texture = frost_texture(frost_scale(size), size, images.device)
    which = rng.integers(0, len(texture.widths), 1)[:, 0]
    width, height, start = texture.widths[which], texture.heights[which], texture.starts[which]
    top = (rng.uniform(1)[:, 0] * (height - size)).long()
    left = (rng.uniform(1)[:, 0] * (width - size)).long()
    here = torch.arange(size, device=images.device)
    rows = (start + left)[:, None] + (top[:, None] + here) * width[:, None]
    place = (rows[:, :, None] + here).view(-1)
    crop = torch.stack([channel.index_select(0, place).view(-1, size, size) for channel in texture.pixels], 1)
    return crop.mul_(ice).add_(images, alpha=keep)


@register("weather", "Fog of varying density")
def fog(images: Tensor, severity: float, rng: SampleRng) -> Tensor:
    """Add a fractal cloud and rescale so that the brightest value stays where it was."""
    size = images.shape[-1]
    amount, decay = level("fog", severity, size)
    side = 2 ** math.ceil(math.log2(size))
    cloud = plasma(side, decay, rng)[:, None, :size, :size]
    brightest = images.amax(dim=(1, 2, 3), keepdim=True)
    return (images + amount * cloud).mul_(brightest / (brightest + amount))


def plasma(side: int, decay: float, rng: SampleRng) -> Tensor:
    """Fractal clouds by diamond-square on a torus, scaled to [0, 1]; shape (B, side, side), side a power of two."""
    cloud = torch.zeros(len(rng.index), side, side, device=rng.device)
    step, wobble = side, 100.0
    while step >= 2:
        half, count, amplitude = step // 2, side // step, wobble * wobble
        corner = cloud[:, ::step, ::step]
        beside = corner.roll(-1, 1)
        square = corner + beside + corner.roll(-1, 2) + beside.roll(-1, 2)
        middle = square / 4 + rng.uniform(count, count, low=-amplitude, high=amplitude)
        across = middle + middle.roll(1, 1) + corner + corner.roll(-1, 2)
        down = middle + middle.roll(1, 2) + corner + corner.roll(-1, 1)
        cloud[:, half::step, half::step] = middle
        cloud[:, ::step, half::step] = across / 4 + rng.uniform(count, count, low=-amplitude, high=amplitude)
        cloud[:, half::step, ::step] = down / 4 + rng.uniform(count, count, low=-amplitude, high=amplitude)
        step, wobble = half, wobble / decay
    cloud -= cloud.amin(dim=(1, 2), keepdim=True)
    return cloud / cloud.amax(dim=(1, 2), keepdim=True)
