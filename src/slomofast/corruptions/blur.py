"""Blur: out of focus, frosted glass, camera motion, zooming."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from slomofast.corruptions._levels import level, whole
from slomofast.corruptions._ops import correlate, gaussian, motion_blur8, round8, truncate8, zoom_average
from slomofast.corruptions._registry import register
from slomofast.corruptions.rng import SampleRng


@register("blur", "Out of focus: every point becomes a disc", random=False)
def defocus_blur(images: Tensor, severity: float, rng: SampleRng) -> Tensor:
    """Spread every pixel over a disc with a slightly smoothed rim."""
    radius, alias = level("defocus_blur", severity, images.shape[-1])
    return correlate(images, disc(radius, alias))


@lru_cache(maxsize=32)
def disc(radius: float, alias: float) -> np.ndarray:
    """Disc kernel, its rim smoothed by a Gaussian of `alias` pixels; empty margins cut off.

    The sum is 1 unless the disc touches its grid (radius 8), where the published kernel loses a little too.
    """
    reach = 8.0 if radius <= 8 else radius
    axis = np.arange(-reach, reach + 1)
    inside = (axis[:, None] ** 2 + axis[None, :] ** 2 <= radius**2).astype(np.float64)
    inside /= inside.sum()
    half = 1 if radius <= 8 else 2
    taps = np.arange(-half, half + 1)
    rim = np.exp(-0.5 * (taps / alias) ** 2) if alias > 0 else (taps == 0).astype(np.float64)
    rim /= rim.sum()
    padded = np.pad(inside, half, mode="reflect")
    size = len(axis)
    kernel = sum(
        rim[i] * rim[j] * padded[i : i + size, j : j + size] for i in range(len(taps)) for j in range(len(taps))
    )
    kernel = np.where(kernel > 1e-9, kernel, 0.0)  # rims of .01 pixels reach their neighbours in name only
    margin = 0
    while size - 2 * margin > 2 and not _edge(kernel, margin).any():
        margin += 1
    return kernel[margin : size - margin, margin : size - margin]


def _edge(kernel: np.ndarray, margin: int) -> np.ndarray:
    last = len(kernel) - 1 - margin
    return np.concatenate([kernel[margin], kernel[last], kernel[:, margin], kernel[:, last]])


@register("blur", "Frosted glass: pixels shuffled within a small neighbourhood")
def glass_blur(images: Tensor, severity: float, rng: SampleRng) -> Tensor:
    """Let every pixel take the colour of a random near-by pixel, between two slight blurs."""
    sigma, delta, rounds = level("glass_blur", severity, images.shape[-1])
    levels = truncate8(gaussian(images, sigma))
    batch, channels, size, _ = levels.shape
    source: Tensor | None = None
    for _ in range(whole(rounds)):
        step = shuffle_sources(size, max(1, whole(delta)), rng)
        source = step if source is None else source.gather(1, step)
    if source is not None:
        flat = levels.view(batch, channels, -1)
        levels = flat.gather(2, source[:, None].expand(-1, channels, -1)).view_as(levels)
    return gaussian(levels.div_(255), sigma)


def shuffle_sources(size: int, delta: int, rng: SampleRng) -> Tensor:
    """Pixel whose old value every pixel holds after one round of the glass shuffle; int64, shape (B, size*size).

    The published loop runs from the bottom right to the top left, and pixel p takes the current value of a
    neighbour q. If q comes later in raster order it was already rewritten, so p holds what q holds: a chain.
    Following all chains at once by doubling gives the same picture as the loop.
    """
    device = rng.device
    inner = size - 2 * delta  # rows delta+1 .. size-delta take part, and the same columns
    jump_x = rng.integers(-delta, delta, inner, inner)
    jump_y = rng.integers(-delta, delta, inner, inner)
    pixel = torch.arange(size * size, device=device).view(size, size)
    span = slice(delta + 1, size - delta + 1)
    target = pixel.expand(len(jump_x), size, size).clone()
    target[:, span, span] += jump_y * size + jump_x
    target = target.flatten(1)
    if delta == 1:  # jumps of -1 or 0 never reach a pixel that was already rewritten
        return target
    takes_part = torch.zeros(size, size, dtype=torch.bool, device=device)
    takes_part[span, span] = True
    chained = takes_part.flatten()[target] & (target > pixel.flatten())
    # `follow` jumps along a chain while it lasts; a pixel whose target holds its old value stays put.
    follow = torch.where(chained, target, pixel.flatten())
    # A chain goes on with probability below 1/2 per link, so 2**7 links are beyond anything that occurs.
    for _ in range(7):
        follow = follow.gather(1, follow)
    return target.gather(1, follow)


@register("blur", "Camera motion: a streak in a random direction")
def motion_blur(images: Tensor, severity: float, rng: SampleRng) -> Tensor:
    """Streak the image along an angle within 45 degrees of horizontal."""
    radius, sigma = level("motion_blur", severity, images.shape[-1])
    angle = rng.uniform(1, low=-math.pi / 4, high=math.pi / 4)[:, 0]
    return motion_blur8(round8(images), radius, sigma, angle).div(255)


@register("blur", "Zooming in while the shutter is open", random=False)
def zoom_blur(images: Tensor, severity: float, rng: SampleRng) -> Tensor:
    """Average the image with a series of its centred enlargements."""
    stop, step = level("zoom_blur", severity, images.shape[-1])
    return zoom_average(images, stop, step)
