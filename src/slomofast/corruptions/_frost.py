"""Ice textures for frost: grown by a formula, or read from a folder of photographs.

The published corruption blends five photographs, which are not ours to ship. The textures here are functions of
the position in pixels: cells of crystal with needles and side branches in a direction of their own, bright
seams where cells meet, large patches of rime and fine grain. Their colour and contrast are set per texture.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slomofast.core.errors import DataError
from slomofast.corruptions.rng import SampleRng

FROST_DIR = "SLOMOFAST_FROST_DIR"  # environment variable: folder of textures to use instead
_USED = 5


@dataclass(frozen=True)
class Ice:
    """Look of one texture.

    Attributes:
        width, height: size in pixels.
        cell: size of a crystal in pixels.
        colour: mean red, green and blue.
        spread: standard deviation of the brightness.
        patches: share of the variance that lies in large patches rather than in needles and grain.
    """

    width: int
    height: int
    cell: float
    colour: tuple[float, float, float]
    spread: float
    patches: float


# Size, mean colour and contrast are those measured on the five published photographs (the second and third of
# which are one and the same picture), so that the blend changes an image by as much as theirs does.
_ICE = (
    Ice(900, 600, 110.0, (0.305, 0.585, 0.650), 0.070, 0.62),
    Ice(560, 315, 60.0, (0.787, 0.805, 0.841), 0.086, 0.54),
    Ice(560, 315, 80.0, (0.787, 0.805, 0.841), 0.086, 0.52),
    Ice(527, 350, 45.0, (0.540, 0.600, 0.648), 0.114, 0.38),
    Ice(660, 495, 140.0, (0.441, 0.484, 0.528), 0.169, 0.49),
)


@dataclass(frozen=True)
class FrostTexture:
    """All textures of one scale, laid end to end.

    Attributes:
        pixels: red, green and blue in [0, 1], each flat.
        widths, heights, starts: geometry of each texture, int64.
    """

    pixels: Tensor
    widths: Tensor
    heights: Tensor
    starts: Tensor


def frost_texture(scale: float, size: int, device: torch.device) -> FrostTexture:
    """Textures shrunk by `scale`, each larger than `size` pixels, on a device; cached."""
    return _textures(scale, size, device, os.environ.get(FROST_DIR, ""))


@lru_cache(maxsize=16)
def _textures(scale: float, size: int, device: torch.device, folder: str) -> FrostTexture:
    pictures = _from_folder(Path(folder), scale) if folder else [grow(number, scale) for number in range(_USED)]
    for picture in pictures:
        if min(picture.shape[1:]) <= size:
            raise DataError(
                f"a frost texture of {picture.shape[2]}x{picture.shape[1]} pixels (after scaling by {scale:g}) is too "
                f"small for images of {size} pixels; put larger ones into ${FROST_DIR} or unset it"
            )
    lengths = [picture[0].numel() for picture in pictures]
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    return FrostTexture(
        torch.cat([picture.flatten(1) for picture in pictures], 1).contiguous().to(device),
        torch.tensor([picture.shape[2] for picture in pictures], device=device),
        torch.tensor([picture.shape[1] for picture in pictures], device=device),
        torch.from_numpy(starts).to(device),
    )


def _from_folder(folder: Path, scale: float) -> list[Tensor]:
    """The first five pictures of a folder by name, resized bilinearly; values in [0, 1], shape (3, h, w)."""
    from PIL import Image

    kinds = {".png", ".jpg", ".jpeg"}
    files = sorted(path for path in folder.glob("*") if path.suffix.lower() in kinds) if folder.is_dir() else []
    if not files:
        raise DataError(
            f"no .png or .jpg textures in {folder}; set ${FROST_DIR} to a folder of frost pictures or unset it"
        )
    pictures = []
    for path in files[:_USED]:
        pixels = torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1).float().div_(255)
        if scale != 1:
            pixels = torch.nn.functional.interpolate(pixels[None], scale_factor=scale, mode="bilinear")[0]
        pictures.append(pixels)
    return pictures


def grow(number: int, scale: float = 1.0) -> Tensor:
    """Texture `number` (0..4) sampled at `scale`: values in [0, 1], float32, shape (3, h, w).

    A scale below 1 takes single points, as an unsmoothed resize of a photograph does.
    """
    ice = _ICE[number]
    rows = (torch.arange(round(ice.height * scale)) + 0.5) / scale - 0.5
    columns = (torch.arange(round(ice.width * scale)) + 0.5) / scale - 0.5
    parts = [_relief(ice, part[:, None], columns[None, :], number) for part in rows.split(32)]
    patches, needles = (torch.cat(layer) for layer in zip(*parts, strict=True))
    relief = math.sqrt(ice.patches) * _standard(patches) + math.sqrt(1 - ice.patches) * _standard(needles)
    return (torch.tensor(ice.colour)[:, None, None] + ice.spread * _standard(relief)).clamp(0, 1)


def _standard(layer: Tensor) -> Tensor:
    return (layer - layer.mean()) / layer.std()


def _relief(ice: Ice, y: Tensor, x: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Thickness of the ice at given positions in arbitrary units: large patches, and needles with grain."""
    y, x = torch.broadcast_tensors(y, x)
    seed = 101 * (number + 1)
    bend = 0.25 * ice.cell
    x = x + bend * (_clouds(x, y, 1.3 * ice.cell, seed + 1) - 0.5)
    y = y + bend * (_clouds(x, y, 1.3 * ice.cell, seed + 2) - 0.5)
    near, second, along, across, kind = _crystals(x, y, ice.cell, seed + 3)
    seams = torch.exp(-(second - near) / (0.05 * ice.cell))
    needles = _ridges(along / (0.5 * ice.cell), across / 4.0 + 17 * kind, seed + 4)
    branches = _ridges((along - 1.2 * across.abs()) / 6.0, across / (0.3 * ice.cell) + 31 * kind, seed + 5)
    grain = _noise(x / 1.5, y / 1.5, seed + 7)
    return _clouds(x, y, 260.0, seed + 6) + 0.12 * kind, 0.9 * needles + 0.7 * branches + 0.4 * seams + 0.8 * grain


