"""DeYO's selection by shape and its weights against numbers worked out in NumPy."""

import math

import by_hand
import numpy as np
import pytest
import torch
from torch import nn

import slomofast as sf
from slomofast.methods import deyo

LN3 = math.log(3)
PLAIN = {"optimizer": "sgd", "momentum": 0.0, "nesterov": False, "lr": 0.1}


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), *by_hand.network())


def images(seed: int = 0, rows: int = 12) -> torch.Tensor:
    return by_hand.inputs(rows, seed).view(-1, 1, 2, 2)


def flat(x: torch.Tensor) -> np.ndarray:
    return x.flatten(1).numpy().astype(float)


@pytest.fixture
def turned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Destruction without chance: the image upside down and mirrored."""
    monkeypatch.setattr(deyo, "destroy", lambda x, *_: x.flip(2, 3))


@pytest.mark.parametrize("subset", ["exact", "mask"])
@pytest.mark.parametrize("weigh", [(True, True), (True, False), (False, True), (False, False)])
def test_one_step_by_hand(turned: None, subset: str, weigh: tuple[bool, bool]) -> None:
    x, theta = images(), by_hand.GAMMA_BETA
    z, broken = by_hand.logits(theta, flat(x)), by_hand.logits(theta, flat(x.flip(2, 3)))
    h, label, row = by_hand.entropies(z), z.argmax(1), np.arange(len(x))
    change = by_hand.softmax(z)[row, label] - by_hand.softmax(broken)[row, label]
    sure = h < 0.5 * LN3
    kept = sure & (change > 0.2)
    assert 0 < kept.sum() < sure.sum() < len(x), "both filters must bite"
    weight = weigh[0] * np.exp(0.4 * LN3 - h) + weigh[1] * np.exp(change)
    weight = weight if any(weigh) else np.ones(len(x))

    def loss(t: np.ndarray) -> float:
        return float((weight * by_hand.entropies(by_hand.logits(t, flat(x))))[kept].mean())

    adapter = sf.adapt(network(), "deyo", subset=subset, weigh_entropy=weigh[0], weigh_change=weigh[1], **PLAIN)
    assert np.allclose(adapter(x).numpy(), z, atol=1e-4)
    assert np.allclose(by_hand.weights(adapter.student), theta - 0.1 * by_hand.slope(loss, theta), atol=1e-4)
    assert float(adapter.logged["share_kept"]) == pytest.approx(kept.mean())


def test_nothing_sure_or_nothing_shaped_moves_nothing(turned: None) -> None:
    adapter = sf.adapt(network(), "deyo", optimizer="sgd", lr=0.1)
    adapter(images())
    moved = by_hand.weights(adapter.student)
    assert not np.allclose(moved, by_hand.GAMMA_BETA)
    adapter(torch.zeros(4, 1, 2, 2))  # nobody is sure
    assert float(adapter.logged["share_sure"]) == 0
    symmetric = images()
    symmetric = symmetric + symmetric.flip(2, 3)  # turning changes nothing
    adapter(3 * symmetric)
    assert float(adapter.logged["share_sure"]) > 0 and float(adapter.logged["share_kept"]) == 0
    assert np.array_equal(by_hand.weights(adapter.student), moved)


def test_the_destroyed_pass_sees_the_sure_samples_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(deyo, "destroy", lambda x, *_: seen.append(len(x)) or x.flip(2, 3))
    x = images()
    sure = (by_hand.entropies(by_hand.logits(by_hand.GAMMA_BETA, flat(x))) < 0.5 * LN3).sum()
    sf.adapt(network(), "deyo")(x)
    sf.adapt(network(), "deyo", subset="mask")(x)
    assert seen == [sure, len(x)]
