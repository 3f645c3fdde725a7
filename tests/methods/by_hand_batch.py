"""A network small enough to work out by hand: BatchNorm on batch statistics, then a fixed linear head."""

import numpy as np
import torch
from by_hand import GAMMA_BETA, HEAD, Array, softmax
from torch import nn

MEAN, VARIANCE = np.array([0.3, -0.2, 0.1, 0.0]), np.array([1.5, 0.8, 1.0, 2.0])


def network() -> nn.Module:
    """BatchNorm1d(4) with stored statistics and a linear head of three classes."""
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor(GAMMA_BETA[:4]))
        net[0].bias.copy_(torch.tensor(GAMMA_BETA[4:]))
        net[0].running_mean.copy_(torch.tensor(MEAN))
        net[0].running_var.copy_(torch.tensor(VARIANCE))
        net[1].weight.copy_(torch.tensor(HEAD))
    return net.eval()


def features(theta: Array, x: Array, mean: Array | None = None, variance: Array | None = None) -> Array:
    """What the head sees, with statistics of `x` itself unless others are given."""
    mean = x.mean(0) if mean is None else mean
    variance = x.var(0) if variance is None else variance
    return (x - mean) / np.sqrt(variance + 1e-5) * theta[:4] + theta[4:]


def logits(theta: Array, x: Array, mean: Array | None = None, variance: Array | None = None) -> Array:
    """The network's output (B, 3)."""
    return features(theta, x, mean, variance) @ HEAD.T


def numbers(x: torch.Tensor) -> Array:
    """A tensor as float64."""
    return x.detach().numpy().astype(float)


def affine(student: nn.Module) -> Array:
    """The network's scales and shifts as one vector (8,)."""
    norm = student.body[0]
    return np.concatenate([numbers(norm.weight), numbers(norm.bias)])


def cross_entropy(target: Array, z: Array) -> Array:
    """-sum softmax(target) log softmax(z), by row."""
    return -(softmax(target) * np.log(softmax(z))).sum(1)


def contrastive(vectors: Array, temperature: float) -> float:
    """Mean over all V * B anchors of the mean over their other views of -log ratio, for vectors (V, B, D)."""
    views, batch, _ = vectors.shape
    unit = vectors / np.linalg.norm(vectors, axis=2, keepdims=True)
    places = [(v, i) for v in range(views) for i in range(batch)]
    total = 0.0
    for a in places:
        below = sum(np.exp(unit[a] @ unit[k] / temperature) for k in places if k != a)
        others = [b for b in places if b[1] == a[1] and b != a]
        total -= sum(np.log(np.exp(unit[a] @ unit[b] / temperature) / below) for b in others) / len(others)
    return total / len(places)


def projected(projector: nn.Sequential, vectors: Array) -> Array:
    """The projector's output, from its weights."""
    first, _, last = projector
    hidden = np.maximum(vectors @ numbers(first.weight).T + numbers(first.bias), 0.0)
    return hidden @ numbers(last.weight).T + numbers(last.bias)
