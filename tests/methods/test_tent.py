"""TENT's step against numbers worked out in NumPy."""

import by_hand
import numpy as np
import torch

import slomofast as sf

PLAIN = {"optimizer": "sgd", "momentum": 0.0, "nesterov": False, "lr": 0.1}


def stepped(theta: np.ndarray, x: torch.Tensor) -> np.ndarray:
    inside = x.numpy().astype(float)
    return theta - 0.1 * by_hand.slope(lambda t: float(by_hand.entropies(by_hand.logits(t, inside)).mean()), theta)


def test_one_step_by_hand() -> None:
    adapter, x = sf.adapt(by_hand.network(), "tent", **PLAIN), by_hand.inputs()
    found = adapter(x).numpy()
    assert np.allclose(found, by_hand.logits(by_hand.GAMMA_BETA, x.numpy().astype(float)), atol=1e-4)
    assert np.allclose(by_hand.weights(adapter.student), stepped(by_hand.GAMMA_BETA, x), atol=1e-5)


def test_several_steps_return_the_last_repetition_before_its_own_update() -> None:
    adapter, x = sf.adapt(by_hand.network(), "tent", steps=2, **PLAIN), by_hand.inputs()
    once = stepped(by_hand.GAMMA_BETA, x)
    assert np.allclose(adapter(x).numpy(), by_hand.logits(once, x.numpy().astype(float)), atol=1e-4)
    assert np.allclose(by_hand.weights(adapter.student), stepped(once, x), atol=1e-5)


def test_episodic_forgets_before_every_batch() -> None:
    adapter = sf.adapt(by_hand.network(), "tent", episodic=True)
    for seed in range(3):
        x = by_hand.inputs(seed=seed)
        assert torch.equal(adapter(x), sf.adapt(by_hand.network(), "tent")(x))
    assert adapter.steps == 3
