"""Slow per-image versions of the corruptions, written from their description with numpy, scipy and Pillow.

Each takes one image (S, S, 3) of levels 0..255 and its random draws as plain arrays, so that the fast versions
can be fed the same draws. Results are float64 in [0, 1] before the final truncation, unless said otherwise.
"""

from __future__ import annotations

import io
import math

import numpy as np
from PIL import Image
from scipy import ndimage


def truncate(unit: np.ndarray) -> np.ndarray:
    return np.floor(255 * np.clip(unit, 0, 1) + 1e-3).astype(np.uint8)


def gaussian_filter(unit: np.ndarray, sigma: float) -> np.ndarray:
    sigmas = (sigma, sigma) + (0,) * (unit.ndim - 2)
    return ndimage.gaussian_filter(unit, sigmas, mode="nearest", truncate=4.0)


def gaussian_noise(image: np.ndarray, std: float, draws: np.ndarray) -> np.ndarray:
    return image / 255 + std * draws


def speckle_noise(image: np.ndarray, std: float, draws: np.ndarray) -> np.ndarray:
    unit = image / 255
    return unit + unit * std * draws


def defocus_blur(image: np.ndarray, radius: float, alias: float) -> np.ndarray:
    grid = np.arange(-8, 9) if radius <= 8 else np.arange(-radius, radius + 1)
    xx, yy = np.meshgrid(grid, grid)
    kernel = (xx**2 + yy**2 <= radius**2).astype(float)
    kernel /= kernel.sum()
    half = 1 if radius <= 8 else 2
    taps = np.exp(-(np.arange(-half, half + 1) ** 2) / (2 * alias**2))
    taps /= taps.sum()
    for axis in (0, 1):
        kernel = ndimage.correlate1d(kernel, taps, axis=axis, mode="mirror")
    unit = image / 255
    return np.stack([ndimage.correlate(unit[..., c], kernel, mode="mirror") for c in range(3)], -1)


