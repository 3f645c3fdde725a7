"""Image operators the corruptions share: quantising, separable maps, filters, zoom, motion blur.

Matrix products run in float64. That keeps them free of reduced-precision modes of a GPU, and it makes the
float32 result independent of how a batch is cut, so that an image looks the same in any batch.
"""

from __future__ import annotations

import math
import warnings
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# The published scripts truncate 255 * x. A float32 rounding error just below an integer must not cost a
# whole grey level, hence the slack; it is far too small to turn truncation into rounding.
SLACK = 1e-3


def truncate8(images: Tensor) -> Tensor:
    """Clip to [0, 1] and cut to 256 levels as the published scripts do; float values 0..255."""
    return images.clamp(0, 1).mul_(255).add_(SLACK).floor_()


def round8(images: Tensor) -> Tensor:
    """Nearest of 256 levels of images in [0, 1]; float values 0..255."""
    return images.mul(255).add_(0.5).floor_()


def largest_channel(images: Tensor) -> Tensor:
    """Largest of the three channels of each pixel (the value of HSV), shape (B, 1, S, S)."""
    return torch.maximum(torch.maximum(images[:, 0:1], images[:, 1:2]), images[:, 2:3])


def fold(position: np.ndarray, size: int, border: str) -> np.ndarray:
    """Index inside 0..size-1 that a position outside stands for.

    Borders: `nearest` repeats the edge, `reflect` mirrors including the edge pixel, `mirror` without it.
    """
    if border == "nearest":
        return np.clip(position, 0, size - 1)
    if border == "reflect":
        position = np.mod(position, 2 * size)
        return np.minimum(position, 2 * size - 1 - position)
    period = max(2 * size - 2, 1)
    position = np.mod(position, period)
    return np.minimum(position, period - position)


@lru_cache(maxsize=128)
def gaussian_map(size: int, sigma: float, truncate: float, border: str, device: torch.device) -> Tensor:
    """Matrix (size, size), float64, of a one-dimensional Gaussian filter of radius int(truncate*sigma + .5)."""
    radius = int(truncate * sigma + 0.5)
    matrix = np.zeros((size, size))
    if radius == 0:
        return torch.eye(size, dtype=torch.float64, device=device)
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (offsets / sigma) ** 2)
    weights /= weights.sum()
    rows = np.repeat(np.arange(size), len(offsets))
    columns = fold(rows + np.tile(offsets, size), size, border)
    np.add.at(matrix, (rows, columns), np.tile(weights, size))
    return torch.from_numpy(matrix).to(device)