def _crystals(x: Tensor, y: Tensor, cell: float, seed: int) -> tuple[Tensor, ...]:
    """Crystal around each point: distance to its seed and to the next one, place along and across its axis, kind."""
    column, row = torch.floor(x / cell), torch.floor(y / cell)
    near = torch.full_like(x, 1e9)
    second = near.clone()
    away_x, away_y, kind = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(x)
    for step_y in (-1, 0, 1):
        for step_x in (-1, 0, 1):
            at_x, at_y = column + step_x, row + step_y
            dx = x - (at_x + _hash(at_x, at_y, seed)) * cell
            dy = y - (at_y + _hash(at_x, at_y, seed + 1)) * cell
            distance = torch.sqrt(dx * dx + dy * dy)
            closer = distance < near
            second = torch.where(closer, near, torch.minimum(second, distance))
            away_x, away_y = torch.where(closer, dx, away_x), torch.where(closer, dy, away_y)
            kind = torch.where(closer, _hash(at_x, at_y, seed + 2), kind)
            near = torch.where(closer, distance, near)
    angle = 2 * math.pi * kind
    cos, sin = torch.cos(angle), torch.sin(angle)
    return near, second, cos * away_x + sin * away_y, cos * away_y - sin * away_x, kind


def _clouds(x: Tensor, y: Tensor, period: float, seed: int) -> Tensor:
    """Sum of four octaves of smooth noise, in [0, 1]."""
    total = torch.zeros_like(x)
    for octave in range(4):
        total += 0.5**octave * _noise(x * 2**octave / period, y * 2**octave / period, seed + 53 * octave)
    return total / 1.875


def _ridges(x: Tensor, y: Tensor, seed: int) -> Tensor:
    """Sharp bright crests of smooth noise, in [0, 1]."""
    return (1 - (2 * _noise(x, y, seed) - 1).abs()) ** 3


def _noise(x: Tensor, y: Tensor, seed: int) -> Tensor:
    """Smooth noise in [0, 1] with one random value per unit square's corner."""
    left, top = torch.floor(x), torch.floor(y)
    u, v = x - left, y - top
    u, v = u * u * (3 - 2 * u), v * v * (3 - 2 * v)
    upper = _hash(left, top, seed) * (1 - u) + _hash(left + 1, top, seed) * u
    lower = _hash(left, top + 1, seed) * (1 - u) + _hash(left + 1, top + 1, seed) * u
    return upper * (1 - v) + lower * v


def _hash(x: Tensor, y: Tensor, seed: int) -> Tensor:
    """A number in [0, 1) for each pair of whole numbers; repeats every 512."""
    row, column = (y.to(torch.int32) + 197 * seed) & 511, (x.to(torch.int32) + 331 * seed) & 511
    return _table().index_select(0, (row * 512 + column).flatten()).view_as(x)


@lru_cache(maxsize=1)
def _table() -> Tensor:
    return SampleRng(0, torch.zeros(1, dtype=torch.int64), stream="ice").uniform(512 * 512)[0]
