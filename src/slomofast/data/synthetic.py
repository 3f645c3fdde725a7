"""Pictures of letters made by code: a ten-class image task that needs no download.

Each image shows one of ten similar capitals in one of twenty-one faces, turned, sheared, scaled and moved, in a random
colour over a gradient with a faint texture, beside pieces of other letters. Image `i` of a split is the same picture on
every call, whatever else is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slomofast.core.errors import ConfigError, DataError
from slomofast.data._draws import stable_hash, uniform
from slomofast.data.corrupted import CorruptedImages

LETTERS = "ABCDEFGHKR"
VERSION = 1
"""Goes up when the pictures change; part of the data set's fingerprint."""

SIDE = 32
_CANVAS = 64  # side of a rendered letter; capitals are 40 pixels high in it
_BLOCK = 500  # images are made in blocks of this many, so that the arithmetic never depends on the request
_FACES = (
    *(f"DejaVuSans{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}.ttf" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}.ttf" for style in ("", "Bol", "Italic", "BolIta")),
    *(f"{face}.ttf" for face in ("cmr10", "cmb10", "cmss10", "cmtt10", "cmti10")),
)
HEIGHT = (12.0, 22.0)  # of the letter, in pixels
TURN = 0.45  # radians either way
CONTRAST = (0.2, 0.5)
TEXTURE = 0.1
_DRAWS = 48 + 3 * 25  # scalars and a coarse colour texture (5 x 5)


@lru_cache(maxsize=1)
def letter_masks() -> Tensor:
    """Coverage of every (letter, face): float32 in [0, 1], shape (10, 21, 64, 64), letters centred."""
    try:
        import matplotlib
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise DataError(
            f"the glyphs are drawn with matplotlib's fonts and need {error.name}: pip install 'slomofast[report]'"
        ) from error
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    masks = np.zeros((len(LETTERS), len(_FACES), _CANVAS, _CANVAS), np.uint8)
    for j, face in enumerate(_FACES):
        if not (folder / face).exists():
            raise DataError(f"matplotlib's installation lacks the font {face}; reinstall matplotlib")
        probe = ImageFont.truetype(str(folder / face), 100, layout_engine=ImageFont.Layout.BASIC)
        left, top, right, bottom = probe.getbbox("H")
        font = ImageFont.truetype(
            str(folder / face), round(100 * 40 / (bottom - top)), layout_engine=ImageFont.Layout.BASIC
        )
        for i, letter in enumerate(LETTERS):
            left, top, right, bottom = font.getbbox(letter)
            canvas = Image.new("L", (_CANVAS, _CANVAS), 0)
            corner = ((_CANVAS - (right - left)) / 2 - left, (_CANVAS - (bottom - top)) / 2 - top)
            ImageDraw.Draw(canvas).text(corner, letter, fill=255, font=font)
            masks[i, j] = np.asarray(canvas)
    return torch.from_numpy(masks).float() / 255