def separable(images: Tensor, matrix: Tensor, reach: int | None = None) -> Tensor:
    """Apply one linear map to the rows and the columns of images (..., S, S); float32 out.

    `reach` says how far from the diagonal the matrix has entries; a narrow one is applied in blocks along it.
    """
    size = len(matrix)
    block = -(-size // 8)
    if reach is None or images.device.type != "cpu" or size < 128 or block + 2 * reach > size // 2:
        return (matrix @ (images.double() @ matrix.T)).float()
    exact = images.double()
    across, out = torch.empty_like(exact), torch.empty_like(exact)
    spans = [(slice(s, s + block), slice(max(0, s - reach), s + block + reach)) for s in range(0, size, block)]
    for target, source in spans:
        across[..., target] = exact[..., source] @ matrix[target, source].T
    for target, source in spans:
        out[..., target, :] = matrix[target, source] @ across[..., source, :]
    return out.float()


def gaussian(images: Tensor, sigma: float, truncate: float = 4.0, border: str = "nearest") -> Tensor:
    """Gaussian blur of (..., S, S) in pixels of `sigma`; tiny sigmas, whose radius rounds to 0, change nothing."""
    reach = int(truncate * sigma + 0.5)
    if reach == 0:
        return images
    return separable(images, gaussian_map(images.shape[-1], sigma, truncate, border, images.device), reach)


def correlate(images: Tensor, kernel: np.ndarray) -> Tensor:
    """Correlate every channel of (B, C, S, S) with a kernel, mirror border; centre at index k // 2."""
    height, width = kernel.shape
    top, left = height // 2, width // 2
    size = images.shape[-1]
    taps = [(y, x, float(kernel[y, x])) for y, x in np.argwhere(kernel)]
    if len(taps) <= 64:
        padded = F.pad(images, (left, width - 1 - left, top, height - 1 - top), mode="reflect")
        out = torch.zeros_like(images)
        for y, x, weight in taps:
            out.add_(padded[..., y : y + size, x : x + size], alpha=weight)
        return out
    side = fft_size(size + max(height, width) - 1)
    # Padded at once to a length that transforms quickly; what lies beyond the kernel's reach is cut off below.
    padded = F.pad(images, (left, side - size - left, top, side - size - top), mode="reflect")
    spectrum = torch.fft.rfft2(padded).mul_(_spectrum(kernel.tobytes(), kernel.shape, side, images.device))
    whole = torch.fft.irfft2(spectrum, s=(side, side))
    return whole[..., height - 1 : height - 1 + size, width - 1 : width - 1 + size]


@lru_cache(maxsize=16)
def _spectrum(kernel: bytes, shape: tuple[int, int], side: int, device: torch.device) -> Tensor:
    """Spectrum of a kernel, turned by 180 degrees, so that a product with it correlates."""
    turned = np.frombuffer(kernel).reshape(shape)[::-1, ::-1].copy()
    return torch.fft.rfft2(torch.from_numpy(turned).float().to(device), s=(side, side))


@lru_cache(maxsize=64)
def fft_size(least: int) -> int:
    """Nearest length from `least` upwards that transforms quickly: a multiple of 4 without prime factors above 7.

    >>> fft_size(244)  # 244 = 4 x 61 takes three times as long
    252
    """
    for length in range(-(-least // 4) * 4, 2 * least + 8, 4):
        rest = length
        for factor in (2, 3, 5, 7):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return length
    raise AssertionError("powers of two are never further away than that")


def zoom_rows(size: int, factor: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Linear interpolation of a centred zoom along one axis: lower index, upper index, weight of the upper.

    The crop of ceil(size / factor) pixels is stretched corner to corner and the centre of the result kept.
    """
    crop = math.ceil(size / factor)
    stretched = round(crop * factor)
    at = (np.arange(size) + (stretched - size) // 2) * ((crop - 1) / max(stretched - 1, 1))
    lower = np.minimum(np.floor(at).astype(np.int64), crop - 1)
    upper = np.minimum(lower + 1, crop - 1)
    start = (size - crop) // 2
    return lower + start, upper + start, at - lower


@lru_cache(maxsize=64)
def zoom_map(size: int, factor: float, device: torch.device) -> Tensor:
    """Matrix (size, size), float64, of a centred zoom along one axis."""
    lower, upper, share = zoom_rows(size, factor)
    matrix = np.zeros((size, size))
    np.add.at(matrix, (np.arange(size), lower), 1 - share)
    np.add.at(matrix, (np.arange(size), upper), share)
    return torch.from_numpy(matrix).to(device)


def zoom_average(images: Tensor, stop: float, step: float) -> Tensor:
    """Mean of images (B, C, S, S) and their centred zooms by arange(1, stop, step)."""
    factors = np.arange(1, stop, step)
    if not len(factors):
        return images
    size = images.shape[-1]
    if size <= 64:
        pixels = images.reshape(-1, size * size).T.contiguous()
        return (_zoom_average_map(size, stop, step, images.device) @ pixels).T.reshape(images.shape)
    total = images.clone()
    for factor in factors:
        crop = math.ceil(size / factor)
        start, stretched = (size - crop) // 2, round(crop * factor)
        part = images[..., start : start + crop, start : start + crop]
        large = F.interpolate(part, size=(stretched, stretched), mode="bilinear", align_corners=True)
        trim = (stretched - size) // 2
        total += large[..., trim : trim + size, trim : trim + size]
    return total.div_(len(factors) + 1)


@lru_cache(maxsize=32)
def _zoom_average_map(size: int, stop: float, step: float, device: torch.device) -> Tensor:
    """The same mean as one sparse map (S*S, S*S): for small images far cheaper than zooming one by one."""
    factors = np.arange(1, stop, step)
    pixels = size * size
    target = np.arange(pixels)
    entries, weights = [target * pixels + target], [np.ones(pixels)]
    for factor in factors:
        lower, upper, share = zoom_rows(size, float(factor))
        for rows, row_weight in ((lower, 1 - share), (upper, share)):
            for columns, column_weight in ((lower, 1 - share), (upper, share)):
                source = (rows[:, None] * size + columns[None, :]).ravel()
                entries.append(target * pixels + source)
                weights.append((row_weight[:, None] * column_weight[None, :]).ravel())
    place, which = np.unique(np.concatenate(entries), return_inverse=True)
    values = np.bincount(which, np.concatenate(weights)) / (len(factors) + 1)
    ends = np.searchsorted(place, np.arange(pixels + 1) * pixels)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse")
        return torch.sparse_csr_tensor(
            torch.from_numpy(ends).int(),
            torch.from_numpy(place % pixels).int(),
            torch.from_numpy(values).float(),
            (pixels, pixels),
            check_invariants=False,
        ).to(device)


def motion_blur8(levels: Tensor, radius: float, sigma: float, angle: Tensor) -> Tensor:
    """One-sided Gaussian streak of 8-bit images along a direction of their own.

    Args:
        levels: values 0..255, float32, shape (B, C, S, S).
        radius: half the longest streak in pixels (rounded).
        sigma: fall-off of the streak in pixels.
        angle: direction of each image in radians, shape (B,).

    Returns:
        Values 0..255, rounded to whole levels; borders repeat the edge.
    """
    length = 2 * math.floor(radius + 0.5) + 1
    if length == 1 or sigma <= 0:
        return levels
    weights = np.exp(-0.5 * (np.arange(length) / sigma) ** 2)
    weights /= weights.sum()
    # The far end of a streak weighs nothing when sigma is small; 1e-5 is a four-hundredth of a level.
    keep = max(1, int((np.cumsum(weights) < 1 - 1e-5).sum()) + 1)
    weights = weights[:keep]
    along = torch.arange(len(weights), device=levels.device)
    shift_x = torch.ceil(along * angle.cos()[:, None] - 0.5).long()  # (B, taps)
    shift_y = torch.ceil(along * angle.sin()[:, None] - 0.5).long()
    if levels.device.type == "cpu" and levels.shape[-1] >= 64:
        return _sliding_sum(levels, weights, shift_x.tolist(), shift_y.tolist())
    batch, channels, size, _ = levels.shape
    flat = levels.reshape(batch, channels, size * size)
    here = torch.arange(size, device=levels.device)
    columns = (here + shift_x[..., None]).clamp_(0, size - 1)  # (B, taps, S)
    rows = (here + shift_y[..., None]).clamp_(0, size - 1).mul_(size)
    out = torch.full_like(flat, 0.5)
    for tap, weight in enumerate(weights):
        place = (rows[:, tap, :, None] + columns[:, tap, None, :]).view(batch, 1, -1)
        out.add_(flat.gather(2, place.expand(-1, channels, -1)), alpha=float(weight))
    return out.floor_().clamp_(max=255).view_as(levels)


def _sliding_sum(levels: Tensor, weights: np.ndarray, shift_x: list[list[int]], shift_y: list[list[int]]) -> Tensor:
    """The streaks of large images one image at a time: shifted views add up faster than gathered pixels."""
    size = levels.shape[-1]
    reach = max(abs(s) for shifts in (*shift_x, *shift_y) for s in shifts)
    padded = F.pad(levels, (reach,) * 4, mode="replicate")
    out = torch.full_like(levels, 0.5)
    for image, wide, across, down in zip(out, padded, shift_x, shift_y, strict=True):
        for weight, x, y in zip(weights, across, down, strict=True):
            top, left = reach + y, reach + x
            image.add_(wide[:, top : top + size, left : left + size], alpha=float(weight))
    return out.floor_().clamp_(max=255)
