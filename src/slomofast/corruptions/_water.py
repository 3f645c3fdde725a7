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
    strength = (gx.abs() + gy.abs()).to(torch.int16)  # whole numbers up to 2040; small types compare faster
    around = F.pad(strength, (1, 1, 1, 1))
    size = levels.shape[-1]

    def neighbour(dy: int, dx: int) -> Tensor:
        return around[..., 1 + dy : 1 + dy + size, 1 + dx : 1 + dx + size]

    flat, steep = math.tan(math.pi / 8), math.tan(3 * math.pi / 8)
    ratio_x, ratio_y = gx.abs(), gy.abs()
    horizontal, vertical = ratio_y < flat * ratio_x, ratio_y > steep * ratio_x
    same_sign = gx * gy > 0  # asked for slanted edges only, where neither is 0
    # A pixel stays when it exceeds one neighbour across the edge and is no weaker than the other (stronger where the
    # edge is slanted). Of whole numbers, no weaker than n is stronger than n - 1.
    falling = torch.maximum(neighbour(-1, -1), neighbour(1, 1))
    rising = torch.maximum(neighbour(-1, 1), neighbour(1, -1))
    sideways = torch.maximum(neighbour(0, -1), neighbour(0, 1) - 1)
    upright = torch.maximum(neighbour(-1, 0), neighbour(1, 0) - 1)
    slanted = (same_sign & (strength > falling)) | (~same_sign & (strength > rising))
    peak = (
        (horizontal & (strength > sideways)) | (vertical & (strength > upright)) | (~(horizontal | vertical) & slanted)
    )
    candidate = peak & (strength > _LOW)
    edge = candidate & (strength > _HIGH)
    for _ in range(64):
        grown = _dilated(edge) & candidate
        if torch.equal(grown, edge):
            break
        edge = grown
    return edge


def _dilated(marked: Tensor) -> Tensor:
    """Marked pixels and their eight neighbours."""
    padded = F.pad(marked, (1, 1, 1, 1))
    across = padded[..., :-2] | padded[..., 1:-1] | padded[..., 2:]
    return across[..., :-2, :] | across[..., 1:-1, :] | across[..., 2:, :]


def distance_to(marked: Tensor) -> Tensor:
    """Euclidean distance in pixels to the nearest marked pixel, exact up to 20; 20 beyond.

    Along the rows distances spread by shifts of 1, 2, 4, 8 and 16, which add up to every distance that counts. Down
    the columns the smallest sum of squares is looked for. All of it in 16-bit integers.
    """
    far, size = _FARTHEST, marked.shape[-1]
    line = (~marked).to(torch.int16) * far
    for shift in (1, 2, 4, 8, 16):
        if shift < size:
            nearer = line.clone()
            further = line + shift
            torch.minimum(nearer[..., shift:], further[..., :-shift], out=nearer[..., shift:])
            torch.minimum(nearer[..., :-shift], further[..., shift:], out=nearer[..., :-shift])
            line = nearer
    squares = line * line
    best, further = squares.clone(), torch.empty_like(squares)
    for shift in range(1, min(far, size)):
        torch.add(squares, shift * shift, out=further)
        torch.minimum(best[..., shift:, :], further[..., :-shift, :], out=best[..., shift:, :])
        torch.minimum(best[..., :-shift, :], further[..., shift:, :], out=best[..., :-shift, :])
    return best.float().sqrt_()


def equalise(levels: Tensor) -> Tensor:
    """Histogram equalisation of (B, 1, S, S) with values 0..255; a constant image stays as it is."""
    flat = levels.flatten(1).long()
    ones = torch.ones((), device=levels.device).expand_as(flat)
    count = torch.zeros(len(flat), 256, device=levels.device).scatter_add_(1, flat, ones)
    total = count.cumsum(1)
    darkest = (count > 0).to(torch.uint8).argmax(1, keepdim=True)
    base = count.gather(1, darkest)
    room = flat.shape[1] - base
    curve = ((total - base) * 255 / room.clamp(min=1)).add_(0.5).floor_().clamp_(0, 255)
    same = torch.arange(256.0, device=levels.device)
    return torch.where(room > 0, curve, same).gather(1, flat).view_as(levels)
