"""Processing: brightness, contrast, elastic warps, pixelation, JPEG."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slomofast.corruptions._jpeg import jpeg8
from slomofast.corruptions._levels import elastic_unit, level, whole
from slomofast.corruptions._ops import SLACK, gaussian, largest_channel
from slomofast.corruptions._registry import register
from slomofast.corruptions.rng import SampleRng


@register("digital", "Overexposure: the value channel of HSV is raised", random=False)
def brightness(images: Tensor, severity: float, rng: SampleRng) -> Tensor:
    """Raise the value channel, keeping hue and saturation."""
    (add,) = level("brightness", severity, images.shape[-1])
    value = largest_channel(images)
    raised = (value + add).clamp_(max=1)
    # With hue and saturation kept, red, green and blue grow by the same factor; black turns grey.
    return images * (raised / value.clamp(min=1e-6)) + raised * (value == 0)


@register("digital", "Low contrast: values pulled towards the mean of their channel", random=False)
def contrast(images: Tensor, severity: float, rng: SampleRng) -> Tensor:
    """Shrink the distance of every value from its channel's mean over the image."""
    (factor,) = level("contrast", severity, images.shape[-1])
    mean = images.mean(dim=(2, 3), keepdim=True)
    return (images - mean).mul_(factor).add_(mean)


@register("distortion", "A random affine map followed by smooth local displacements")
def elastic_transform(images: Tensor, severity: float, rng: SampleRng) -> Tensor:
    """Warp by a jittered triangle, then by two smoothed random fields."""
    size = images.shape[-1]
    alpha, sigma, jitter = (value * elastic_unit(size) for value in level("elastic_transform", severity, size))
    moved = rng.uniform(3, 2, low=-jitter, high=jitter)
    out = _sample(images, *affine_positions(size, moved), edge_repeats=False)
    if alpha == 0:
        return out
    field = gaussian(rng.uniform(2, size, size, low=-1, high=1), sigma, truncate=3, border="reflect").mul_(alpha)
    here = torch.arange(size, device=images.device, dtype=torch.float32)
    return _sample(out, here + field[:, 0], here[:, None] + field[:, 1], edge_repeats=True)


def affine_positions(size: int, moved: Tensor) -> tuple[Tensor, Tensor]:
    """Where each output pixel of the affine warp looks: x and y, each (B, size, size).

    Args:
        size: side of the image.
        moved: displacement (x, y) of the three corner points, shape (B, 3, 2).
    """
    centre, quarter = size // 2, size // 3
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]], device=moved.device) * quarter
    new = corners + moved
    first, second = new[:, 0] - new[:, 2], new[:, 1] - new[:, 2]
    # The inverse map sends the moved corners home; corner differences at home are (2q, 2q) and (2q, 0).
    determinant = first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]
    scale = 2 * quarter / torch.where(determinant.abs() < 1e-3, torch.full_like(determinant, 1e-3), determinant)
    xx, xy = scale * (second[:, 1] - first[:, 1]), scale * (first[:, 0] - second[:, 0])
    yx, yy = scale * second[:, 1], -scale * second[:, 0]
    axis = torch.arange(size, device=moved.device, dtype=torch.float32) - centre
    x = axis[None, None, :] - new[:, 2, 0, None, None]
    y = axis[None, :, None] - new[:, 2, 1, None, None]
    home = centre - quarter
    at_x = xx[:, None, None] * x + xy[:, None, None] * y + home
    at_y = yx[:, None, None] * x + yy[:, None, None] * y + home
    # The published warp works with a grid of 1/32 pixel.
    return at_x.mul_(32).add_(0.5).floor_().div_(32), at_y.mul_(32).add_(0.5).floor_().div_(32)


def _sample(images: Tensor, x: Tensor, y: Tensor, edge_repeats: bool) -> Tensor:
    """Bilinear look-up at pixel positions; the border mirrors, with or without repeating the edge pixel."""
    size = images.shape[-1]
    if edge_repeats:
        grid = torch.stack([x, y], -1).mul_(2).add_(1).div_(size).sub_(1)
    else:
        grid = torch.stack([x, y], -1).mul_(2 / (size - 1)).sub_(1)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=not edge_repeats)


@register("distortion", "Shrunk and enlarged again without smoothing", random=False, levels=True)
def pixelate(images: Tensor, severity: float, rng: SampleRng) -> Tensor:
    """Shrink by box averaging, then enlarge with hard edges, in 8 bits after each pass."""
    size = images.shape[-1]
    (share,) = level("pixelate", severity, size)
    taps, counts, enlarge = blocks(size, max(1, int(size * share + 1e-9)), images.device)
    # Whole rows are picked quickly, single pixels slowly; so the image is turned over for what goes along the rows.
    narrow = _turned(_row_means(_turned(images), taps, counts))
    small = _row_means(narrow, taps, counts)
    return _turned(_turned(small).index_select(2, enlarge)).index_select(2, enlarge)


def _turned(levels: Tensor) -> Tensor:
    """Rows and columns exchanged."""
    return levels.transpose(2, 3).contiguous()


def _row_means(levels: Tensor, taps: Tensor, counts: Tensor) -> Tensor:
    """Means of windows of rows, rounded to whole grey levels; uint8. Sums of so few levels are exact in fp32."""
    counts = counts[:, None]
    total = levels.index_select(2, taps[0]).float()
    for number, places in enumerate(taps[1:], 1):
        total.addcmul_(levels.index_select(2, places).float(), (number < counts).float())
    return total.div_(counts).add_(0.5 + SLACK).to(torch.uint8)


@lru_cache(maxsize=64)
def blocks(size: int, small: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """A box resize to `small` pixels and back along one axis.

    Returns the pixels of each window (taps, small), how many of them count (small,), and which small pixel each large
    one shows (size,). A shrunk pixel is the plain mean of the pixels whose centres its window covers.
    """
    scale = size / small
    windows = []
    for i in range(small):
        centre = (i + 0.5) * scale
        lowest = max(int(centre - scale / 2 + 0.5), 0)
        highest = min(int(centre + scale / 2 + 0.5), size)
        place = (np.arange(lowest, highest) - centre + 0.5) / scale
        windows.append(np.arange(lowest, highest)[(place > -0.5) & (place <= 0.5)])
    counts = np.array([len(window) for window in windows])
    taps = np.stack([np.resize(window, counts.max()) for window in windows], 1)
    enlarge = np.minimum(((np.arange(size) + 0.5) / scale).astype(np.int64), small - 1)
    return torch.from_numpy(taps).to(device), torch.from_numpy(counts).to(device), torch.from_numpy(enlarge).to(device)


@register("distortion", "JPEG compression", random=False, levels=True)
def jpeg_compression(images: Tensor, severity: float, rng: SampleRng) -> Tensor:
    """Encode and decode as JPEG: Pillow on the CPU, the same arithmetic in tensors elsewhere."""
    (quality,) = level("jpeg_compression", severity, images.shape[-1])
    return jpeg8(images, whole(quality))
