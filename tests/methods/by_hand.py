"""A network small enough to work out by hand: LayerNorm, then a fixed linear head, in NumPy and in PyTorch."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

Array = np.ndarray
HEAD = np.array([[2.0, -1.0, 0.5, 0.0], [-0.5, 1.5, 0.0, 1.0], [0.0, 0.5, -1.0, -2.0]])
GAMMA_BETA = np.array([1.0, 1.2, 0.9, 1.1, 0.1, -0.1, 0.0, 0.2])


def network() -> nn.Module:
    """LayerNorm(4) and a linear head of three classes."""
    net = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor(GAMMA_BETA[:4]))
        net[0].bias.copy_(torch.tensor(GAMMA_BETA[4:]))
        net[1].weight.copy_(torch.tensor(HEAD))
    return net


def logits(theta: Array, x: Array) -> Array:
    """The network's output (B, 3) for scales and shifts `theta` (8,) and inputs (B, 4)."""
    centred = x - x.mean(1, keepdims=True)
    unit = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    return (unit * theta[:4] + theta[4:]) @ HEAD.T


def softmax(z: Array) -> Array:
    """Probabilities along the last axis."""
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def entropies(z: Array) -> Array:
    """Entropy of each row's softmax, in nats."""
    p = softmax(z)
    return -(p * np.log(p)).sum(-1)


def slope(function: Callable[[Array], float], at: Array, step: float = 1e-6) -> Array:
    """Gradient by central differences."""
    out = np.zeros_like(at)
    for k in range(at.size):
        up, down = at.copy(), at.copy()
        up[k] += step
        down[k] -= step
        out[k] = (function(up) - function(down)) / (2 * step)
    return out


def weights(student: nn.Module) -> Array:
    """Scales and shifts of an adapter's copy, as `theta`."""
    (layer,) = (m for m in student.modules() if isinstance(m, nn.LayerNorm))
    return torch.cat([layer.weight, layer.bias]).detach().numpy().astype(np.float64)


def inputs(rows: int = 8, seed: int = 0) -> Tensor:
    """Some inputs of mixed certainty, (rows, 4)."""
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))
