"""The three kinds of test statistics against numbers worked out in NumPy."""

import numpy as np
import pytest
import torch
from torch import nn

import slomofast as sf

MEAN, VARIANCE = np.array([0.5, -1.0]), np.array([2.0, 0.5])
GAMMA, BETA = np.array([1.5, 0.7]), np.array([0.2, -0.3])


def network() -> nn.Module:
    """BatchNorm over two channels, then the channels' pixels summed up."""
    net = nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2, bias=False)).eval()
    with torch.no_grad():
        for target, value in zip(
            (net[0].running_mean, net[0].running_var, net[0].weight, net[0].bias),
            (MEAN, VARIANCE, GAMMA, BETA),
            strict=True,
        ):
            target.copy_(torch.tensor(value))
        net[2].weight.copy_(torch.tensor([[1.0] * 4 + [0.0] * 4, [0.0] * 4 + [1.0] * 4]))
    return net


def batch(seed: int = 0) -> torch.Tensor:
    return 1.0 + 2.0 * torch.randn(3, 2, 2, 2, generator=torch.Generator().manual_seed(seed))


def expected(x: torch.Tensor, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    unit = (x.numpy().astype(float) - mean[:, None, None]) / np.sqrt(variance + 1e-5)[:, None, None]
    return (unit * GAMMA[:, None, None] + BETA[:, None, None]).sum((2, 3))


def statistics(x: torch.Tensor, ddof: int) -> tuple[np.ndarray, np.ndarray]:
    rows = x.numpy().astype(float).transpose(1, 0, 2, 3).reshape(2, -1)
    return rows.mean(1), rows.var(1, ddof=ddof)


def test_batch_statistics_are_biased_and_leave_nothing_behind() -> None:
    adapter = sf.adapt(network(), "bn")
    for seed in (0, 1):
        assert np.allclose(adapter(batch(seed)).numpy(), expected(batch(seed), *statistics(batch(seed), 0)), atol=1e-4)


def test_blend_gives_the_test_batch_the_share_alpha() -> None:
    adapter = sf.adapt(network(), "bn", statistics="blend", alpha=0.25)
    mean, variance = statistics(batch(), 1)
    want = expected(batch(), 0.75 * MEAN + 0.25 * mean, 0.75 * VARIANCE + 0.25 * variance)
    assert np.allclose(adapter(batch()).numpy(), want, atol=1e-4)
    source = sf.adapt(network(), "bn", statistics="blend", alpha=0.0)
    assert np.allclose(source(batch()).numpy(), expected(batch(), MEAN, VARIANCE), atol=1e-4)


def test_ema_holds_the_current_batch_and_predicting_does_not_move_it() -> None:
    adapter, mean, variance = sf.adapt(network(), "bn", statistics="ema", alpha=0.1), MEAN, VARIANCE
    for seed in (0, 1, 2):
        x = batch(seed)
        new_mean, new_variance = statistics(x, 1)
        mean, variance = 0.9 * mean + 0.1 * new_mean, 0.9 * variance + 0.1 * new_variance
        assert np.allclose(adapter(x).numpy(), expected(x, mean, variance), atol=1e-4)
        adapter.predict(batch(9))
    adapter.reset()
    assert np.allclose(adapter.predict(batch()).numpy(), expected(batch(), MEAN, VARIANCE), atol=1e-4)


@pytest.mark.parametrize("kind", ["batch", "blend", "ema"])
def test_one_value_per_channel_uses_the_stored_statistics(kind: str) -> None:
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)).eval()
    net[0].running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
    x = torch.rand(1, 3)
    with torch.no_grad():
        assert torch.allclose(sf.adapt(net, "bn", statistics=kind)(x), net(x), atol=1e-6)