def glass_blur(image: np.ndarray, sigma: float, delta: int, jumps: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """`jumps`: (dx, dy) of every round, indexed [h - delta - 1, w - delta - 1]."""
    levels = np.floor(255 * gaussian_filter(image / 255, sigma) + 1e-3)
    size = len(levels)
    for jump_x, jump_y in jumps:
        for h in range(size - delta, delta, -1):
            for w in range(size - delta, delta, -1):
                dx, dy = jump_x[h - delta - 1, w - delta - 1], jump_y[h - delta - 1, w - delta - 1]
                levels[h, w] = levels[h + dy, w + dx]
    return gaussian_filter(levels / 255, sigma)


def motion_blur_levels(levels: np.ndarray, radius: int, sigma: float, angle: float) -> np.ndarray:
    """Levels in, whole levels out; `angle` in radians."""
    size = len(levels)
    width = 2 * radius + 1
    weights = np.exp(-(np.arange(width) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    out = np.zeros(levels.shape)
    for y in range(size):
        for x in range(size):
            for i, weight in enumerate(weights):
                at_y = min(max(y + math.ceil(i * math.sin(angle) - 0.5), 0), size - 1)
                at_x = min(max(x + math.ceil(i * math.cos(angle) - 0.5), 0), size - 1)
                out[y, x] += weight * levels[at_y, at_x]
    return np.floor(out + 0.5)


def clipped_zoom(unit: np.ndarray, factor: float) -> np.ndarray:
    size = len(unit)
    crop = math.ceil(size / factor)
    top = (size - crop) // 2
    part = unit[top : top + crop, top : top + crop]
    factors = (factor, factor) + (1,) * (unit.ndim - 2)
    big = ndimage.zoom(part, factors, order=1)
    trim = (len(big) - size) // 2
    return big[trim : trim + size, trim : trim + size]


def zoom_blur(image: np.ndarray, stop: float, step: float) -> np.ndarray:
    unit = image / 255
    factors = np.arange(1, stop, step)
    return (unit + sum(clipped_zoom(unit, z) for z in factors)) / (len(factors) + 1)


def snow(image: np.ndarray, level: tuple[float, ...], draws: np.ndarray, angle: float) -> np.ndarray:
    mean, spread, zoom, threshold, radius, sigma, mix = level
    layer = clipped_zoom(mean + spread * draws, zoom)
    layer[layer < threshold] = 0
    layer = motion_blur_levels(truncate(layer).astype(float), int(radius), sigma, angle) / 255
    unit = image / 255
    grey = unit @ np.array([0.299, 0.587, 0.114])
    mixed = mix * unit + (1 - mix) * np.maximum(unit, (grey * 1.5 + 0.5)[..., None])
    return mixed + (layer + np.rot90(layer, 2))[..., None]


def frost(image: np.ndarray, keep: float, ice: float, crop: np.ndarray) -> np.ndarray:
    """`crop`: the window of the texture, (S, S, 3) in [0, 1]."""
    return (keep * image + ice * 255 * crop) / 255


def plasma(side: int, decay: float, draws: list[np.ndarray]) -> np.ndarray:
    """`draws`: uniform numbers in [-1, 1), three square arrays per octave."""
    cloud = np.zeros((side, side))
    step, wobble, queue = side, 100.0, iter(draws)
    while step >= 2:
        half = step // 2
        for a in range(0, side, step):
            for b in range(0, side, step):
                corners = [cloud[(a + i) % side, (b + j) % side] for i in (0, step) for j in (0, step)]
                cloud[a + half, b + half] = sum(corners) / 4
        cloud[half::step, half::step] += wobble**2 * next(queue)
        edges = np.zeros_like(cloud)
        for a in range(0, side, step):
            for b in range(0, side, step):
                right = cloud[a, b] + cloud[a, (b + step) % side]
                right += cloud[a + half, b + half] + cloud[(a - half) % side, b + half]
                below = cloud[a, b] + cloud[(a + step) % side, b]
                below += cloud[a + half, b + half] + cloud[a + half, (b - half) % side]
                edges[a, b + half], edges[a + half, b] = right / 4, below / 4
        cloud += edges
        cloud[0::step, half::step] += wobble**2 * next(queue)
        cloud[half::step, 0::step] += wobble**2 * next(queue)
        step, wobble = half, wobble / decay
    cloud -= cloud.min()
    return cloud / cloud.max()


def fog(image: np.ndarray, amount: float, cloud: np.ndarray) -> np.ndarray:
    unit = image / 255
    size = len(unit)
    return (unit + amount * cloud[:size, :size, None]) * unit.max() / (unit.max() + amount)


def _hsv(image: np.ndarray) -> np.ndarray:
    """Hue, saturation, value; hue in sixths of the circle, 0 for grey."""
    unit = image / 255
    value = unit.max(-1)
    depth = value - unit.min(-1)
    safe = np.where(depth > 0, depth, 1)
    r, g, b = unit[..., 0], unit[..., 1], unit[..., 2]
    hue = np.where(value == r, (g - b) / safe, np.where(value == g, 2 + (b - r) / safe, 4 + (r - g) / safe))
    saturation = np.where(value > 0, depth / np.where(value > 0, value, 1), 0)
    return np.stack([np.where(depth > 0, hue % 6, 0), saturation, value], -1)


def _rgb(hsv: np.ndarray) -> np.ndarray:
    hue, saturation, value = hsv[..., 0], hsv[..., 1], hsv[..., 2]
    channels = []
    for shift in (5, 3, 1):
        k = (shift + hue) % 6
        channels.append(value - value * saturation * np.clip(np.minimum(k, 4 - k), 0, 1))
    return np.stack(channels, -1)


def brightness(image: np.ndarray, add: float) -> np.ndarray:
    hsv = _hsv(image)
    hsv[..., 2] = np.clip(hsv[..., 2] + add, 0, 1)
    return _rgb(hsv)


def saturate(image: np.ndarray, factor: float, add: float) -> np.ndarray:
    hsv = _hsv(image)
    hsv[..., 1] = np.clip(hsv[..., 1] * factor + add, 0, 1)
    return _rgb(hsv)


def contrast(image: np.ndarray, factor: float) -> np.ndarray:
    unit = image / 255
    mean = unit.mean((0, 1), keepdims=True)
    return (unit - mean) * factor + mean


def elastic_transform(
    image: np.ndarray, alpha: float, sigma: float, moved: np.ndarray, fields: np.ndarray
) -> np.ndarray:
    """`moved` (3, 2): shifts (x, y) of the corner points in pixels; `fields` (2, S, S): uniform in [-1, 1)."""
    unit = image / 255
    size = len(unit)
    centre, q = size // 2, size // 3
    old = np.array([[centre + q, centre + q], [centre + q, centre - q], [centre - q, centre - q]], dtype=float)
    new = old + moved
    # x' = M (x, y, 1) sends old to new; the warp looks up the inverse.
    forward = np.linalg.solve(np.c_[old, np.ones(3)], new).T
    backward = np.linalg.inv(np.vstack([forward, [0, 0, 1]]))
    y, x = np.mgrid[0:size, 0:size].astype(float)
    at = backward @ np.stack([x.ravel(), y.ravel(), np.ones(size * size)])
    at = np.floor(at[:2] * 32 + 0.5) / 32
    warped = np.stack(
        [
            ndimage.map_coordinates(unit[..., c], [at[1], at[0]], order=1, mode="mirror").reshape(size, size)
            for c in range(3)
        ],
        -1,
    )
    if alpha == 0:
        return warped
    dx, dy = (alpha * ndimage.gaussian_filter(field, sigma, mode="reflect", truncate=3.0) for field in fields)
    return np.stack(
        [ndimage.map_coordinates(warped[..., c], [y + dy, x + dx], order=1, mode="reflect") for c in range(3)], -1
    )


def pixelate(image: np.ndarray, share: float) -> np.ndarray:
    """Levels out."""
    size = len(image)
    small = Image.fromarray(image).resize((int(size * share),) * 2, Image.Resampling.BOX)
    return np.asarray(small.resize((size, size), Image.Resampling.BOX))


def jpeg_compression(image: np.ndarray, quality: int) -> np.ndarray:
    """Levels out."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


def mud(image: np.ndarray, level: tuple[float, ...], draws: np.ndarray) -> np.ndarray:
    mean, spread, sigma, threshold, strength, _ = level
    liquid = gaussian_filter(mean + spread * draws, sigma)
    cover = gaussian_filter((liquid > threshold).astype(float), strength)
    cover[cover < 0.8] = 0
    return image / 255 * (1 - cover[..., None]) + cover[..., None] * np.array([63, 42, 20]) / 255


def equalised(levels: np.ndarray) -> np.ndarray:
    counts = np.bincount(levels.ravel(), minlength=256)
    first = int(np.argmax(counts > 0))
    rest = levels.size - counts[first]
    if rest == 0:
        return levels
    curve, total = np.zeros(256), 0
    for i in range(first + 1, 256):
        total += counts[i]
        curve[i] = np.floor(total * 255 / rest + 0.5)
    return curve[levels].astype(np.uint8)


def edges(levels: np.ndarray, low: float = 50, high: float = 150) -> np.ndarray:
    """Canny edges with 3x3 Sobel gradients and the sum of absolute values as their size."""
    padded = np.pad(levels.astype(float), 1, mode="edge")
    size = len(levels)
    gx, gy = np.zeros(levels.shape), np.zeros(levels.shape)
    for y in range(size):
        for x in range(size):
            w = padded[y : y + 3, x : x + 3]
            gx[y, x] = (w[:, 2] - w[:, 0]) @ [1, 2, 1]
            gy[y, x] = (w[2] - w[0]) @ [1, 2, 1]
    size_of = np.pad(np.abs(gx) + np.abs(gy), 1)
    candidate = np.zeros(levels.shape, bool)
    for y in range(size):
        for x in range(size):
            here = size_of[y + 1, x + 1]
            if here <= low:
                continue
            a, b = abs(gx[y, x]), abs(gy[y, x])
            if b < math.tan(math.pi / 8) * a:
                candidate[y, x] = here > size_of[y + 1, x] and here >= size_of[y + 1, x + 2]
            elif b > math.tan(3 * math.pi / 8) * a:
                candidate[y, x] = here > size_of[y, x + 1] and here >= size_of[y + 2, x + 1]
            else:
                s = -1 if (gx[y, x] < 0) != (gy[y, x] < 0) else 1
                candidate[y, x] = here > size_of[y, x + 1 - s] and here > size_of[y + 2, x + 1 + s]
    strong = candidate & (size_of[1:-1, 1:-1] > high)
    return ndimage.binary_propagation(strong, structure=np.ones((3, 3)), mask=candidate)


def water(image: np.ndarray, level: tuple[float, ...], draws: np.ndarray) -> np.ndarray:
    mean, spread, sigma, threshold, strength, _ = level
    liquid = gaussian_filter(mean + spread * draws, sigma)
    liquid[liquid < threshold] = 0
    levels = truncate(liquid)
    found = edges(levels)
    away = ndimage.distance_transform_edt(~found) if found.any() else np.full(levels.shape, 1e9)
    away = ndimage.uniform_filter(np.minimum(away, 20), 3, mode="mirror")
    away = equalised(np.floor(away + 0.5).astype(np.uint8)).astype(float)
    relief = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], dtype=float)
    away = np.clip(ndimage.correlate(away, relief, mode="mirror"), 0, 255)
    away = np.floor(ndimage.uniform_filter(away, 3, mode="mirror") + 0.5)
    mask = levels * away
    mask = strength * mask / max(mask.max(), 1e-6)
    return image / 255 + mask[..., None] * np.array([175, 238, 238]) / 255
