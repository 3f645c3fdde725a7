"""ETA's selection, weights and average prediction against numbers worked out in NumPy."""

import math

import by_hand
import numpy as np
import pytest
import torch

import slomofast as sf

E0 = 0.4 * math.log(3)
PLAIN = {"optimizer": "sgd", "momentum": 0.0, "nesterov": False}


def eta(**options: object) -> sf.Adapter:
    return sf.adapt(by_hand.network(), "eta", **{**PLAIN, "lr": 0.1, **options})


def loss(theta: np.ndarray, x: np.ndarray, kept: np.ndarray, weight: np.ndarray) -> float:
    return float((weight * by_hand.entropies(by_hand.logits(theta, x)))[kept].mean())


def test_two_steps_by_hand() -> None:
    adapter = eta(redundancy_margin=0.8)
    theta, average = by_hand.GAMMA_BETA, None
    for seed in (0, 1):
        x = by_hand.inputs(seed=seed)
        z = by_hand.logits(theta, x.numpy().astype(float))
        h, p = by_hand.entropies(z), by_hand.softmax(z)
        kept = h < E0
        if average is not None:
            cosine = p @ average / np.linalg.norm(p, axis=1) / np.linalg.norm(average)
            assert (kept & (cosine >= 0.8)).any() and (kept & (cosine < 0.8)).any(), "both filters must bite"
            kept = kept & (cosine < 0.8)
        assert 0 < kept.sum() < len(x)
        mean = p[kept].mean(0)
        average = mean if average is None else 0.9 * average + 0.1 * mean
        inside = x.numpy().astype(float)
        weight = np.exp(E0 - h)
        gradient = by_hand.slope(lambda t: loss(t, inside, kept, weight), theta)  # noqa: B023
        expected, theta = z, theta - 0.1 * gradient
        assert np.allclose(adapter(x).numpy(), expected, atol=1e-4), "logits are those from before the update"
        assert np.allclose(by_hand.weights(adapter.student), theta, atol=1e-4)
        assert np.allclose(adapter.average.numpy(), average, atol=1e-5)
        assert float(adapter.logged["share_kept"]) == pytest.approx(kept.mean())


def test_a_batch_with_nothing_to_keep_moves_nothing_even_with_momentum() -> None:
    adapter = eta(momentum=0.9, redundancy_margin=1.0)
    adapter(by_hand.inputs())
    moved, average = by_hand.weights(adapter.student), adapter.average.clone()
    assert not np.allclose(moved, by_hand.GAMMA_BETA)
    uncertain = torch.zeros(5, 4)  # LayerNorm of a constant is zero: logits of the shift alone
    assert (by_hand.entropies(by_hand.logits(moved, uncertain.numpy())) > E0).all()
    adapter(uncertain)
    assert np.array_equal(by_hand.weights(adapter.student), moved)
    assert torch.equal(adapter.average, average) and adapter.skipped == 0


def test_the_average_starts_with_the_first_kept_sample() -> None:
    adapter = eta()
    adapter(torch.zeros(5, 4))
    assert not bool(adapter.started)
    adapter(by_hand.inputs())
    assert bool(adapter.started) and float(adapter.average.sum()) == pytest.approx(1.0, abs=1e-5)
    adapter.reset()
    assert not bool(adapter.started) and not adapter.average.any()


def test_the_margin_follows_the_number_of_classes() -> None:
    found = {}
    for classes in (10, 100, 1000):
        net = torch.nn.Sequential(torch.nn.LayerNorm(4), torch.nn.Linear(4, classes))
        for method in ("eta", "rdumb"):
            found[method, classes] = sf.adapt(net, method, probe=torch.rand(2, 4)).novel_below
    assert [found["eta", c] for c in (10, 100, 1000)] == [0.4, 0.1, 0.05]
    assert [found["rdumb", c] for c in (10, 100, 1000)] == [0.4, 0.4, 0.05]
    assert eta(redundancy_margin=0.3).prepare(by_hand.inputs()).novel_below == 0.3


def test_a_bad_batch_under_the_deferred_check_leaves_the_average_alone() -> None:
    adapter = eta(check_input="deferred")
    adapter(by_hand.inputs())
    average = adapter.average.clone()
    bad = by_hand.inputs(seed=1)
    bad[0, 0] = float("nan")
    with pytest.warns(UserWarning, match="not finite"):
        adapter(bad)
    assert torch.equal(adapter.average, average)
    with pytest.raises(sf.InputError):
        adapter.check()
