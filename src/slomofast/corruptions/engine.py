"""`corrupt`: checks its input, cuts the batch into pieces that fit the cache, applies one corruption."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

# The modules below enter their functions into the table when they are imported.
from slomofast.core.errors import ConfigError, InputError
from slomofast.corruptions import blur, digital, extra, noise, weather  # noqa: F401
from slomofast.corruptions._ops import round8, truncate8
from slomofast.corruptions._registry import describe_corruption
from slomofast.corruptions.rng import SampleRng

SMALLEST = 16
# Channel values per piece: a few megabytes on a CPU, where pieces should stay in the cache; large on a GPU.
_PIECE = {"cpu": 400_000, "gpu": 16_000_000}


def corrupt(
    images: Tensor,
    name: str,
    severity: float = 5,
    seed: int = 0,
    index: Sequence[int] | np.ndarray | Tensor | None = None,
) -> Tensor:
    """Corrupted copies of images.

    Args:
        images: uint8, or float32 in [0, 1]; square, shape (B, 3, S, S) with S >= 16; CPU or GPU.
        name: one of `list_corruptions(extra=True)`.
        severity: strength in [0, 5]; 1..5 are the published levels, 0 returns the images unchanged.
        seed: seed of the random corruptions.
        index: identity of each image, 0..B-1 by default. An image depends on (seed, name, severity, its
            identity) only, so it looks the same in any batch, order or process. Neighbouring severities share
            their random draws: raising the severity strengthens one and the same noise.

    Returns:
        Same shape, type and device. uint8 values are truncated, not rounded, as in the published data.

    >>> import torch
    >>> from slomofast.corruptions import corrupt
    >>> images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    >>> foggy = corrupt(images, "fog", severity=3.5)
    >>> bool((corrupt(images[2:3], "fog", 3.5, index=[2]) == foggy[2:3]).all())
    True
    """
    known = describe_corruption(name)
    severity = _checked_severity(severity)
    _check_images(images)
    places = _checked_index(index, len(images), images.device)
    if severity == 0 or not len(images):
        return images.clone()
    room = _PIECE["cpu" if images.device.type == "cpu" else "gpu"] * (2 if known.levels else 1)  # a byte a value
    per_piece = max(1, room // images[0].numel())
    out = torch.empty_like(images, memory_format=torch.contiguous_format)
    with torch.no_grad():
        for start in range(0, len(images), per_piece):
            part = slice(start, start + per_piece)
            piece = images[part]
            rng = SampleRng(seed, places[part], stream=name)
            if known.levels:
                exact = piece.dtype == torch.uint8
                changed = known.function(piece if exact else round8(piece).to(torch.uint8), severity, rng)
                out[part] = changed if exact else changed.float().div_(255)
                continue
            unit = piece.float().div_(255) if piece.dtype == torch.uint8 else piece.contiguous()
            changed = known.function(unit, severity, rng)
            if piece.dtype == torch.uint8:
                out[part] = truncate8(changed)
            else:
                torch.clamp(changed, 0, 1, out=out[part])
    return out


def _checked_severity(severity: float) -> float:
    try:
        value = float(severity)
    except (TypeError, ValueError):
        raise ConfigError(f"severity {severity!r} is not a number; give one in [0, 5]") from None
    if not (math.isfinite(value) and 0 <= value <= 5):
        raise ConfigError(f"severity {severity!r} is outside [0, 5]")
    return value


def _check_images(images: Tensor) -> None:
    if not isinstance(images, Tensor):
        raise InputError(f"images must be a torch tensor, not {type(images).__name__}; use torch.from_numpy")
    if images.dtype not in (torch.uint8, torch.float32):
        raise InputError(f"images of type {images.dtype} cannot be corrupted; give uint8, or float32 in [0, 1]")
    if images.ndim != 4 or images.shape[1] != 3:
        raise InputError(f"images of shape {tuple(images.shape)} are not (B, 3, S, S)")
    height, width = images.shape[2:]
    if height != width or height < SMALLEST:
        raise InputError(f"images of {height}x{width} pixels: give square ones of at least {SMALLEST} pixels")
    if images.dtype == torch.float32 and len(images):
        lowest, highest = torch.aminmax(images)
        if not bool((lowest >= 0) & (highest <= 1)):  # NaN fails both comparisons
            raise InputError(
                f"float images must be finite and in [0, 1], found {float(lowest):g} to {float(highest):g}; "
                "divide 0..255 by 255 and undo any mean/std normalisation"
            )


def _checked_index(index: Sequence[int] | np.ndarray | Tensor | None, count: int, device: torch.device) -> Tensor:
    if index is None:
        return torch.arange(count, device=device)
    places = torch.as_tensor(index, device=device)
    if places.ndim != 1 or len(places) != count:
        raise InputError(
            f"index of shape {tuple(places.shape)} does not name {count} images; give one integer per image"
        )
    if count and (places.is_floating_point() or places.dtype == torch.bool):
        raise InputError(f"index of type {places.dtype} does not name images; give integers")
    return places.to(torch.int64)
