"""Losses against slow, obvious versions."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from slomofast import losses


def _softmax(row: list[float]) -> list[float]:
    top = max(row)
    e = [math.exp(v - top) for v in row]
    return [v / sum(e) for v in e]


@pytest.fixture
def pair() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(6, 4, generator=g, dtype=torch.float64) * 2, torch.randn(6, 4, generator=g, dtype=torch.float64)


def test_entropy_and_symmetric_cross_entropy(pair: tuple[Tensor, Tensor]) -> None:
    a, b = pair
    for i in range(6):
        p, q = _softmax(a[i].tolist()), _softmax(b[i].tolist())
        h = -sum(v * math.log(v) for v in p)
        ce, rce = -sum(u * math.log(v) for u, v in zip(q, p)), -sum(v * math.log(u) for u, v in zip(q, p))  # noqa: B905
        assert float(losses.entropy(a)[i]) == pytest.approx(h)
        assert float(losses.cross_entropy(a, b)[i]) == pytest.approx(ce)
        assert float(losses.symmetric_cross_entropy(a, b)[i]) == pytest.approx(ce + rce)
        assert float(losses.symmetric_cross_entropy(a, b, 0.3, 0.7)[i]) == pytest.approx(0.3 * ce + 0.7 * rce)


def test_information_maximisation_rewards_certainty_and_diversity(pair: tuple[Tensor, Tensor]) -> None:
    a, _ = pair
    rows = [_softmax(r.tolist()) for r in a]
    mean = [sum(r[c] for r in rows) / 6 for c in range(4)]
    slow = sum(-sum(v * math.log(v) for v in r) for r in rows) / 6 + sum(m * math.log(m) for m in mean)
    assert float(losses.information_maximisation(a)) == pytest.approx(slow)
    diverse, same = 20 * torch.eye(4), 20 * torch.eye(4)[:1].repeat(4, 1)
    assert losses.information_maximisation(diverse) < losses.information_maximisation(same) - 1


def test_prediction_change_is_the_loss_of_the_predicted_class(pair: tuple[Tensor, Tensor]) -> None:
    a, b = pair
    views = torch.stack([b, b.flip(0)])
    for i in range(6):
        p = _softmax(a[i].tolist())
        c = p.index(max(p))
        gone = (_softmax(b[i].tolist())[c] + _softmax(b.flip(0)[i].tolist())[c]) / 2
        assert float(losses.prediction_change(a, views)[i]) == pytest.approx(p[c] - gone)


def _slow_contrastive(views: Tensor, temperature: float, chosen: list[int]) -> float:
    """All views of all chosen samples; every vector is an anchor, its other views are positives."""
    vectors = [(i, F.normalize(views[v, i], dim=0)) for v in range(len(views)) for i in chosen]
    total = count = 0.0
    for a, (i, u) in enumerate(vectors):
        others = [k for k in range(len(vectors)) if k != a]
        denominator = sum(math.exp(float(u @ vectors[k][1]) / temperature) for k in others)
        for k in others:
            if vectors[k][0] == i:
                total -= float(u @ vectors[k][1]) / temperature - math.log(denominator)
                count += 1
    return total / count if count else 0.0


@pytest.mark.parametrize("trial", range(8))
def test_contrastive_against_the_slow_version(trial: int) -> None:
    g = torch.Generator().manual_seed(trial)
    views = torch.randn(3, 5, 4, generator=g)
    mask = torch.rand(5, generator=g) < 0.6
    chosen = [i for i in range(5) if mask[i]]
    assert float(losses.contrastive(views, 0.3, mask)) == pytest.approx(_slow_contrastive(views, 0.3, chosen), rel=1e-4)
    assert float(losses.contrastive(views, 0.3)) == pytest.approx(
        _slow_contrastive(views, 0.3, list(range(5))), rel=1e-4
    )


@pytest.mark.parametrize("batch", [1, 4])
def test_contrastive_of_nobody_is_zero_with_zero_gradient(batch: int) -> None:
    views = torch.randn(3, batch, 4, requires_grad=True)
    value = losses.contrastive(views, 0.1, torch.zeros(batch, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(value, views)
    assert value.item() == 0.0 and torch.equal(gradient, torch.zeros_like(gradient))


def test_contrastive_of_one_has_a_finite_gradient() -> None:
    views = torch.randn(3, 4, 4, requires_grad=True)
    mask = torch.tensor([False, True, False, False])
    value = losses.contrastive(views, 0.1, mask)
    (gradient,) = torch.autograd.grad(value, views)
    assert torch.isfinite(gradient).all() and gradient[:, 1].abs().sum() > 0
    assert float(gradient[:, [0, 2, 3]].abs().sum()) == 0.0


def test_masked_mean() -> None:
    values = torch.tensor([1.0, 2.0, 6.0])
    assert float(losses.masked_mean(values, torch.tensor([True, False, True]))) == 3.5
    assert float(losses.masked_mean(values, torch.zeros(3, dtype=torch.bool))) == 0.0


def test_label_calibration_by_hand() -> None:
    logits = torch.tensor([[math.log(0.8), math.log(0.2)], [math.log(0.6), math.log(0.4)]])
    prior = [(0.8 + 0.6 + 1) / 4, (0.2 + 0.4 + 1) / 4]
    for row, p in zip(losses.label_calibration(logits, 1.0).exp(), ([0.8, 0.2], [0.6, 0.4]), strict=True):
        product = [p[0] * prior[0], p[1] * prior[1]]
        torch.testing.assert_close(row, torch.tensor(product) / sum(product))


def test_relative_label_calibration_by_hand() -> None:
    logits = torch.tensor([[math.log(0.8), math.log(0.2)], [math.log(0.6), math.log(0.4)]])
    usual = torch.tensor([0.9, 0.1])
    ratio = [(1.4 + 1.8) / 4 / 0.9, (0.6 + 0.2) / 4 / 0.1]
    for row, p in zip(losses.label_calibration(logits, 1.0, usual).exp(), ([0.8, 0.2], [0.6, 0.4]), strict=True):
        product = [p[0] * ratio[0], p[1] * ratio[1]]
        torch.testing.assert_close(row, torch.tensor(product) / sum(product))


def test_relative_label_calibration_leaves_preferences_alone() -> None:
    torch.manual_seed(0)
    logits = 3 * torch.randn(200, 10) + torch.linspace(0, 2, 10)  # a network that prefers the last classes
    usual = logits.softmax(1).mean(0)
    torch.testing.assert_close(losses.label_calibration(logits, usual=usual), logits.log_softmax(1))
    assert (losses.label_calibration(logits).argmax(1) != logits.argmax(1)).any()


def test_prior_correction_by_hand() -> None:
    logits, prior = torch.tensor([[2.0, 1.0], [1.0, 3.0]]), torch.tensor([0.6, 0.4])
    s = 0.5 / 0.6
    expected = logits * torch.tensor([(0.6 + s) / (1 + 2 * s), (0.4 + s) / (1 + 2 * s)])
    torch.testing.assert_close(losses.prior_correction(logits, prior), expected)


def test_soft_likelihood_ratio_by_hand() -> None:
    logits = torch.tensor([[math.log(0.7), math.log(0.3)]])
    expected = -(0.7 * math.log(0.7 / 0.3 + 1e-5) + 0.3 * math.log(0.3 / 0.7 + 1e-5))
    assert float(losses.soft_likelihood_ratio(logits)) == pytest.approx(expected, rel=1e-5)
    sure = torch.tensor([[100.0, 0.0]], requires_grad=True)
    assert torch.isfinite(losses.soft_likelihood_ratio(sure)).all()
