"""Strength tables: what severity 0 to 5 means for each corruption and image size.

A table holds six knots (severities 0..5), each a tuple of parameters; knots 1..5 are the published ones for
32, 64 and 224 pixels, knot 0 is the mildest end of the scale. Fractions interpolate linearly between knots.
"""

from __future__ import annotations

import math

Knots = tuple[tuple[float, ...], ...]


def _rows(zero: tuple[float, ...], *published: tuple[float, ...]) -> Knots:
    return (zero, *published)


def _single(zero: float, *published: float) -> Knots:
    return tuple((value,) for value in (zero, *published))


_ZOOM_SMALL = _rows((1.0, 0.01), (1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01))
_BRIGHT_LARGE = _single(0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
_CONTRAST_LARGE = _single(1.0, 0.4, 0.3, 0.2, 0.1, 0.05)

# Shot noise stores 1/c, the quantity that is interpolated: its square root is proportional to the noise.
TABLES: dict[str, dict[int, Knots]] = {
    "gaussian_noise": {  # standard deviation
        32: _single(0, 0.04, 0.06, 0.08, 0.09, 0.10),
        64: _single(0, 0.04, 0.08, 0.12, 0.15, 0.18),
        224: _single(0, 0.08, 0.12, 0.18, 0.26, 0.38),
    },
    "shot_noise": {  # 1 / photons at full brightness
        32: _single(0, 1 / 500, 1 / 250, 1 / 100, 1 / 75, 1 / 50),
        64: _single(0, 1 / 250, 1 / 100, 1 / 50, 1 / 30, 1 / 15),
        224: _single(0, 1 / 60, 1 / 25, 1 / 12, 1 / 5, 1 / 3),
    },
    "impulse_noise": {  # share of replaced values
        32: _single(0, 0.01, 0.02, 0.03, 0.05, 0.07),
        64: _single(0, 0.01, 0.02, 0.05, 0.08, 0.14),
        224: _single(0, 0.03, 0.06, 0.09, 0.17, 0.27),
    },
    "defocus_blur": {  # disc radius, sigma of the smoothed rim
        32: _rows((0, 0), (0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        64: _rows((0, 0), (0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
        224: _rows((0, 0), (3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    },
    "glass_blur": {  # sigma, largest displacement, rounds
        32: _rows((0, 1, 0), (0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        64: _rows((0, 1, 0), (0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
        224: _rows((0, 0, 0), (0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    },
    "motion_blur": {  # radius, sigma
        32: _rows((0, 0), (6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        64: _rows((0, 0), (10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
        224: _rows((0, 0), (10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    },
    "zoom_blur": {  # largest factor (excluded), step between factors
        32: _ZOOM_SMALL,
        64: _ZOOM_SMALL,
        224: _rows((1.0, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    },
    "snow": {  # mean, spread, flake zoom, threshold, motion radius, motion sigma, share of the image
        32: _rows(
            (0.1, 0.2, 1, 1, 8, 3, 1),
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        64: _rows(
            (0.1, 0.2, 1, 1, 8, 3, 1),
            (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
        ),
        224: _rows(
            (0.1, 0.3, 3, 1, 10, 4, 1),
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    },
    "frost": {  # weight of the image, weight of the ice
        32: _rows((1, 0), (1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        64: _rows((1, 0), (1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
        224: _rows((1, 0), (1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    },
    "fog": {  # amount, decay of the roughness per octave
        32: _rows((0, 3), (0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        64: _rows((0, 3), (0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
        224: _rows((0, 2), (1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    },
    "brightness": {  # added to the value channel
        32: _single(0, 0.05, 0.1, 0.15, 0.2, 0.3),
        64: _BRIGHT_LARGE,
        224: _BRIGHT_LARGE,
    },
    "contrast": {  # factor on the distance from the mean
        32: _single(1, 0.75, 0.5, 0.4, 0.3, 0.15),
        64: _CONTRAST_LARGE,
        224: _CONTRAST_LARGE,
    },
    "elastic_transform": {  # displacement, smoothness, affine jitter: all in units of ELASTIC_UNIT pixels
        32: _rows(
            (0, 0, 0),
            (0, 0, 0.08),
            (0.05, 0.2, 0.07),
            (0.08, 0.06, 0.06),
            (0.1, 0.04, 0.05),
            (0.1, 0.03, 0.03),
        ),
        64: _rows(
            (0, 0, 0),
            (0, 0, 0.08),
            (0.05, 0.3, 0.06),
            (0.1, 0.08, 0.06),
            (0.1, 0.03, 0.03),
            (0.16, 0.03, 0.02),
        ),
        224: _rows(
            (0, 999 / 244, 0),
            (2, 0.7, 0.1),
            (2, 0.08, 0.2),
            (0.05, 0.01, 0.02),
            (0.07, 0.01, 0.02),
            (0.12, 0.01, 0.02),
        ),
    },
    "pixelate": {  # share of the side that is kept
        32: _single(1, 0.95, 0.9, 0.85, 0.75, 0.65),
        64: _single(1, 0.9, 0.8, 0.7, 0.6, 0.5),
        224: _single(1, 0.6, 0.5, 0.4, 0.3, 0.25),
    },
    "jpeg_compression": {  # quality
        32: _single(95, 80, 65, 58, 50, 40),
        64: _single(95, 65, 58, 50, 40, 25),
        224: _single(85, 25, 18, 15, 10, 7),
    },
    "speckle_noise": {  # standard deviation relative to the value
        32: _single(0, 0.06, 0.1, 0.12, 0.16, 0.2),
        64: _single(0, 0.15, 0.2, 0.25, 0.3, 0.35),
        224: _single(0, 0.15, 0.2, 0.35, 0.45, 0.6),
    },
    "gaussian_blur": {  # sigma
        32: _single(0, 0.4, 0.6, 0.7, 0.8, 1),
        64: _single(0, 0.5, 0.75, 1, 1.25, 1.5),
        224: _single(0, 1, 2, 3, 4, 6),
    },
    "spatter": {  # mean, spread, sigma, threshold, strength, 1 for mud
        32: _rows(
            (0.62, 0.1, 0.7, 0.7, 0, 0),
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
        64: _rows(
            (0.62, 0.1, 0.7, 0.7, 0, 0),
            (0.62, 0.1, 0.7, 0.7, 0.6, 0),
            (0.65, 0.1, 0.8, 0.7, 0.6, 0),
            (0.65, 0.3, 1, 0.69, 0.6, 0),
            (0.65, 0.1, 0.7, 0.68, 0.6, 1),
            (0.65, 0.1, 0.5, 0.67, 0.6, 1),
        ),
        224: _rows(
            (0.65, 0.3, 4, 0.69, 0, 0),
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ),
    },
    "saturate": {  # factor and offset of the saturation
        32: _rows((1, 0), (0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        64: _rows((1, 0), (0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
        224: _rows((1, 0), (0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    },
}

# Columns measured in pixels: they scale with the image when its size has no table of its own. Images below 32
# pixels keep the values for 32: half of a blur of one pixel would be none.
_PIXELS: dict[str, tuple[int, ...]] = {
    "defocus_blur": (0,),
    "glass_blur": (0, 1),
    "motion_blur": (0, 1),
    "snow": (4, 5),
    "gaussian_blur": (0,),
    "spatter": (2,),
}
_ELASTIC_UNIT = {32: 32, 64: 64, 224: 244}  # the published large-image script really says 244
_FROST_SCALE = {32: 0.2, 64: 0.3, 224: 1.0}
SIZES = (32, 64, 224)


def nearest_size(size: int) -> int:
    """The tabulated size (32, 64 or 224) whose ratio to `size` is closest to one."""
    return min(SIZES, key=lambda known: abs(math.log(size / known)))


def level(name: str, severity: float, size: int) -> tuple[float, ...]:
    """Parameters of a corruption at a severity in [0, 5] for square images of `size` pixels.

    >>> level("gaussian_noise", 5, 32)
    (0.1,)
    >>> level("motion_blur", 1.5, 32)
    (6.0, 1.25)
    """
    known = nearest_size(size)
    knots = TABLES[name][known]
    below = min(int(severity), len(knots) - 2)
    share = severity - below
    values = [
        a if share == 0 else b if share == 1 else a + share * (b - a)
        for a, b in zip(knots[below], knots[below + 1], strict=True)
    ]
    scale = max(size, SIZES[0]) / known
    for column in _PIXELS.get(name, ()):
        values[column] *= scale
    if name == "spatter" and values[5] >= 0.5:
        values[4] *= scale  # the strength of mud is a blur radius, that of water a brightness
    return tuple(float(value) for value in values)


def elastic_unit(size: int) -> float:
    """Pixels per unit of the elastic table."""
    known = nearest_size(size)
    return _ELASTIC_UNIT[known] * size / known


def frost_scale(size: int) -> float:
    """Factor by which frost textures shrink before the crop."""
    known = nearest_size(size)
    return _FROST_SCALE[known] * max(size, SIZES[0]) / known


def whole(value: float) -> int:
    """Nearest integer, halves upwards: fractional severities turn counts into fractions."""
    return math.floor(value + 0.5)
