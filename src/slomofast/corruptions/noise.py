"""Noise: sensor noise, photon noise, dead pixels."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from slomofast.corruptions._levels import level
from slomofast.corruptions._ops import SLACK
from slomofast.corruptions._registry import register
from slomofast.corruptions.rng import SampleRng

_MANY_PHOTONS = 4000.0  # beyond, a rounded normal is within a hundredth of a grey level of the Poisson law


@register("noise", "Additive normal noise on every channel value, as of a sensor in low light")
def gaussian_noise(images: Tensor, severity: float, rng: SampleRng) -> Tensor:
    """Add independent normal noise."""
    (std,) = level("gaussian_noise", severity, images.shape[-1])
    return rng.normal(*images.shape[1:]).mul_(std).add_(images)


@register("noise", "Single channel values stuck at black or white")
def impulse_noise(images: Tensor, severity: float, rng: SampleRng) -> Tensor:
    """Replace a share of the channel values by 0 or 1, half each."""
    (amount,) = level("impulse_noise", severity, images.shape[-1])
    dice = rng.uniform(*images.shape[1:])
    return images.masked_fill(dice < amount, 1.0).masked_fill_(dice < amount / 2, 0.0)


@register("noise", "Photon counting noise: Poisson, strongest where the image is bright")
def shot_noise(images: Tensor, severity: float, rng: SampleRng) -> Tensor:
    """Count photons: Poisson(c x) / c with c photons at full brightness."""
    (inverse,) = level("shot_noise", severity, images.shape[-1])
    photons = 1 / inverse
    if photons > _MANY_PHOTONS:
        spread = images.mul(inverse).sqrt_()
        return rng.normal(*images.shape[1:]).mul_(spread).add_(images).mul_(photons).round_().mul_(inverse)
    levels = images.mul(255).add_(SLACK)
    whole = levels.floor()
    rest = levels.sub_(whole).sub_(SLACK).clamp_(min=0)
    counts = _poisson_of_levels(whole.to(torch.int32), photons, rng)
    if bool((rest > SLACK).any()):  # float images between two levels: a sum of Poisson counts is a Poisson count
        counts += _small_poisson(rest.mul_(photons / 255), photons / 255, rng)
    return counts.mul_(inverse)


def _poisson_of_levels(whole: Tensor, photons: float, rng: SampleRng) -> Tensor:
    """Exact Poisson counts with mean photons * level / 255, by the alias method; float32."""
    threshold, outcome, columns = _alias_tables(photons, whole.device)
    bits = rng.bits(*whole.shape[1:])
    shift = int(math.log2(columns))
    # The low bits choose a column, the high ones decide between the column's two outcomes.
    place = (bits & (columns - 1)).add_(whole, alpha=columns).view(-1)
    coin = (bits >> shift).bitwise_and_(2 ** (32 - shift) - 1).to(torch.float32).view(-1)
    second = coin >= threshold.index_select(0, place)
    return outcome.index_select(0, place.mul_(2).add_(second)).view(whole.shape)


@lru_cache(maxsize=16)
def _alias_tables(photons: float, device: torch.device) -> tuple[Tensor, Tensor, int]:
    """Alias tables of the 256 Poisson laws of 8-bit levels: thresholds, outcome pairs, columns per level.

    Each law keeps the counts within eight standard deviations of its mean; the mass beyond is below 1e-13.
    """
    mean = photons * np.arange(256) / 255
    reach = 8 * np.sqrt(mean) + 12
    lowest = np.floor(np.maximum(mean - reach, 0))
    columns = 2 ** math.ceil(math.log2((mean + reach - lowest).max() + 1))
    count = lowest[:, None] + np.arange(columns)
    log_factorial = torch.lgamma(torch.from_numpy(count) + 1).numpy()
    log_mean = np.log(np.maximum(mean, 1e-300))[:, None]
    mass = np.exp(count * log_mean - mean[:, None] - log_factorial)
    share, alias = alias_table(mass / mass.sum(1, keepdims=True))
    bits = 32 - int(math.log2(columns))
    outcome = np.stack([count, np.take_along_axis(count, alias, 1)], -1)
    return (
        torch.from_numpy(share * 2.0**bits).float().view(-1).to(device),
        torch.from_numpy(outcome).float().view(-1).to(device),
        columns,
    )


def alias_table(mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Alias tables of several discrete laws at once.

    Args:
        mass: probabilities, shape (laws, outcomes), rows summing to 1.

    Returns:
        `share` and `alias`: drawing a column j uniformly and answering j with probability share[j], else
        alias[j], follows the law.
    """
    laws, outcomes = mass.shape
    row = np.arange(laws)
    share = mass * outcomes
    alias = np.tile(np.arange(outcomes), (laws, 1))
    # Columns that hold too little first, then those with too much; each step fills one column of every law.
    order = np.argsort(share >= 1, axis=1, kind="stable")
    poor_count = (share < 1).sum(1)
    next_poor, next_rich = np.ones(laws, dtype=np.int64), poor_count + 1
    poor, rich = order[:, 0], order[row, np.minimum(poor_count, outcomes - 1)]
    active = (poor_count > 0) & (poor_count < outcomes)
    left = share.copy()
    while active.any():
        at, low, high = row[active], poor[active], rich[active]
        share[at, low] = left[at, low]
        alias[at, low] = high
        left[at, high] -= 1 - left[at, low]
        emptied = left[at, high] < 1
        poor[at] = np.where(emptied, high, order[at, np.minimum(next_poor[at], outcomes - 1)])
        rich[at] = np.where(emptied, order[at, np.minimum(next_rich[at], outcomes - 1)], high)
        # The column that was emptied below one is filled next, from the next rich column.
        active[at] = np.where(emptied, next_rich[at] < outcomes, next_poor[at] < poor_count[at])
        share[at[emptied], high[emptied]] = 1.0
        next_poor[at] += ~emptied
        next_rich[at] += emptied
    untouched = alias == np.arange(outcomes)
    share[untouched] = 1.0
    return share, alias


def _small_poisson(mean: Tensor, largest: float, rng: SampleRng) -> Tensor:
    """Poisson counts for means of at most a few units, by counting the steps of the distribution function."""
    dice = rng.uniform(*mean.shape[1:])
    mass = torch.exp(-mean)
    total = mass.clone()
    count = torch.zeros_like(mean)
    for k in range(1, int(largest + 8 * math.sqrt(largest) + 12)):
        count += dice > total
        mass = mass * mean / k
        total += mass
    return count