def _place(masks: Tensor, scale: Tensor, angle: Tensor, shear: Tensor, shift: Tensor) -> Tensor:
    """Warp letters into images: (n, 64, 64) to (n, 1, 32, 32), sampled twice as fine and averaged.

    `scale` is the letter's height in pixels, `shift` (n, 2) in half image sides.
    """
    zoom = (40 / _CANVAS) * SIDE / scale  # output unit -> canvas unit
    cos, sin = torch.cos(angle), torch.sin(angle)
    turn = torch.stack([torch.stack([cos, sin], 1), torch.stack([-sin, cos], 1)], 1)
    lean = torch.eye(2).repeat(len(scale), 1, 1)
    lean[:, 0, 1] = shear
    linear = (lean @ turn) * zoom[:, None, None]
    theta = torch.cat([linear, -(linear @ shift[:, :, None])], 2)
    grid = F.affine_grid(theta, [len(scale), 1, 2 * SIDE, 2 * SIDE], align_corners=False)
    fine = F.grid_sample(masks[:, None], grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return F.avg_pool2d(fine, 2)


def _between(u: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * u


def _key(split: str) -> str:
    return f"glyphs {VERSION} {split}"


def _draw_block(split: str, block: int) -> Tensor:
    index = np.arange(block * _BLOCK, (block + 1) * _BLOCK)
    n = len(index)
    u = torch.from_numpy(uniform(_key(split), index, _DRAWS))
    coarse = u[:, 48:].view(n, 3, 5, 5)
    masks = letter_masks()
    label = torch.from_numpy(glyph_labels(split, index))
    face = (u[:, 1] * len(_FACES)).long()

    letter = _place(
        masks[label, face],
        scale=_between(u[:, 2], *HEIGHT),
        angle=_between(u[:, 3], -TURN, TURN),
        shear=_between(u[:, 4], -0.25, 0.25),
        shift=_between(u[:, 5:7], -0.3, 0.3),
    )
    # Pieces of two other letters near the rim: what makes the clean task less than trivial.
    clutter = torch.zeros_like(letter)
    for k in (7, 15):
        around = 2 * np.pi * u[:, k + 4]
        away = _between(u[:, k + 5], 0.85, 1.2)
        piece = _place(
            masks[(u[:, k] * len(LETTERS)).long(), (u[:, k + 1] * len(_FACES)).long()],
            scale=_between(u[:, k + 2], *HEIGHT),
            angle=_between(u[:, k + 3], -TURN, TURN),
            shear=torch.zeros(n),
            shift=torch.stack([away * torch.cos(around), away * torch.sin(around)], 1),
        )
        clutter = torch.maximum(clutter, piece)

    paper = _between(u[:, 24:27], 0.15, 0.85)
    lightness = paper.mean(1, keepdim=True)
    # Ink is lighter on dark paper and darker on light paper, at random in between.
    sign = torch.where(u[:, 27:28] < lightness, -1.0, 1.0)
    tint = 1 + 0.8 * (u[:, 28:31] - 0.5)
    ink = paper + sign * _between(u[:, 31:32], *CONTRAST) * tint
    other_ink = paper + sign * _between(u[:, 32:33], *CONTRAST) * (1 + 0.8 * (u[:, 33:36] - 0.5))

    line = torch.linspace(-1, 1, SIDE)
    around = 2 * np.pi * u[:, 36]
    ramp = torch.cos(around)[:, None, None] * line[None, None, :] + torch.sin(around)[:, None, None] * line[:, None]
    ramp_tint = _between(u[:, 37:40], -0.2, 0.2)
    texture = F.interpolate(coarse - 0.5, SIDE, mode="bilinear", align_corners=True)

    image = paper[:, :, None, None] + ramp_tint[:, :, None, None] * ramp[:, None]
    image = image + _between(u[:, 40], 0, TEXTURE)[:, None, None, None] * texture
    image = torch.lerp(image, other_ink[:, :, None, None].expand_as(image), 0.9 * clutter)
    image = torch.lerp(image, ink[:, :, None, None].expand_as(image), letter)
    return (image.clamp(0, 1) * 255).round().to(torch.uint8)


_block = lru_cache(maxsize=40)(_draw_block)


def glyph_labels(split: str, index: np.ndarray) -> np.ndarray:
    """Labels of a split without drawing its images: int64 (n,)."""
    if split not in ("train", "test"):
        raise ConfigError(f"glyphs have the splits train and test, not {split!r}")
    return (uniform(_key(split), index, 1)[:, 0] * np.float32(len(LETTERS))).astype(np.int64)


def draw_glyphs(split: str, index: np.ndarray) -> tuple[Tensor, np.ndarray]:
    """Images and labels of a split: uint8 (n, 3, 32, 32) and int64 (n,). `split` is `train` or `test`.

    >>> images, labels = draw_glyphs("test", np.array([3, 12000]))
    >>> tuple(images.shape), labels.dtype
    ((2, 3, 32, 32), dtype('int64'))
    """
    index = np.asarray(index, dtype=np.int64)
    if index.ndim != 1 or (len(index) and index.min() < 0):
        raise ConfigError("glyph numbers are a flat array of integers >= 0")
    labels = glyph_labels(split, index)
    images = torch.empty((len(index), 3, SIDE, SIDE), dtype=torch.uint8)
    for block in np.unique(index // _BLOCK):
        inside = np.flatnonzero(index // _BLOCK == block)
        pictures = _block(split, int(block))
        images[torch.from_numpy(inside)] = pictures[torch.from_numpy(index[inside] - block * _BLOCK)]
    return images, labels


class Glyphs(CorruptedImages):
    """The letters as a data set, corrupted on the fly.

    Args:
        split: `test` (default) or `train`.
        size: number of images; any number is possible.
        domains, seed, device: see `CorruptedImages`.
    """

    flip = False  # a mirrored letter is no letter
    shift = 2

    def __init__(
        self,
        split: str = "test",
        size: int = 10_000,
        domains: Sequence[str] | str | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        if size < 1:
            raise ConfigError(f"size must be at least 1, got {size}")
        self.name = "glyphs" if split == "test" else f"glyphs_{split}"
        self.split, self.size, self.classes, self.image_size = split, int(size), len(LETTERS), SIDE
        self.class_names = list(LETTERS)
        self.label_array = glyph_labels(split, np.arange(size))
        self.clean_fingerprint = stable_hash("glyphs", VERSION, split)
        self.finish(domains, seed, device)

    def read(self, index: np.ndarray) -> Tensor:
        return draw_glyphs(self.split, index)[0]
