"""The four validation corruptions: speckle, Gaussian blur, spatter, saturation."""

from __future__ import annotations

import torch
from torch import Tensor

from slomofast.corruptions._levels import level
from slomofast.corruptions._ops import gaussian, largest_channel, truncate8
from slomofast.corruptions._registry import register
from slomofast.corruptions._water import water_mask
from slomofast.corruptions.rng import SampleRng

_WATER = (175 / 255, 238 / 255, 238 / 255)
_MUD = (63 / 255, 42 / 255, 20 / 255)


@register("noise", "Normal noise in proportion to the value itself")
def speckle_noise(images: Tensor, severity: float, rng: SampleRng) -> Tensor:
    """Add normal noise that scales with brightness."""
    (std,) = level("speckle_noise", severity, images.shape[-1])
    return rng.normal(*images.shape[1:]).mul_(std).add_(1).mul_(images)


@register("blur", "Gaussian blur", random=False)
def gaussian_blur(images: Tensor, severity: float, rng: SampleRng) -> Tensor:
    """Blur with a Gaussian."""
    (sigma,) = level("gaussian_blur", severity, images.shape[-1])
    return gaussian(images, sigma)


@register("weather", "Water drops or mud on the lens")
def spatter(images: Tensor, severity: float, rng: SampleRng) -> Tensor:
    """Brighten by water drops (mild severities) or cover with mud (strong ones)."""
    size = images.shape[-1]
    mean, spread, sigma, threshold, strength, mud = level("spatter", severity, size)
    liquid = gaussian(rng.normal(1, size, size).mul_(spread).add_(mean), sigma)
    if mud >= 0.5:
        cover = gaussian((liquid > threshold).float(), strength)
        cover = cover * (cover >= 0.8)
        return images * (1 - cover) + cover * _colour(_MUD, images)
    liquid = liquid * (liquid >= threshold)
    return images + strength * water_mask(truncate8(liquid)) * _colour(_WATER, images)


@register("digital", "Saturation of HSV scaled and shifted", random=False)
def saturate(images: Tensor, severity: float, rng: SampleRng) -> Tensor:
    """Scale and shift the saturation, keeping hue and value."""
    factor, add = level("saturate", severity, images.shape[-1])
    value = largest_channel(images)
    depth = value - images  # (1 - channel / value) * value
    deepest = largest_channel(depth)
    saturation = deepest / value.clamp(min=1e-6)
    wanted = (saturation * factor + add).clamp_(max=1)
    grey = deepest == 0
    out = value - depth * (wanted * value / deepest.clamp(min=1e-6))
    # Grey has hue 0 by convention: more saturation turns it red.
    red_grey = torch.cat([torch.zeros_like(value), (wanted * value).expand(-1, 2, -1, -1)], 1)
    return out - red_grey * grey


def _colour(rgb: tuple[float, float, float], images: Tensor) -> Tensor:
    return torch.tensor(rgb, device=images.device, dtype=images.dtype).view(1, 3, 1, 1)
