"""Reading pictures: many at once in threads, errors that name the file."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slomofast.core.errors import DataError

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".webp"})

View = Callable[[Any, int], Any]
"""What to do with a decoded picture: (PIL image, its position in the request) -> PIL image of the right size."""


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    """Threads shared by every reader; decoding releases the interpreter lock."""
    return ThreadPoolExecutor(max_workers=min(16, max(2, os.cpu_count() or 2)), thread_name_prefix="decode")


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("reading pictures needs Pillow: pip install pillow") from error
    return Image


def decode(source: Path | bytes, view: View | None = None, position: int = 0, name: str = "") -> np.ndarray:
    """One picture as RGB: uint8 (H, W, 3).

    Raises:
        DataError: naming the file (or `name`), when it is absent, cut short or no picture.
    """
    image_module = _pillow()
    try:
        with image_module.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            picture = image.convert("RGB")
    except FileNotFoundError as error:
        raise DataError(f"the image {source!s} is missing") from error
    except (OSError, ValueError, SyntaxError) as error:
        label = name or (str(source) if isinstance(source, Path) else "an image")
        raise DataError(f"{label} is not a readable image ({error})") from error
    if view is not None:
        picture = view(picture, position)
    return np.asarray(picture)


def decode_many(
    sources: Sequence[Path | bytes], side: int, view: View | None = None, names: Sequence[str] | None = None
) -> Tensor:
    """Pictures as one tensor, uint8 (n, 3, side, side), decoded in threads.

    Raises:
        DataError: naming the first picture that cannot be read or has another size.
    """
    out = np.empty((len(sources), side, side, 3), np.uint8)

    def fill(position: int) -> None:
        source = sources[position]
        name = names[position] if names is not None else (str(source) if isinstance(source, Path) else "")
        picture = decode(source, view, position, name)
        if picture.shape != out.shape[1:]:
            height, width = picture.shape[:2]
            raise DataError(f"{name or 'an image'} is {width}x{height} pixels where {side}x{side} are expected")
        out[position] = picture

    # Small pictures decode faster than a task is handed over, so each task takes several.
    step = max(1, min(32, len(sources) // 16))

    def fill_some(start: int) -> None:
        for position in range(start, min(start + step, len(sources))):
            fill(position)

    list(_pool().map(fill_some, range(0, len(sources), step)))
    return torch.from_numpy(out).permute(0, 3, 1, 2).contiguous()


def centre_view(side: int, resize: int | None) -> View:
    """The usual test view: shorter side to `resize` (bilinear), then the central square. None: as it is."""

    def view(picture: Any, _: int) -> Any:
        if resize is None:
            return picture
        width, height = picture.size
        scale = resize / min(width, height)
        if scale != 1:
            size = (max(resize, round(width * scale)), max(resize, round(height * scale)))
            picture = picture.resize(size, _pillow().Resampling.BILINEAR)
        left, top = round((picture.width - side) / 2), round((picture.height - side) / 2)
        return picture.crop((left, top, left + side, top + side))

    return view


def encode_jpeg(image: np.ndarray, quality: int, optimize: bool = False) -> bytes:
    """JPEG bytes of an RGB picture, uint8 (H, W, 3); `optimize` makes the file smaller, not the picture other."""
    buffer = io.BytesIO()
    _pillow().fromarray(image).save(buffer, "JPEG", quality=quality, optimize=optimize)
    return buffer.getvalue()


def encode_png(image: np.ndarray) -> bytes:
    """PNG bytes of an RGB picture, uint8 (H, W, 3)."""
    buffer = io.BytesIO()
    _pillow().fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def encode_many(images: Tensor, encode: Callable[[np.ndarray], bytes]) -> list[bytes]:
    """Files of images uint8 (n, 3, S, S), encoded in threads."""
    return list(_pool().map(encode, images.permute(0, 2, 3, 1).contiguous().cpu().numpy()))


def through_jpeg(images: Tensor, quality: int) -> Tensor:
    """Images after one JPEG round trip, uint8 (n, 3, S, S), same device."""
    coded = encode_many(images, lambda picture: encode_jpeg(picture, quality))
    return decode_many(coded, images.shape[-1]).to(images.device)
