"""CMF's scalar filter and hidden model against numbers worked out in plain Python."""

import by_hand
import by_hand_batch
import numpy as np
import pytest
import torch

import slomofast as sf
from slomofast.methods import roid
from slomofast.methods.cmf import filter_step

PLAIN = {"optimizer": "sgd", "momentum": 0.0, "nesterov": False, "lr": 0.5}


def shares(trained: int, steps: int) -> list[float]:
    variance, out = torch.zeros(()), []
    for _ in range(steps):
        share, variance = filter_step(variance, 0.005 * trained / 38_400, 0.99, 0.89, 0.9999)
        out.append(float(share))
    return out


@pytest.mark.parametrize(
    ("trained", "steady"), [(17_952, 0.961), (25_216, 0.953), (53_120, 0.928), (38_400, 0.940), (57_600, 0.925)]
)
def test_shares_settle_where_the_filter_is_steady(trained: int, steady: float) -> None:
    assert shares(trained, 300)[-1] == pytest.approx(steady, abs=6e-4)


def test_first_shares() -> None:
    assert shares(17_952, 2) == pytest.approx([0.9977, 0.9954], abs=5e-5)


def test_limits_of_the_share() -> None:
    low, variance = filter_step(torch.tensor(9.0), 0.005, 1.0, 0.89, 0.9999)
    assert float(low) == pytest.approx(0.89) and float(variance) == pytest.approx(0.89 * 9.005)
    high, _ = filter_step(torch.tensor(0.0), 1e-6, 0.99, 0.89, 0.9999)
    assert float(high) == 1.0


@pytest.mark.parametrize("partner", ["updated", "predicted"])
def test_two_steps_by_hand(partner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Follow the hidden model through two batches; the gradient steps themselves are ROID's and taken from it."""
    monkeypatch.setattr(roid, "augment", lambda x, *_: 0.5 * x.flip(1))
    source, q = by_hand.GAMMA_BETA, 200.0 * 8 / 38_400  # much noise, so that the hidden model moves visibly
    adapter = sf.adapt(by_hand_batch.network(), "cmf", noise=200.0, partner=partner, **PLAIN)
    plain = sf.adapt(by_hand_batch.network(), "roid", source_momentum=1.0, **PLAIN).prepare(by_hand.inputs(8))
    hidden, variance, theta = source.copy(), 0.0, source.copy()
    for seed in (0, 1):
        x = by_hand.inputs(8, seed)
        with torch.no_grad():  # the same start for the step without averaging
            plain.student.body[0].weight.copy_(torch.tensor(theta[:4]))
            plain.student.body[0].bias.copy_(torch.tensor(theta[4:]))
        plain(x)
        adapter(x)
        stepped = by_hand_batch.affine(plain.student)
        predicted = 0.99 * hidden + 0.01 * source
        variance = 0.99**2 * variance + q
        beta = max(0.89, (1 - q) / (variance + 1 - q))
        assert 0.89 < beta < 0.999
        variance *= beta
        hidden = beta * predicted + (1 - beta) * stepped
        theta = 0.99 * stepped + 0.01 * (hidden if partner == "updated" else predicted)
        assert np.allclose(by_hand_batch.numbers(adapter.hidden), hidden, atol=1e-5)
        assert np.allclose(by_hand_batch.affine(adapter.student), theta, atol=1e-5)
        assert float(adapter.variance) == pytest.approx(variance, rel=1e-5)


def test_reset_clears_the_variance() -> None:
    adapter = sf.adapt(by_hand.network(), "cmf", noise=50.0, consistency=False)
    adapter(by_hand.inputs(8))
    assert float(adapter.variance) > 0
    adapter.reset()
    assert float(adapter.variance) == 0
