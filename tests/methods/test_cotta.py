"""CoTTA's targets, order of updates and restoration, worked out by hand."""

import by_hand
import by_hand_batch
import numpy as np
import pytest
import torch
from by_hand_batch import numbers
from torch import nn

import slomofast as sf
from slomofast.core.params import copy_network
from slomofast.methods import cotta

PLAIN = {"optimizer": "sgd", "momentum": 0.0, "nesterov": False, "lr": 0.1}


def head_and_norm(network: nn.Module) -> np.ndarray:
    return np.concatenate([numbers(p).ravel() for p in network.parameters()])


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Augmentation without chance: the k-th view is shifted by k in one input."""
    calls: list[int] = []

    def view(x: torch.Tensor, *_: object, per: str) -> torch.Tensor:
        calls.append(len(calls))
        return shifted(x, calls[-1])

    monkeypatch.setattr(cotta, "augment", view)
    return calls


def shifted(x: torch.Tensor, k: int) -> torch.Tensor:
    return x * torch.tensor([1.0 + k, 1.0, 1.0, 1.0])


def test_views_average_logits(counted: list[int]) -> None:
    x = by_hand.inputs(6)
    adapter = sf.adapt(by_hand.network(), "cotta", threshold=1.1, views=5)
    views = [by_hand.logits(by_hand.GAMMA_BETA, numbers(shifted(x, k))) for k in range(5)]
    assert np.allclose(numbers(adapter(x)), np.mean(views, 0), atol=1e-5)
    assert len(counted) == 5


@pytest.mark.parametrize(("margin", "views"), [(-1e-4, 0), (1e-4, 7)])
def test_views_are_made_where_the_source_is_unsure(counted: list[int], margin: float, views: int) -> None:
    x = by_hand.inputs(6)
    confidence = by_hand.softmax(by_hand_batch.logits(by_hand.GAMMA_BETA, numbers(x))).max(1).mean()
    adapter = sf.adapt(by_hand_batch.network(), "cotta", threshold=float(confidence) + margin, views=7)
    adapter(x)
    assert len(counted) == views
    assert float(adapter.logged["views"]) == max(1, views)


@pytest.mark.parametrize("symmetric", [False, True])
def test_loss_of_the_second_step(counted: list[int], symmetric: bool) -> None:
    options = {"threshold": 1.1, "views": 2, "symmetric": symmetric, "restore": 0.0, "teacher_momentum": 1.0, **PLAIN}
    adapter = sf.adapt(by_hand.network(), "cotta", **options)
    adapter(by_hand.inputs(6))
    x = by_hand.inputs(6, seed=1)
    z = numbers(adapter.members_predict(x)["student"])
    # a teacher of momentum one stays at the source; views 0 and 1 were the first batch's
    target = sum(by_hand.logits(by_hand.GAMMA_BETA, numbers(shifted(x, k))) for k in (2, 3)) / 2
    assert np.abs(z - by_hand.logits(by_hand.GAMMA_BETA, numbers(x))).max() > 1e-2
    forward, reverse = by_hand_batch.cross_entropy(target, z), by_hand_batch.cross_entropy(z, target)
    expected = (0.5 * forward + 0.5 * reverse if symmetric else forward).mean()
    assert np.allclose(numbers(adapter(x)), target, atol=1e-5)
    assert float(adapter.logged["loss"]) == pytest.approx(expected, rel=1e-4)


def test_the_teacher_takes_the_student_from_before_its_restoration(monkeypatch: pytest.MonkeyPatch) -> None:
    # without views the student would agree with its teacher and not move
    monkeypatch.setattr(cotta, "augment", lambda x, *_, per: shifted(x, 1))
    x = by_hand.inputs(6)
    kept, restored = (
        sf.adapt(by_hand.network(), "cotta", threshold=1.1, views=1, restore=r, teacher_momentum=0.9, **PLAIN)
        for r in (0.0, 1.0)
    )
    source = head_and_norm(by_hand.network())
    kept(x)
    restored(x)
    stepped = head_and_norm(kept.student)
    assert np.abs(stepped - source).max() > 1e-3
    assert np.allclose(head_and_norm(restored.student), source, atol=0)
    for adapter in (kept, restored):
        assert np.allclose(head_and_norm(adapter.teacher), 0.9 * source + 0.1 * stepped, atol=1e-6)


def test_the_whole_student_learns_and_a_share_returns() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 200), nn.LayerNorm(200), nn.Linear(200, 3))
    adapter = sf.adapt(net, "cotta", threshold=1.1, views=2, restore=0.1, lr=1e-2)
    source = head_and_norm(net)
    adapter(torch.rand(16, 3, 2, 2, generator=torch.Generator().manual_seed(0)))
    same = head_and_norm(adapter.student) == source
    assert adapter.trainable_share() == 1.0
    assert 0.05 < same.mean() < 0.15


def test_named_parameters_leave_tokens_alone() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.zeros(4))
            self.attend = nn.MultiheadAttention(4, 2)
            self.fc = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.attend(x + self.token, x, x)[0])

    copy = copy_network(Tokens(), train="named")
    moving = {name for name, p in copy.named_parameters() if p.requires_grad}
    assert moving == {"attend.out_proj.weight", "attend.out_proj.bias", "fc.weight", "fc.bias"}
    adapter = sf.adapt(Tokens(), "cotta", threshold=0.0, train="named", restore=0.5)
    adapter(by_hand.inputs(5))
    assert torch.equal(adapter.student.body.token, torch.zeros(4))
    assert len(adapter.optimizer_student.targets) == 4
