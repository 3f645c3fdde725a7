"""Which images of a batch were taken under the same condition, told from the images alone.

Noise, blur, fog and low contrast leave their mark on how much detail of which size an image has, whatever it shows. A
mixture of Gaussians over the last images, all with the same covariance, finds such marks without labels: what one
condition has of variety is in the covariance, and components that lie closer than that explains count as one. So a
batch of one condition is one group, and a batch that mixes conditions falls apart into them.

`Conditions.weights` turns that into the rows of weights by which BatchNorm gathers the statistics of each image
(`core.neighbours`). Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slomofast.core.neighbours import Neighbours

LUMA_LEVELS, COLOUR_LEVELS = 3, 2
LEAST_SIDE = 2**LUMA_LEVELS  # of an image whose detail can be told
MARKS = 4 * (LUMA_LEVELS + COLOUR_LEVELS) + 4
FLOOR = 1e-4  # energy below which detail does not count: a hundredth of the range, squared
OUTLIER = 4.0  # deviations at which a mark is clipped
ITERATIONS, FIRST_ITERATIONS = 1, 10  # of the fit, for a batch and for the first one
RIDGE, FEW = 0.02, 4.0  # added to the variances of marks, whose deviation is one, and of few images by their number
SAME = 0.01  # squared deviations below which two components are the same
ENOUGH = 12  # images a group, without which nothing is told apart
ONE_CONDITION, MIXED = 0.3, 0.4  # share of unlike pairs up to which a batch is one group, and from which it is several


def can_tell(shape: Sequence[int]) -> bool:
    """Whether samples of this shape are images large enough to have detail of several sizes.

    >>> can_tell((3, 32, 32)), can_tell((16,)), can_tell((3, 4, 4))
    (True, False, False)
    """
    return len(shape) == 3 and min(shape[1:]) >= LEAST_SIDE


def marks(x: Tensor) -> Tensor:
    """(B, channels, H, W) in [0, 1] to (B, MARKS): log amounts of detail by size and direction, in grey and colour."""
    x = torch.nan_to_num(x.float()).clamp(0.0, 1.0)
    grey = x.mean(1, keepdim=True)
    colour = x - grey
    in_grey, in_colour = _energies(torch.cat([grey, colour], 1))
    energies = torch.cat([in_grey, in_colour, colour.square().mean((1, 2, 3))[:, None]], 1)
    return torch.cat([0.5 * (energies + FLOOR).log(), 2.0 * grey.mean((2, 3))], 1)


def _energies(planes: Tensor) -> tuple[Tensor, Tensor]:
    """Of the first plane and, for fewer sizes, of the mean of the others: energies of the detail of each size, with the
    square of the mean size of the diagonal one, then that of what is left."""
    first, others = [], []
    for level in range(LUMA_LEVELS):
        bands = _haar(planes)
        detail, diagonal = bands[:, :, 1:], bands[:, :, 3]
        found = torch.cat([detail.square().mean((3, 4)), diagonal.abs().mean((2, 3)).square()[..., None]], 2)
        planes = bands[:, :, 0] / 2
        first.append(found[:, 0])
        if level < COLOUR_LEVELS:
            others.append(found[:, 1:].mean(1))
        if level == COLOUR_LEVELS - 1:
            others.append(_variances(planes)[:, 1:].mean(1, keepdim=True))
    return torch.cat([*first, _variances(planes)[:, :1]], 1), torch.cat(others, 1)


def _variances(planes: Tensor) -> Tensor:
    return planes.var((2, 3), unbiased=False)


def _haar(planes: Tensor) -> Tensor:
    """(B, C, H, W) to (B, C, 4, H / 2, W / 2): twice the mean, and the detail across, down and diagonal."""
    height, width = planes.shape[2] // 2 * 2, planes.shape[3] // 2 * 2
    corners = F.pixel_unshuffle(planes[..., :height, :width], 2).unflatten(1, (-1, 4))
    left, right = corners[:, :, 0::2], corners[:, :, 1::2]
    rows = torch.stack([left + right, left - right], 2)  # (B, C, sum or difference, upper or lower, ...)
    upper, lower = rows[:, :, :, 0], rows[:, :, :, 1]
    return torch.cat([upper + lower, upper - lower], 2) / 2


Method = TypeVar("Method", bound=Callable[..., Any])


def _exactly(method: Method) -> Method:
    """In fp32 whatever the caller computes in: covariances do not survive less."""

    @wraps(method)
    def run(self: Conditions, *args: Any) -> Any:
        with torch.autocast(self.mean.device.type, enabled=False):
            return method(self, *args)

    return cast(Method, run)


class Conditions(nn.Module):
    """A mixture of Gaussians over the marks of the last images.

    Args:
        groups: components of the mixture; conditions that resemble each other share one.
        recent: how many images the mixture is fitted to.
        apart: deviations between two components from which they count as different conditions.
        shared: images' worth of the whole batch in the statistics of a group, which has few.
    """

    recent: Tensor
    held: Tensor
    centre: Tensor
    spread: Tensor
    mean: Tensor
    mass: Tensor
    precision: Tensor

    def __init__(self, groups: int = 12, recent: int = 2000, apart: float = 7.0, shared: float = 50.0) -> None:
        super().__init__()
        self.groups, self.apart, self.shared = groups, apart, shared
        self.register_buffer("recent", torch.zeros(recent, MARKS))
        self.register_buffer("held", torch.zeros(recent))  # 1 where a row of `recent` is filled
        self.register_buffer("centre", torch.zeros(MARKS))
        self.register_buffer("spread", torch.ones(MARKS))
        self.register_buffer("mean", torch.zeros(groups, MARKS))  # in the marks' own units
        self.register_buffer("mass", torch.zeros(groups))
        self.register_buffer("precision", torch.eye(MARKS))  # of standardised marks

    @torch.no_grad()
    @_exactly
    def learn(self, found: Tensor, steps: int) -> None:
        """Take the marks of a batch in and fit the mixture to the last images a little better."""
        found, fresh = found[-len(self.recent) :], self.held.sum() == 0
        self.recent.copy_(torch.cat([self.recent[len(found) :], found]))
        self.held.copy_(torch.cat([self.held[len(found) :], torch.ones_like(found[:, 0])]))
        weight = self.held / self.held.sum()
        self.centre.copy_(weight @ self.recent)
        self.spread.copy_((weight @ (self.recent - self.centre).square()).sqrt().clamp(min=1e-3))
        # at first any images will do; later a component that explains next to nothing, or the same as another one,
        # tries its luck elsewhere
        which = torch.arange(self.groups, device=found.device)
        mean = self._standard(self.mean)
        same = (_distances(mean, mean, self.precision) < SAME).tril(-1).any(1)
        idle = (self.mass == self.mass.min()) & (self.mass < 0.25 / self.groups)
        elsewhere = found[(which * len(found) // self.groups + steps * 7919) % len(found)]
        self.mean.copy_(torch.where((fresh | same | idle)[:, None], elsewhere, self.mean))
        self.mass.clamp_(min=0.1 / self.groups)
        z = self._standard(self.recent)
        ridge = (RIDGE + FEW / self.held.sum()) * torch.eye(MARKS, device=found.device)
        second = (z * weight[:, None]).T @ z
        for _ in range(ITERATIONS if steps else FIRST_ITERATIONS):
            member = self._members(z) * weight[:, None]
            self.mass.copy_(member.sum(0))
            mean = member.T @ z / self.mass.clamp(min=1e-9)[:, None]
            self.mean.copy_(mean * self.spread + self.centre)
            covariance = second - (mean * self.mass[:, None]).T @ mean
            self.precision.copy_(torch.linalg.inv_ex(covariance + ridge).inverse)

    def weights(self, found: Tensor) -> Tensor:
        """(B, B): how much each image counts in the statistics of another, by rows that add up to one."""
        return self.rows(self.alike(found))

    def rows(self, alike: Tensor) -> Tensor:
        """Such weights from how much images are alike: a group has few, so that the whole batch counts in part."""
        counted = alike + self.shared / len(alike)
        return counted / counted.sum(1, keepdim=True)

    @torch.no_grad()
    @_exactly
    def alike(self, found: Tensor) -> Tensor:
        """(B, B): probability that two images are of one condition; zero everywhere where nothing is mixed."""
        member = self._members(self._standard(found))
        mean = self._standard(self.mean)
        gap = _distances(mean, mean, self.precision)
        alike = member @ torch.exp(-(gap / self.apart**2).square()) @ member.T
        mixed = ((1.0 - alike.mean() - ONE_CONDITION) / (MIXED - ONE_CONDITION)).clamp(0.0, 1.0)
        mixed = torch.where(self.held.sum() >= min(ENOUGH * self.groups, len(self.held)), mixed, 0.0)
        return mixed * alike

    def _standard(self, found: Tensor) -> Tensor:
        return ((found - self.centre) / self.spread).clamp(-OUTLIER, OUTLIER)

    def _members(self, z: Tensor) -> Tensor:
        """(rows, groups): probability that a row belongs to a component."""
        gap = _distances(z, self._standard(self.mean), self.precision)
        return (self.mass.clamp(min=1e-9).log() - 0.5 * gap).softmax(1)


def _distances(one: Tensor, other: Tensor, precision: Tensor) -> Tensor:
    """Squared distances of all pairs of rows, in deviations."""
    gap = one[:, None] - other
    return ((gap @ precision) * gap).sum(2)


class Unmixed(nn.Module):
    """A network whose norm layers are told, batch by batch, which images belong together."""

    def __init__(self, network: nn.Module, conditions: Conditions, neighbours: Neighbours) -> None:
        super().__init__()
        self.network, self.conditions, self.neighbours = network, conditions, neighbours

    def forward(self, x: Tensor) -> Tensor:
        if can_tell(x.shape[1:]):
            self.neighbours.set(self.conditions.weights(marks(x)))
        else:
            self.neighbours.set(x.new_full((len(x), len(x)), 1 / len(x)))
        return cast(Tensor, self.network(x))
