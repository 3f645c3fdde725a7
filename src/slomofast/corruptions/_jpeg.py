"""JPEG round trips: real files through Pillow on the CPU, the codec's arithmetic in tensors on a GPU."""

from __future__ import annotations

import io
import math
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slomofast.core.errors import SlomofastError

# The example quantisation tables of the JPEG standard, quality 50.
_LUMA = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMA = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)


def jpeg8(levels: Tensor, quality: int) -> Tensor:
    """Images after a JPEG round trip with 4:2:0 chroma; uint8, shape (B, 3, S, S)."""
    if levels.device.type == "cpu":
        return jpeg_files(levels, quality)
    return jpeg_tensor(levels.float(), quality).to(torch.uint8)


def jpeg_files(levels: Tensor, quality: int) -> Tensor:
    """The round trip through real JPEG files in memory, on as many threads as torch uses; uint8."""
    try:
        from PIL import Image, JpegImagePlugin  # noqa: F401 - the plugin brings the codec
    except ImportError as error:
        raise SlomofastError("jpeg_compression on the CPU needs Pillow: pip install pillow") from error
    planes = levels.to(torch.uint8).contiguous()
    out = torch.empty_like(planes)
    before, after = planes.numpy(), out.numpy()
    count, _, height, width = before.shape

    def round_trip(i: int) -> None:
        # Pillow joins and parts the three planes itself, which is faster than transposed copies.
        bands = [Image.frombuffer("L", (width, height), plane, "raw", "L", 0, 1) for plane in before[i]]
        file = io.BytesIO()
        Image.merge("RGB", bands).save(file, "JPEG", quality=quality)
        decoded = Image.frombytes("RGB", (width, height), file.getvalue(), "jpeg", "RGB", "")
        for band, plane in zip("RGB", after[i], strict=True):
            plane[...] = np.frombuffer(decoded.tobytes("raw", band), np.uint8).reshape(plane.shape)

    threads = torch.get_num_threads()
    # Below 64 pixels the codec is so short that threads would only queue for the interpreter lock.
    if threads > 1 and height >= 64:
        list(_pool(threads).map(round_trip, range(count)))
    else:
        for i in range(count):
            round_trip(i)
    return out


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="jpeg")


def jpeg_tensor(levels: Tensor, quality: int) -> Tensor:
    """The round trip computed on tensors, agreeing with libjpeg to a level or so in nearly every pixel."""
    size = levels.shape[-1]
    red, green, blue = levels.unbind(1)
    luma = (0.299 * red + 0.587 * green + 0.114 * blue).add_(0.5).floor_()
    cb = (-0.168735892 * red - 0.331264108 * green + 0.5 * blue + 128).add_(0.49999).floor_()
    cr = (0.5 * red - 0.418687589 * green - 0.081312411 * blue + 128).add_(0.49999).floor_()
    # Edges are repeated up to whole blocks: at the right before colours are halved, at the bottom after it.
    wide = F.pad(torch.stack([luma, cb, cr], 1), (0, -size % 16, 0, size % 2), mode="replicate")
    colours = _halve(wide[:, 1:])
    colours = F.pad(colours, (0, 0, 0, -colours.shape[2] % 8), mode="replicate")
    brightness = F.pad(wide[:, :1], (0, 0, 0, -wide.shape[2] % 8), mode="replicate")
    luma = _requantise(brightness, _table(_LUMA, quality, levels.device))[..., :size, :size]
    chroma = _requantise(colours, _table(_CHROMA, quality, levels.device))
    half = (size + 1) // 2
    chroma = _double(chroma[..., :half, :half])[..., :size, :size] - 128
    cb, cr = chroma.unbind(1)
    luma = luma[:, 0]
    green_shift = (-0.344136286 * cb - 0.714136286 * cr).add_(0.5).floor_()
    out = torch.stack(
        [luma + (1.402 * cr).add_(0.5).floor_(), luma + green_shift, luma + (1.772 * cb).add_(0.5).floor_()], 1
    )
    return out.clamp_(0, 255)


def _table(base: tuple[tuple[int, ...], ...], quality: int, device: torch.device) -> Tensor:
    """Quantisation steps of a quality in 1..100, shape (8, 8)."""
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    steps = (torch.tensor(base, dtype=torch.int64) * scale + 50) // 100
    return steps.clamp(1, 255).to(device, torch.float64)


def _requantise(plane: Tensor, steps: Tensor) -> Tensor:
    """What is left of (B, C, H, W) after its 8x8 cosine coefficients were rounded to multiples of `steps`.

    The integer transform of the codec keeps two binary digits between its two passes; so does this one, since
    coefficients often fall on a tie that the digits decide.
    """
    batch, channels, height, width = plane.shape
    blocks = plane.view(batch, channels, height // 8, 8, width // 8, 8).transpose(3, 4).reshape(-1, 8, 8)
    cosines = _cosines(plane.device)  # each pass comes out sqrt(8) times as large as an orthonormal one
    rows = ((blocks.double() - 128) @ cosines.T).mul_(4).add_(0.5).floor_()
    eightfold = (cosines @ rows).div_(4).add_(0.5).floor_()
    # Halves round away from zero, as the codec's integer division does.
    kept = torch.sign(eightfold) * torch.floor(eightfold.abs() / (8 * steps) + 0.5) * steps
    columns = (cosines.T @ kept).mul_(4).add_(0.5).floor_()
    back = (columns @ cosines).div_(32).add_(128.5).floor_().clamp_(0, 255).float()
    return back.view(batch, channels, height // 8, width // 8, 8, 8).transpose(3, 4).reshape(plane.shape)


@lru_cache(maxsize=8)
def _cosines(device: torch.device) -> Tensor:
    """Cosine basis of length 8 times sqrt(8), shape (8, 8): coefficients = basis @ pixels."""
    u = np.arange(8)
    line = np.cos((2 * u[None, :] + 1) * u[:, None] * math.pi / 16) * math.sqrt(2)
    line[0] = 1.0
    return torch.from_numpy(line).to(device)


def _halve(plane: Tensor) -> Tensor:
    """2x2 means; the rounding alternates between columns so that it favours no direction."""
    total = plane[..., 0::2, 0::2] + plane[..., 1::2, 0::2] + plane[..., 0::2, 1::2] + plane[..., 1::2, 1::2]
    bias = 1 + torch.arange(total.shape[-1], device=plane.device) % 2
    return ((total + bias) / 4).floor_()


def _double(plane: Tensor) -> Tensor:
    """Twice the size by triangle weights 3:1 along both axes, edges repeated, in whole numbers."""
    padded = F.pad(plane, (1, 1, 1, 1), mode="replicate")
    middle = padded[..., 1:-1, :]
    upper, lower = 3 * middle + padded[..., :-2, :], 3 * middle + padded[..., 2:, :]
    rows = torch.stack([upper, lower], 3).flatten(2, 3)  # sixteenths once both axes are done
    centre = rows[..., 1:-1]
    left, right = (3 * centre + rows[..., :-2] + 8), (3 * centre + rows[..., 2:] + 7)
    return torch.stack([left, right], -1).flatten(3).div_(16).floor_()
