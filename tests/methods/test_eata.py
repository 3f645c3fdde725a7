"""EATA's Fisher information and penalty against numbers worked out in NumPy."""

import math

import by_hand
import numpy as np
import pytest
import torch

import slomofast as sf

PLAIN = {"optimizer": "sgd", "momentum": 0.0, "nesterov": False, "lr": 0.1, "redundancy_margin": 1.0}
E0 = 0.4 * math.log(3)


def source(batches: int = 3, rows: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(by_hand.inputs(rows, seed=20 + k), torch.zeros(rows, dtype=torch.int64)) for k in range(batches)]


def batch_gradient(theta: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Gradient of the mean cross-entropy under the model's own labels."""
    label = by_hand.logits(theta, x).argmax(1)

    def loss(t: np.ndarray) -> float:
        return float(-np.log(by_hand.softmax(by_hand.logits(t, x)))[np.arange(len(x)), label].mean())

    return by_hand.slope(loss, theta)


def test_fisher_is_the_mean_square_of_batch_gradients() -> None:
    adapter = sf.adapt(by_hand.network(), "eata", fisher_images=15).fit_source(source(4))
    rows = [(0, 6), (1, 6), (2, 3)]  # the third batch is cut, the fourth not looked at
    gradients = [batch_gradient(by_hand.GAMMA_BETA, source(4)[k][0][:n].numpy().astype(float)) for k, n in rows]
    expected = np.mean([g**2 for g in gradients], 0)
    assert np.allclose(adapter.fisher.numpy(), expected, rtol=1e-3, atol=1e-6)
    assert np.allclose(by_hand.weights(adapter.student), by_hand.GAMMA_BETA), "the estimate moves nothing"


def test_second_step_pays_for_the_distance_to_the_source() -> None:
    strength = 50.0
    adapter = sf.adapt(by_hand.network(), "eata", fisher_weight=strength, **PLAIN).fit_source(source())
    fisher = adapter.fisher.numpy().astype(float)
    theta = by_hand.GAMMA_BETA
    for seed in (0, 1):
        x = by_hand.inputs(seed=seed).numpy().astype(float)
        h = by_hand.entropies(by_hand.logits(theta, x))
        kept, weight = h < E0, np.exp(E0 - h)

        def loss(t: np.ndarray) -> float:
            value = (weight * by_hand.entropies(by_hand.logits(t, x)))[kept].mean()  # noqa: B023
            return float(value + strength * (fisher * (t - by_hand.GAMMA_BETA) ** 2).sum())

        theta = theta - 0.1 * by_hand.slope(loss, theta)
        adapter(by_hand.inputs(seed=seed))
        assert np.allclose(by_hand.weights(adapter.student), theta, atol=1e-4)
    assert float(adapter.logged["loss_penalty"]) > 0


def test_reset_keeps_the_fisher_information() -> None:
    adapter = sf.adapt(by_hand.network(), "eata").fit_source(source())
    before = adapter.fisher.clone()
    adapter(by_hand.inputs())
    adapter.reset()
    assert torch.equal(adapter.fisher, before) and before.any() and adapter.source_ready


def test_source_is_demanded_only_by_the_source_form() -> None:
    with pytest.raises(sf.ConfigError, match="fit_source"):
        sf.adapt(by_hand.network(), "eata")(by_hand.inputs())
    plain = sf.adapt(by_hand.network(), "eata", fisher="none")
    eta = sf.adapt(by_hand.network(), "eta")
    free = sf.adapt(by_hand.network(), "eata", fisher_weight=0.0)
    for seed in range(3):
        x = by_hand.inputs(seed=seed)
        expected = eta(x)
        assert torch.equal(plain(x), expected) and torch.equal(free(x), expected)
    with pytest.raises(sf.ConfigError, match="nothing from source"):
        plain.fit_source(source())


def test_the_stream_can_stand_for_the_source() -> None:
    adapter = sf.adapt(by_hand.network(), "eata", preset="source_free", fisher_images=10, lr=0.0)
    for seed in range(3):
        adapter(by_hand.inputs(seed=seed))
    gradients = [batch_gradient(by_hand.GAMMA_BETA, by_hand.inputs(seed=s).numpy().astype(float)) for s in (0, 1)]
    assert np.allclose(adapter.fisher.numpy(), np.mean([g**2 for g in gradients], 0), rtol=1e-3, atol=1e-6)
    assert adapter.fisher_seen == 16
    adapter.reset()
    assert adapter.fisher_seen == 0 and not adapter.fisher.any()
