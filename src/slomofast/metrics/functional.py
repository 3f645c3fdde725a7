"""The mathematics of the metrics: pure functions of tensors, arrays and lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

BINS = 15
WINDOW = 5  # batches in the moving average of the adaptation rate, and in the two ends of a recovery
PENALTY = 0.1  # weight of the fluctuation in the adaptation rate
_EQUAL = 1e-9
REACHED = 0.8  # share of the highest average accuracy that counts as adapted


def nll_per_sample(logits: Tensor, target: Tensor) -> Tensor:
    """Negative log-likelihood of the true class in nats: (n, C), (n,) -> (n,)."""
    return torch.nn.functional.cross_entropy(logits.float(), target, reduction="none")


def entropy_per_sample(logits: Tensor) -> Tensor:
    """Entropy of the predicted distribution in nats: (n, C) -> (n,)."""
    logs = logits.float().log_softmax(1)
    return -(logs.exp() * logs).sum(1)


def calibration_bins(logits: Tensor, target: Tensor, bins: int = BINS) -> Tensor:
    """Count, sum of confidence and number correct per bin of confidence: float64, shape (3, bins).

    Bin b holds confidences in (b/bins, (b+1)/bins]; the first bin also holds 0 and what is not a number.
    """
    confidence, prediction = logits.float().softmax(1).max(1)
    confidence = confidence.nan_to_num(0.0)
    place = (confidence * bins).ceil().long().sub_(1).clamp_(0, bins - 1)
    rows = torch.stack([torch.ones_like(confidence), confidence, (prediction == target).float()]).double()
    return torch.zeros(3, bins, dtype=torch.float64, device=logits.device).index_add_(1, place, rows)


def expected_calibration_error(bins: Any) -> float:
    """Mean gap between confidence and accuracy over the bins, weighted by their size, in percent.

    `bins` has shape (3, B): count, sum of confidence, number correct. NaN when there are no samples.
    """
    count, confidence, correct = np.asarray(bins, dtype=np.float64)
    total = count.sum()
    return float(100 * np.abs(confidence - correct).sum() / total) if total else math.nan


def error_rate(wrong: float, count: float) -> float:
    """Wrong predictions in percent; NaN when there are none at all."""
    return 100 * wrong / count if count else math.nan


def moving_average(values: Sequence[float], window: int) -> np.ndarray:
    """Means of `window` neighbouring values, shape (n - window + 1,).

    A sequence shorter than the window gives the one mean of all its values.
    """
    series = np.asarray(values, dtype=np.float64)
    if not len(series):
        return series
    width = min(max(1, window), len(series))
    sums = np.cumsum(np.concatenate([[0.0], series]))
    return (sums[width:] - sums[:-width]) / width


@dataclass(frozen=True)
class Adaptation:
    """How fast and how steadily accuracy rises inside a domain visit.

    Attributes:
        rate: speed / time - penalty * fluctuation.
        time: TTP, first place (from 1) at which the average accuracy reaches 80 % of its maximum.
        speed: APS, mean of the positive differences of consecutive averages; 0 when none is positive.
        fluctuation: STD of the averages (population).
    """

    rate: float
    time: int
    speed: float
    fluctuation: float


def adaptation_rate(accuracy: Sequence[float], window: int = WINDOW, penalty: float = PENALTY) -> Adaptation:
    """The adaptation rate of one visit from its batch accuracies (fractions, in order)."""
    averages = moving_average(accuracy, window)
    if not len(averages):
        return Adaptation(math.nan, 0, math.nan, math.nan)
    # The averages are sums of floats: what differs by less than this is equal.
    time = int(np.argmax(averages >= REACHED * averages.max() - _EQUAL)) + 1
    rises = np.diff(averages)
    rises = rises[rises > _EQUAL]
    speed = float(rises.mean()) if len(rises) else 0.0
    fluctuation = float(averages.std())
    return Adaptation(speed / time - penalty * fluctuation, time, speed, fluctuation)


def recovery(before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]], batches: int = WINDOW) -> float:
    """Error of a returning domain's first batches minus that of the last batches when it was left, in points.

    Both arguments are (count, wrong) per batch of a visit, in order. Negative: it came back better.
    """
    left, found = before[-batches:], after[:batches]
    leaving = error_rate(sum(w for _, w in left), sum(n for n, _ in left))
    return error_rate(sum(w for _, w in found), sum(n for n, _ in found)) - leaving


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, interpolated; NaN for none."""
    return float(np.quantile(np.asarray(values, dtype=np.float64), share)) if len(values) else math.nan
