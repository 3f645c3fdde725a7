"""The mathematics of the metrics: pure functions of tensors, arrays and lists."""

from __future__ import annotations

import torch
from torch import Tensor

BINS = 15


def nll_per_sample(logits: Tensor, target: Tensor) -> Tensor:
    """Negative log-likelihood of the true class in nats: (n, C), (n,) -> (n,)."""
    return torch.nn.functional.cross_entropy(logits.float(), target, reduction="none")


def entropy_per_sample(logits: Tensor) -> Tensor:
    """Entropy of the predicted distribution in nats: (n, C) -> (n,)."""
    logs = logits.float().log_softmax(1)
    return -(logs.exp() * logs).sum(1)


def calibration_bins(logits: Tensor, target: Tensor, bins: int = BINS) -> Tensor:
    """Count, sum of confidence and number correct per bin of confidence: float64, shape (3, bins).

    Bin b holds confidences in (b/bins, (b+1)/bins]; the first bin also holds 0.
    """
    confidence, prediction = logits.float().softmax(1).max(1)
    place = (confidence * bins).ceil().long().sub_(1).clamp_(0, bins - 1)
    rows = torch.stack([torch.ones_like(confidence), confidence, (prediction == target).float()]).double()
    return torch.zeros(3, bins, dtype=torch.float64, device=logits.device).index_add_(1, place, rows)
