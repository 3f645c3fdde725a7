"""SAR's two passes and its return to the source against numbers worked out in NumPy."""

import math

import by_hand
import numpy as np
import pytest
import torch
from torch import nn

import slomofast as sf

E0 = 0.4 * math.log(3)
PLAIN = {"momentum": 0.0, "lr": 0.1, "reset_below": 0.0}


def test_one_step_by_hand() -> None:
    adapter = sf.adapt(by_hand.network(), "sar", radius=0.3, **PLAIN)
    inside = by_hand.inputs(16).numpy().astype(float)
    theta = by_hand.GAMMA_BETA
    first = by_hand.entropies(by_hand.logits(theta, inside)) < E0
    uphill = by_hand.slope(lambda t: float(by_hand.entropies(by_hand.logits(t, inside))[first].mean()), theta)
    away = theta + 0.3 * uphill / np.linalg.norm(uphill)
    everywhere = by_hand.entropies(by_hand.logits(away, inside)) < E0
    second = first & everywhere
    assert 0 < second.sum() < first.sum() < len(inside), "the second filter must bite"

    def nearby(t: np.ndarray) -> float:
        return float(by_hand.entropies(by_hand.logits(t, inside))[second].mean())

    assert np.allclose(adapter(by_hand.inputs(16)).numpy(), by_hand.logits(theta, inside), atol=1e-4)
    expected = theta - 0.1 * by_hand.slope(nearby, away)
    assert np.allclose(by_hand.weights(adapter.student), expected, atol=1e-4)
    assert float(adapter.running) == pytest.approx(nearby(away), abs=1e-5)


def test_the_running_loss_is_an_average() -> None:
    adapter, losses = sf.adapt(by_hand.network(), "sar", **PLAIN), []
    for seed in range(3):
        adapter(by_hand.inputs(seed=seed))
        losses.append(float(adapter.logged["loss"]))
    expected = 0.9 * (0.9 * losses[0] + 0.1 * losses[1]) + 0.1 * losses[2]
    assert float(adapter.running) == pytest.approx(expected, rel=1e-5)


def test_a_small_running_loss_brings_the_source_back() -> None:
    adapter = sf.adapt(by_hand.network(), "sar", lr=0.1, reset_below=10.0)
    adapter(by_hand.inputs())
    assert np.allclose(by_hand.weights(adapter.student), by_hand.GAMMA_BETA, atol=1e-7)
    assert not adapter.optimizer_student.first.any() and not bool(adapter.started)
    assert float(adapter.logged["recovered"]) == 1.0
    kept = sf.adapt(by_hand.network(), "sar", lr=0.1, reset_below=0.0)
    kept(by_hand.inputs())
    assert not np.allclose(by_hand.weights(kept.student), by_hand.GAMMA_BETA)
    assert float(kept.logged["recovered"]) == 0.0


@pytest.mark.parametrize("coast", [False, True])
def test_without_reliable_samples_only_coasting_moves(coast: bool) -> None:
    adapter = sf.adapt(by_hand.network(), "sar", lr=0.1, reset_below=0.0, coast=coast)
    adapter(by_hand.inputs())
    before, running = by_hand.weights(adapter.student), float(adapter.running)
    adapter(torch.zeros(5, 4))
    assert np.array_equal(by_hand.weights(adapter.student), before) is not coast
    assert float(adapter.running) == running and adapter.skipped == 0


class Stages(nn.Module):
    """Norm layers under names as in ResNets and ViTs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer3, self.layer4 = nn.Sequential(nn.LayerNorm(4)), nn.Sequential(nn.LayerNorm(4))
        self.norm, self.fc = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.norm(self.layer4(self.layer3(x))))


@pytest.mark.parametrize("method", ["sar", "deyo"])
def test_the_last_stage_stays(method: str) -> None:
    adapter = sf.adapt(Stages(), method, probe=torch.rand(2, 4))
    moving = {name for name, p in adapter.student.named_parameters() if p.requires_grad}
    assert moving == {"body.layer3.0.weight", "body.layer3.0.bias"}
    everything = sf.adapt(Stages(), method, probe=torch.rand(2, 4), frozen=())
    assert len([p for p in everything.student.parameters() if p.requires_grad]) == 6
    lone = sf.adapt(by_hand.network(), method, probe=torch.rand(2, 4), frozen=("0",))
    assert lone.trainable_share() > 0, "a choice that would freeze everything is not applied"
