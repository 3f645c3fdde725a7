"""The table of corruptions: name, group, one line of description, function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from slomofast.core.errors import unknown_name
from slomofast.corruptions.rng import SampleRng

CorruptionFunction = Callable[[Tensor, float, SampleRng], Tensor]

CANONICAL: tuple[str, ...] = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
EXTRA: tuple[str, ...] = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
GROUPS: dict[str, tuple[str, ...]] = {
    "noise": CANONICAL[0:3],
    "blur": CANONICAL[3:7],
    "weather": CANONICAL[7:10],
    "digital": CANONICAL[10:12],
    "distortion": CANONICAL[12:15],
}


@dataclass(frozen=True)
class Corruption:
    """What is known about one corruption.

    Attributes:
        name: registered name.
        group: noise, blur, weather, digital or distortion.
        description: one line for people.
        function: images in [0, 1] of shape (B, 3, S, S), severity, generator -> images of the same shape.
        random: whether the outcome depends on the generator at all.
        extra: one of the four validation corruptions rather than one of the fifteen.
        levels: the function takes and gives grey levels 0..255 as uint8 instead of [0, 1].
    """

    name: str
    group: str
    description: str
    function: CorruptionFunction
    random: bool
    extra: bool
    levels: bool = False


_known: dict[str, Corruption] = {}


def register(
    group: str, description: str, *, random: bool = True, levels: bool = False
) -> Callable[[CorruptionFunction], CorruptionFunction]:
    """Enter a function into the table under its own name."""

    def enter(function: CorruptionFunction) -> CorruptionFunction:
        name = function.__name__
        if name in _known:
            raise ValueError(f"corruption {name!r} is registered twice")
        _known[name] = Corruption(name, group, description, function, random, name in EXTRA, levels)
        return function

    return enter


def describe_corruption(name: str) -> Corruption:
    """Everything known about one corruption; an unknown name raises ConfigError with the nearest match."""
    if name not in _known:
        raise unknown_name("corruption", name, _known)
    return _known[name]


def list_corruptions(extra: bool = False) -> list[str]:
    """Names in canonical order; `extra` appends the four validation corruptions.

    >>> list_corruptions()[:2], len(list_corruptions(extra=True))
    (['gaussian_noise', 'shot_noise'], 19)
    """
    return [*CANONICAL, *EXTRA] if extra else list(CANONICAL)
