"""The light pattern of water drops: edges, distance to them, and a relief of that distance.

Batched stand-ins for the OpenCV steps of the published script. Two are not bit-equal: distances are exact
Euclidean ones (OpenCV sums fixed steps, at most 2 % off), and edge linking looks at most 64 pixels far.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slomofast.corruptions._ops import correlate

_LOW, _HIGH, _FARTHEST = 50.0, 150.0, 20
_RELIEF = np.array([[-2.0, -1.0, 0.0], [-1.0, 1.0, 1.0], [0.0, 1.0, 2.0]])
_SOBEL = np.array([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
_BOX = np.full((3, 3), 1 / 9)


def water_mask(levels: Tensor) -> Tensor:
    """Brightness of the drops in [0, 1], largest value 1 where there is any drop; (B, 1, S, S) like `levels`."""
    away = distance_to(canny_edges(levels)).clamp_(max=_FARTHEST)
    away = equalise(_rounded(correlate(away, _BOX)))
    away = _rounded(correlate(away, _RELIEF))
    away = _rounded(correlate(away, _BOX))
    mask = levels * away
    return mask / mask.amax(dim=(2, 3), keepdim=True).clamp(min=1e-6)


def _rounded(values: Tensor) -> Tensor:
    return values.add_(0.5 + 1e-4).floor_().clamp_(0, 255)


def canny_edges(levels: Tensor) -> Tensor:
    """Thin edges of images with values 0..255: strong ones and the weak ones attached to them; bool."""
    padded = F.pad(levels, (1, 1, 1, 1), mode="replicate")
    gx = correlate(padded, _SOBEL)[..., 1:-1, 1:-1]
    gy = correlate(padded, _SOBEL.T)[..., 1:-1, 1:-1]
    strength = gx.abs() + gy.abs()
    around = F.pad(strength, (1, 1, 1, 1))
    size = levels.shape[-1]

    def neighbour(dy: int, dx: int) -> Tensor:
        return around[..., 1 + dy : 1 + dy + size, 1 + dx : 1 + dx + size]

    flat, steep = math.tan(math.pi / 8), math.tan(3 * math.pi / 8)
    ratio_x, ratio_y = gx.abs(), gy.abs()
    horizontal, vertical = ratio_y < flat * ratio_x, ratio_y > steep * ratio_x
    same_sign = (gx < 0) == (gy < 0)
    # A pixel stays when it exceeds one neighbour across the edge and is no weaker than the other.
    falling = (strength > neighbour(-1, -1)) & (strength > neighbour(1, 1))
    rising = (strength > neighbour(-1, 1)) & (strength > neighbour(1, -1))
    sideways = (strength > neighbour(0, -1)) & (strength >= neighbour(0, 1))
    upright = (strength > neighbour(-1, 0)) & (strength >= neighbour(1, 0))
    slanted = (same_sign & falling) | (~same_sign & rising)
    peak = (horizontal & sideways) | (vertical & upright) | (~horizontal & ~vertical & slanted)
    candidate = peak & (strength > _LOW)
    edge = candidate & (strength > _HIGH)
    for _ in range(64):
        grown = (F.max_pool2d(edge.float(), 3, stride=1, padding=1) > 0) & candidate
        if torch.equal(grown, edge):
            break
        edge = grown
    return edge


def distance_to(marked: Tensor) -> Tensor:
    """Euclidean distance in pixels to the nearest marked pixel, exact up to 20, at least 20 beyond."""
    far = float(_FARTHEST + 1)
    line = (~marked).float() * far
    for _ in range(_FARTHEST):
        padded = F.pad(line, (1, 1, 0, 0), value=far)
        line = torch.minimum(line, torch.minimum(padded[..., :-2], padded[..., 2:]) + 1)
    size = marked.shape[-1]
    squares = F.pad(line * line, (0, 0, _FARTHEST, _FARTHEST), value=far * far)
    best = squares[..., _FARTHEST : _FARTHEST + size, :].clone()
    for shift in range(1, _FARTHEST + 1):
        above = squares[..., _FARTHEST - shift : _FARTHEST - shift + size, :]
        below = squares[..., _FARTHEST + shift : _FARTHEST + shift + size, :]
        best = torch.minimum(best, torch.minimum(above, below) + shift * shift)
    return best.sqrt_()


def equalise(levels: Tensor) -> Tensor:
    """Histogram equalisation of (B, 1, S, S) with values 0..255; a constant image stays as it is."""
    flat = levels.flatten(1).long()
    count = torch.zeros(len(flat), 256, device=levels.device).scatter_add_(
        1, flat, torch.ones_like(flat, dtype=torch.float32)
    )
    total = count.cumsum(1)
    darkest = flat.amin(dim=1, keepdim=True)
    base = count.gather(1, darkest)
    room = flat.shape[1] - base
    curve = ((total - base) * 255 / room.clamp(min=1)).add_(0.5).floor_().clamp_(0, 255)
    out = torch.where(room > 0, curve.gather(1, flat), flat.float())
    return out.view_as(levels)
