"""ROID's weights, losses, weight ensembling and prior correction against numbers worked out in NumPy."""

import by_hand
import by_hand_batch
import numpy as np
import pytest
import torch
from by_hand_batch import numbers

import slomofast as sf
from slomofast.losses import certainty_diversity, prior_correction
from slomofast.methods import roid

PLAIN = {"optimizer": "sgd", "momentum": 0.0, "nesterov": False, "lr": 0.1}


def view(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x.flip(1) + 0.3


@pytest.fixture
def fixed_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Augmentation without chance."""
    monkeypatch.setattr(roid, "augment", lambda x, *_: view(x))


def weights(z: np.ndarray, average: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    p = by_hand.softmax(z)
    d = 1 - (p @ average) / np.linalg.norm(p, axis=1) / np.linalg.norm(average)
    d = (d - d.min()) / (d.max() - d.min())
    u = -by_hand.entropies(z)
    u = (u - u.min()) / (u.max() - u.min())
    kept = ~(d < d.mean())
    return np.where(kept, np.exp(d * u * 3), 0.0), kept


def losses(z: np.ndarray, z_view: np.ndarray, w: np.ndarray, kept: np.ndarray) -> float:
    """Summed loss; `z_view` belongs to the kept rows alone."""
    p = np.minimum(by_hand.softmax(z), 0.99)
    ratio = -(p * np.log(p / (1 - p) + 1e-5)).sum(1)
    agreement = 0.5 * (by_hand_batch.cross_entropy(z[kept], z_view) + by_hand_batch.cross_entropy(z_view, z[kept]))
    return float((w * ratio).sum() + (w[kept] * agreement).sum())


def test_weights_of_three_samples() -> None:
    z = np.array([[3.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.2, 0.1, 2.0]])
    average = np.array([0.6, 0.2, 0.2])
    weight, kept = certainty_diversity(torch.tensor(z), torch.tensor(average))
    # diversities 0, 0.605, 1 after stretching (mean 0.535); certainties 1, 0, 0.426; exp(3 * 0.426) = 3.59
    assert kept.tolist() == [False, True, True]
    assert weight.tolist() == pytest.approx([0.0, 1.0, 3.59], abs=0.01)
    assert np.allclose(weight.numpy(), weights(z, average)[0], atol=1e-6)


@pytest.mark.parametrize("subset", ["exact", "mask"])
def test_one_step_by_hand(fixed_view: None, subset: str) -> None:
    """Gradients through both views, then one hundredth of the way back to the source."""
    theta, x = by_hand.GAMMA_BETA, by_hand.inputs(10)
    plain, seen = numbers(x), numbers(view(x))
    z = by_hand_batch.logits(theta, plain)
    w, kept = weights(z, np.full(3, 1 / 3))

    def loss(t: np.ndarray) -> float:
        # the augmented pass normalises with the kept rows alone, or with the whole batch
        exact = by_hand_batch.logits(t, seen[kept])
        augmented = exact if subset == "exact" else by_hand_batch.logits(t, seen)[kept]
        return losses(by_hand_batch.logits(t, plain), augmented, w, kept) / 10

    assert 0 < kept.sum() < 10
    adapter = sf.adapt(by_hand_batch.network(), "roid", subset=subset, **PLAIN)
    output = adapter(x)
    assert float(adapter.logged["loss"]) == pytest.approx(loss(theta), rel=1e-4)
    expected = 0.99 * (theta - 0.1 * by_hand.slope(loss, theta)) + 0.01 * theta
    assert np.allclose(by_hand_batch.affine(adapter.student), expected, atol=2e-5)
    p = by_hand.softmax(z)
    assert np.allclose(numbers(adapter.average), 0.9 / 3 + 0.1 * p.mean(0), atol=1e-6)
    prior = p.mean(0)
    s = (1 / 3) / prior.max()  # 1/C is larger than 1/B
    assert np.allclose(numbers(output), z * (prior + s) / (1 + 3 * s), atol=1e-4)


def test_second_step_pulls_to_the_source_not_to_the_last_weights(fixed_view: None) -> None:
    adapter = sf.adapt(by_hand_batch.network(), "roid", **{**PLAIN, "lr": 0.5})
    adapter(by_hand.inputs(10))
    before = by_hand_batch.affine(adapter.student)
    still = sf.adapt(by_hand_batch.network(), "roid", **{**PLAIN, "lr": 0.0}).prepare(by_hand.inputs(10))
    with torch.no_grad():
        for mine, other in zip(still.student.parameters(), adapter.student.parameters(), strict=True):
            mine.copy_(other)
    still(by_hand.inputs(10, seed=1))
    assert np.allclose(by_hand_batch.affine(still.student), 0.99 * before + 0.01 * by_hand.GAMMA_BETA, atol=1e-6)
    assert not np.allclose(before, by_hand.GAMMA_BETA, atol=1e-3)


def test_prior_multiplies_logits_even_negative_ones() -> None:
    z = torch.tensor([[2.0, -1.0], [1.0, -3.0]])
    # prior 0.8 / 0.2, smoothing (1/2) / 0.8 = 0.625: (0.8 + 0.625) / 2.25 and (0.2 + 0.625) / 2.25
    expected = torch.tensor([[2 * 0.633333, -0.366667], [0.633333, -3 * 0.366667]])
    assert torch.allclose(prior_correction(z, torch.tensor([0.8, 0.2])), expected, atol=1e-5)


def test_predict_is_corrected_like_the_prediction() -> None:
    x = by_hand.inputs(6)
    adapter = sf.adapt(by_hand_batch.network(), "roid", consistency=False).prepare(x)
    expected = adapter.predict(x)
    assert torch.allclose(adapter(x), expected, atol=1e-6)
    plain = sf.adapt(by_hand_batch.network(), "roid", prior=False).predict(x)
    assert not torch.allclose(plain, expected, atol=1e-2)


def test_all_samples_alike_are_kept_with_weight_one(fixed_view: None) -> None:
    weight, kept = certainty_diversity(torch.tensor([[1.0, 2.0]]).repeat(4, 1), torch.tensor([0.5, 0.5]))
    assert kept.all() and torch.equal(weight, torch.ones(4))
    adapter = sf.adapt(by_hand.network(), "roid", **PLAIN)
    assert torch.isfinite(adapter(by_hand.inputs(1))).all() and adapter.skipped == 0
    assert torch.isfinite(adapter.logged["loss"])


def test_divisor_of_a_short_batch(fixed_view: None) -> None:
    own, configured = (sf.adapt(by_hand.network(), "roid", divide_by=n) for n in (0, 64))
    own(by_hand.inputs(8))
    configured(by_hand.inputs(8))
    assert float(configured.logged["loss"]) == pytest.approx(float(own.logged["loss"]) / 8, rel=1e-5)


def test_the_subset_matters_to_batch_statistics_alone(fixed_view: None) -> None:
    def loss(network: torch.nn.Module, subset: str) -> float:
        adapter = sf.adapt(network, "roid", subset=subset)
        adapter(by_hand.inputs(10))
        return float(adapter.logged["loss"])

    assert loss(by_hand.network(), "mask") == pytest.approx(loss(by_hand.network(), "exact"), rel=1e-5)
    assert abs(loss(by_hand_batch.network(), "mask") - loss(by_hand_batch.network(), "exact")) > 1e-3
