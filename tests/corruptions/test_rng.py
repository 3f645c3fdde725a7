"""The hashed generator: moments, independence, and rows that belong to their sample."""

from __future__ import annotations

import torch

from slomofast.corruptions import SampleRng


def rng(seed: int = 0, count: int = 4, stream: str = "test") -> SampleRng:
    return SampleRng(seed, torch.arange(count), stream=stream)


def test_moments() -> None:
    uniform = rng().uniform(100_000)
    assert uniform.min() >= 0 and uniform.max() < 1
    assert abs(float(uniform.mean()) - 0.5) < 0.002 and abs(float(uniform.var()) - 1 / 12) < 0.001
    normal = rng().normal(100_000)
    assert abs(float(normal.mean())) < 0.006 and abs(float(normal.std()) - 1) < 0.005
    assert abs(float((normal**4).mean()) - 3) < 0.1 and float(normal.abs().max()) < 5.5
    assert abs(float((normal.abs() > 3).float().mean()) / 0.0027 - 1) < 0.15


def test_integers_are_even() -> None:
    drawn = rng().integers(-2, 2, 50_000)
    share = torch.bincount(drawn.flatten() + 2) / drawn.numel()
    assert len(share) == 4 and (share - 0.25).abs().max() < 0.005


def test_bits_are_balanced() -> None:
    bits = rng(count=2).bits(50_000)
    for place in range(32):
        assert abs(float(((bits >> place) & 1).float().mean()) - 0.5) < 0.01


def test_rows_and_draws_are_uncorrelated() -> None:
    source = rng(count=6)
    rows = torch.cat([source.normal(20_000), source.normal(20_000), rng(seed=1, count=6).normal(20_000)])
    rows = torch.cat([rows, rng(count=6, stream="other").normal(20_000)])
    correlation = torch.corrcoef(rows).fill_diagonal_(0)
    assert correlation.abs().max() < 0.035
    lagged = torch.corrcoef(torch.stack([rows[0, :-1], rows[0, 1:]]))[0, 1]
    assert lagged.abs() < 0.03


def test_neighbouring_seeds_and_samples_share_nothing() -> None:
    first = SampleRng(0, torch.tensor([0, 1, 2]), "x").bits(1000)
    second = SampleRng(1, torch.tensor([0, 1, 2]), "x").bits(1000)
    everything = torch.cat([first, second]).flatten()
    assert len(everything.unique()) > 5990


def test_a_row_depends_on_its_sample_alone() -> None:
    together = SampleRng(5, torch.tensor([3, 2**40, -1]), "x")
    alone = SampleRng(5, torch.tensor([-1]), "x")
    for _ in range(3):
        assert torch.equal(together.normal(7, 5)[2:], alone.normal(7, 5))


def test_the_numbers_are_frozen() -> None:
    """Stored results name a seed; the hash must not change under them."""
    assert rng(seed=42, count=1, stream="fog").bits(4).tolist() == FROZEN


FROZEN: list[list[int]] = [[1955832117, -573600694, 708045539, 761967862]]
