"""Losses and output corrections as pure functions of logits and features.

Logits are (B, C), features (B, D). A function returns one value per sample (B,) unless its first line says otherwise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy of the softmax, in nats."""
    log_p = logits.log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of the softmax of `logits` under the softmax of the target logits."""
    return -(target.softmax(1) * logits.log_softmax(1)).sum(1)


def symmetric_cross_entropy(logits: Tensor, target: Tensor, forward: float = 1.0, reverse: float = 1.0) -> Tensor:
    """forward * (-sum q log p) + reverse * (-sum p log q), with p from `logits` and q from `target`.

    Detach `target` to let the gradient flow through the student's side of both terms only.
    """
    log_p, log_q = logits.log_softmax(1), target.log_softmax(1)
    return -(forward * log_q.exp() * log_p + reverse * log_p.exp() * log_q).sum(1)


def distillation(logits: Tensor, target: Tensor, symmetric: bool) -> Tensor:
    """One value: mean cross-entropy with a teacher, half in either direction if `symmetric`, else in the usual one."""
    loss = symmetric_cross_entropy(logits, target, 0.5, 0.5) if symmetric else cross_entropy(logits, target)
    return loss.mean()


def information_maximisation(logits: Tensor) -> Tensor:
    """One value: mean entropy of the predictions minus entropy of their mean. Low when certain and diverse."""
    log_p = logits.log_softmax(1)
    p = log_p.exp()
    mean = p.mean(0)
    return -(p * log_p).sum(1).mean() + (mean * mean.clamp_min(1e-12).log()).sum()


def soft_likelihood_ratio(logits: Tensor, clip: float = 0.99, eps: float = 1e-5) -> Tensor:
    """-sum p log(p / (1 - p) + eps), with p clipped from above so that sure samples keep a gradient."""
    p = logits.softmax(1).clamp(0.0, clip)
    return -(p * (p / (1.0 - p) + eps).log()).sum(1)


def prediction_change(logits: Tensor, destroyed: Tensor) -> Tensor:
    """How much probability the predicted class loses when the object's shape is destroyed.

    `destroyed` is (V, B, C): logits of V destroyed views, averaged as probabilities.
    """
    p = logits.softmax(1)
    label = p.argmax(1, keepdim=True)
    return (p.gather(1, label) - destroyed.softmax(2).mean(0).gather(1, label)).squeeze(1)


def contrastive(views: Tensor, temperature: float = 0.1, mask: Tensor | None = None) -> Tensor:
    """One value: views of the same sample attract, all other vectors repel; mean over anchors and positives.

    Args:
        views: (V, B, D) vectors; view v of sample i. They are normalised here.
        mask: (B,) samples that take part; None means all. No sample: zero, without a gradient.
    """
    count, batch, _ = views.shape
    unit = F.normalize(views.float(), dim=2).reshape(count * batch, -1)
    taking = torch.ones(batch, dtype=torch.bool, device=views.device) if mask is None else mask
    taking = taking.repeat(count)
    similarity = unit @ unit.T / temperature
    itself = torch.eye(count * batch, dtype=torch.bool, device=views.device)
    # a column that is masked for every row would make log-sum-exp -inf and its gradient NaN; rows of masked anchors
    # therefore keep all columns and are dropped afterwards
    excluded = itself | (~taking[None, :] & taking[:, None])
    alone = excluded.all(1, keepdim=True)
    log_all = similarity.masked_fill(excluded & ~alone, float("-inf")).logsumexp(1)
    sample = torch.arange(batch, device=views.device).repeat(count)
    positive = (sample[:, None] == sample[None, :]) & ~itself
    log_ratio = (similarity - log_all[:, None]).masked_fill(~positive, 0.0).sum(1) / max(1, count - 1)
    total = torch.where(taking, -log_ratio, torch.zeros_like(log_ratio)).sum()
    return total / taking.sum().clamp(min=1)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of the values where the mask is set; zero without a gradient where none is."""
    kept = torch.where(mask, values, torch.zeros_like(values))
    return kept.sum() / mask.sum().clamp(min=1)


def label_calibration(logits: Tensor, smoothing: float = 1.0, usual: Tensor | None = None) -> Tensor:
    """Log of posterior times estimated class prior, normalised; the prior is the batch's mean prediction, smoothed.

    pi = (sum_i p_i + a) / (B + a C). Returns (B, C) log-probabilities, so argmax and softmax mean what they say. With
    `usual` (C,), a long-run mean of predictions, the prior is relative to it, pi = (sum_i p_i + a C usual) / (B + a C)
    over usual: what a network always says too often is no sign of a batch with many images of that class.
    """
    log_p = logits.log_softmax(1)
    batch, classes = logits.shape
    expected = 1.0 / classes if usual is None else usual
    prior = (log_p.exp().sum(0) + smoothing * classes * expected) / (batch + smoothing * classes)
    return (log_p + (prior.log() if usual is None else (prior / usual).log())).log_softmax(1)


def prior_correction(logits: Tensor, prior: Tensor) -> Tensor:
    """Logits times a smoothed class prior, class by class (B, C); `prior` is the batch's mean prediction (C,)."""
    batch, classes = logits.shape
    smoothing = max(1.0 / batch, 1.0 / classes) / prior.max()
    return logits * ((prior + smoothing) / (1.0 + smoothing * classes))


def cosine_to(vectors: Tensor, reference: Tensor) -> Tensor:
    """Cosine similarity of each row to one vector."""
    return F.cosine_similarity(vectors, reference[None, :], dim=1)


def certainty_diversity(logits: Tensor, average: Tensor, temperature: float = 1 / 3) -> tuple[Tensor, Tensor]:
    """Weights (B,) that grow with certainty and with distance from the average prediction, and who is kept (B,).

    Both figures are stretched to [0, 1] within the batch; a sample less diverse than the batch's mean is dropped and
    weighs nothing. Where all samples agree (a batch of one, say) there is nothing to tell them apart by: all are kept
    with weight one.

    Args:
        average: (C,) running mean of the predicted probabilities.
    """
    diversity = _stretched(1.0 - cosine_to(logits.softmax(1), average))
    certainty = _stretched(-entropy(logits))
    kept = ~(diversity < diversity.mean())  # values that are not numbers stay, so that the step is seen to fail
    return torch.where(kept, (diversity * certainty / temperature).exp(), 0.0), kept


def _stretched(values: Tensor) -> Tensor:
    low, high = values.aminmax()
    return (values - low) / (high - low).clamp_min(1e-8)


def marginal_entropy(logits: Tensor) -> Tensor:
    """Entropy of the mean prediction over views: (V, B, C) logits of V views give (B,) values in nats."""
    log_mean = logits.log_softmax(2).logsumexp(0) - math.log(logits.shape[0])
    log_mean = log_mean.clamp_min(torch.finfo(log_mean.dtype).min)
    return -(log_mean.exp() * log_mean).sum(1)


def agreed(logits: Tensor, logits_view: Tensor, teacher: Tensor) -> Tensor:
    """One value: symmetric cross-entropy with the teacher, half from the clean and half from the augmented image."""
    clean = symmetric_cross_entropy(logits, teacher, 0.5, 0.5)
    return 0.5 * (clean + symmetric_cross_entropy(logits_view, teacher, 0.5, 0.5)).mean()
