"""One colour for each domain, the same in the terminal and in pictures: a hue per group, a shade per member."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence

MIXED = "#8a8f98"
_HUES = {"noise": 8, "blur": 212, "weather": 160, "digital": 42, "distortion": 278}
_SPARE = (100, 325, 190, 60, 250, 20, 130, 300)


def domain_colours(domains: Sequence[str], groups: Mapping[str, Sequence[str]] | None = None) -> dict[str, str]:
    """Colour of every domain as `#rrggbb`; domains outside all groups get hues spread over the circle."""
    colours: dict[str, str] = {}
    spare = iter(_SPARE * (len(groups or ()) + 1))
    for group, members in (groups or {}).items():
        hue = _HUES[group] if group in _HUES else next(spare)
        for place, domain in enumerate(members):
            shade = place / (len(members) - 1) if len(members) > 1 else 0.3
            colours.setdefault(domain, _hex(hue + 6 * shade, 0.40 + 0.30 * shade, 0.72 - 0.12 * shade))
    loose = [d for d in domains if d not in colours]
    for place, domain in enumerate(loose):
        colours[domain] = _hex(360 * place / len(loose) + 15, 0.5, 0.5)
    return {d: colours[d] for d in domains}


def group_colours(groups: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Colour of every group as `#rrggbb`: the middle of its domains' shades."""
    spare = iter(_SPARE * (len(groups) + 1))
    return {g: _hex(_HUES[g] if g in _HUES else next(spare), 0.48, 0.66) for g in groups}


def _hex(hue: float, lightness: float, saturation: float) -> str:
    red, green, blue = colorsys.hls_to_rgb((hue % 360) / 360, lightness, saturation)
    return "#" + "".join(f"{round(255 * v):02x}" for v in (red, green, blue))
