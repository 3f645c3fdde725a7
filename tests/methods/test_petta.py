"""PeTTA's divergence, losses and the two rates it steers, against steps worked out in NumPy."""

from typing import Any

import by_hand
import by_hand_batch
import numpy as np
import pytest
import torch
from by_hand_batch import numbers
from torch import nn

import slomofast as sf
from slomofast.core.adapter import Adapter
from slomofast.memory import ClassDrift
from slomofast.methods import petta

PLAIN = {"optimizer": "sgd", "momentum": 0.0, "nesterov": False, "lr": 0.1}
Statistics = tuple[np.ndarray, np.ndarray]
STORED: Statistics = (by_hand_batch.MEAN, by_hand_batch.VARIANCE)


def source(batches: int = 3, rows: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Source images; the labels are out of range, because nobody may look at them."""
    return [(by_hand.inputs(rows, seed=30 + k), torch.full((rows,), 99)) for k in range(batches)]


def make(**options: Any) -> Adapter:
    return sf.adapt(by_hand_batch.network(), "petta", **options).fit_source(source())


def source_statistics() -> Statistics:
    """Mean and unbiased variance of each predicted class, with stored BatchNorm statistics."""
    z = by_hand_batch.features(by_hand.GAMMA_BETA, np.concatenate([numbers(x) for x, _ in source()]), *STORED)
    y = (z @ by_hand.HEAD.T).argmax(1)
    return (
        np.stack([z[y == c].mean(0) for c in range(3)]),
        np.stack([z[y == c].var(0, ddof=1) for c in range(3)]),
    )


def followed(statistics: Statistics, x: np.ndarray) -> Statistics:
    mean, variance = statistics
    return 0.95 * mean + 0.05 * x.mean(0), 0.95 * variance + 0.05 * x.var(0)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.fixture
def fixed_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Augmentation without chance."""
    monkeypatch.setattr(petta, "augment", lambda x, *_, per: 0.5 * x.flip(1))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("regulariser", ["cosine", "l2", "none"])
def test_three_steps_by_hand(fixed_view: None, symmetric: bool, regulariser: str) -> None:
    adapter = make(
        symmetric=symmetric, regulariser=regulariser, regulariser_weight=3.0, anchor_weight=0.7, teacher_momentum=0.6,
        drift_rate=0.2, capacity=120, **PLAIN,
    )  # fmt: skip
    theta0 = student = teacher = by_hand.GAMMA_BETA
    of_student = of_teacher = of_anchor = STORED
    mu0, variance0 = source_statistics()
    mu, bank = mu0.copy(), np.zeros((0, 4))
    for step in range(3):  # the first knows no divergence; a bank of 120 takes everyone
        x = by_hand.inputs(7, seed=step) + 0.5
        z = by_hand_batch.features(teacher, numbers(x), *of_teacher)
        y = (z @ by_hand.HEAD.T).argmax(1)
        assert np.allclose(numbers(adapter.predict(x)), z @ by_hand.HEAD.T, atol=1e-4)
        assert np.allclose(numbers(adapter(x)), z @ by_hand.HEAD.T, atol=1e-4)
        present = np.unique(y)
        gamma = 1 - np.exp(-np.mean((mu - mu0)[present] ** 2 / (variance0[present] + 1e-6)))
        assert (gamma == 0) == (step == 0) and gamma < 0.95
        for c in present:
            mu[c] = 0.8 * mu[c] + 0.2 * z[y == c].mean(0)

        bank = np.concatenate([bank, numbers(x)])
        view = 0.5 * bank[:, ::-1]
        of_teacher, of_anchor = followed(of_teacher, bank), followed(of_anchor, bank)
        clean_statistics = followed(of_student, bank)
        of_student = view_statistics = followed(clean_statistics, view)
        t = by_hand_batch.logits(teacher, bank, *of_teacher)
        q = by_hand_batch.logits(theta0, bank, *of_anchor)

        def loss(theta: np.ndarray) -> float:
            s = by_hand_batch.logits(theta, bank, *clean_statistics)  # noqa: B023
            a = by_hand_batch.logits(theta, view, *view_statistics)  # noqa: B023
            ce = by_hand_batch.cross_entropy
            total = (ce(t, s) + ce(s, t) + ce(t, a) + ce(a, t)) / 4 if symmetric else ce(t, a)  # noqa: B023
            tensors = [(theta[:4], theta0[:4]), (theta[4:], theta0[4:])]
            tie = {
                "cosine": np.mean([-cosine(now, then) for now, then in tensors]),
                "l2": np.mean([((now - then) ** 2).sum() for now, then in tensors]),
                "none": 0.0,
            }[regulariser]
            return float(np.mean(total + 0.7 * ce(q, a)) + 3.0 * gamma * tie)  # noqa: B023

        student = student - 0.1 * by_hand.slope(loss, student)
        teacher = teacher + 0.4 * (1 - gamma) * (student - teacher)
        assert float(adapter.logged["divergence"]) == pytest.approx(gamma, abs=1e-4)
        assert np.allclose(by_hand_batch.affine(adapter.student), student, atol=2e-5)
        assert np.allclose(by_hand_batch.affine(adapter.teacher), teacher, atol=2e-5)
        assert np.allclose(by_hand_batch.affine(adapter.anchor), theta0, atol=1e-7)
        assert np.allclose(numbers(adapter.drift.means), mu, atol=1e-4)
        networks = {adapter.student: of_student, adapter.teacher: of_teacher, adapter.anchor: of_anchor}
        for network, (mean, variance) in networks.items():
            assert np.allclose(numbers(network.body[0].running_mean), mean, atol=1e-5)
            assert np.allclose(numbers(network.body[0].running_var), variance, atol=1e-5)


def test_source_statistics_are_those_of_the_networks_own_predictions() -> None:
    drift = make().drift
    mean, variance = source_statistics()
    assert np.allclose(numbers(drift.source_means), mean, atol=1e-5) and torch.equal(drift.means, drift.source_means)
    assert np.allclose(numbers(drift.source_variances), variance, atol=1e-4)


def test_source_statistics_stop_after_enough_images() -> None:
    adapter = sf.adapt(by_hand_batch.network(), "petta", source_images=11).fit_source(source())
    first = source()
    again = sf.adapt(by_hand_batch.network(), "petta").fit_source([first[0], (first[1][0][:3], first[1][1][:3])])
    assert torch.equal(adapter.drift.source_means, again.drift.source_means)


def test_classes_hardly_predicted_on_the_source_take_the_statistics_of_all_images() -> None:
    drift = ClassDrift(3, 2, torch.device("cpu"))
    z = torch.tensor([[1.0, 5.0], [3.0, 5.0], [8.0, 2.0]])
    drift.fit([(z[:1], torch.tensor([0])), (z[1:], torch.tensor([0, 1]))])
    assert torch.allclose(drift.source_means, torch.tensor([[2.0, 5.0], [8.0, 2.0], [4.0, 4.0]]))
    # class 0: (1 + 1) / 1 and 0; all three: (9 + 1 + 16) / 2 and (1 + 1 + 4) / 2
    assert torch.allclose(drift.source_variances, torch.tensor([[2.0, 0.0], [13.0, 3.0], [13.0, 3.0]]))


def test_drift_in_numbers() -> None:
    drift = ClassDrift(3, 2, torch.device("cpu"))
    drift.source_variances.copy_(torch.tensor([[1.0, 4.0], [1.0, 1.0], [1.0, 1.0]]))
    every = torch.tensor([True, True, True])
    z, y = torch.tensor([[2.0, 2.0], [4.0, 6.0], [1.0, 0.0]]), torch.tensor([0, 0, 2])
    assert float(drift.follow(z, y, every, 0.5)) == 0.0
    assert torch.allclose(drift.means, torch.tensor([[1.5, 2.0], [0.0, 0.0], [0.5, 0.0]]))
    # 1.5^2 / 1, 2^2 / 4, 0.5^2 / 1, 0: mean of four; the absent class does not dilute it
    assert float(drift.follow(z, y, every, 0.5)) == pytest.approx((2.25 + 1.0 + 0.25) / 4, abs=1e-4)
    before = drift.means.clone()
    assert float(drift.follow(z * float("nan"), y, ~every, 0.5)) == 0.0 and torch.equal(drift.means, before)
    only_last = torch.tensor([False, False, True])
    assert float(drift.follow(z, y, only_last, 0.0)) == pytest.approx(0.75**2 / 2, abs=1e-4)


def test_far_from_the_source_the_teacher_stands_still(fixed_view: None) -> None:
    adapter = make(lr=0.1, teacher_momentum=0.5)
    adapter.drift.means.add_(100.0)
    for seed in range(3):
        adapter(by_hand.inputs(8, seed))
    assert float(adapter.logged["divergence"]) == 1.0
    assert np.allclose(by_hand_batch.affine(adapter.teacher), by_hand.GAMMA_BETA, atol=1e-7)
    assert np.abs(by_hand_batch.affine(adapter.student) - by_hand.GAMMA_BETA).max() > 1e-3


def test_one_image_and_equal_predictions_are_learned_from(fixed_view: None) -> None:
    adapter = make()
    x = by_hand.inputs(1).repeat(30, 1)
    for rows in (1, 30, 3):  # one image, one class past its share of the bank, a short batch
        assert torch.isfinite(adapter(x[:rows])).all()
    held = adapter.bank.labels[adapter.bank.labels >= 0]
    assert len(held.unique()) == 1 and len(held) == 22  # 64 / 3, rounded up
    assert int(adapter.optimizer_student.count) == 3 and adapter.skipped == 0
    assert all(torch.isfinite(p).all() for p in adapter.parameters())


def test_an_image_that_is_not_finite_is_neither_banked_nor_averaged(fixed_view: None) -> None:
    adapter, other = make(check_input="off"), make(check_input="off")
    x = by_hand.inputs(6)
    x[2] = float("nan")
    logits = adapter(x)
    other(x[[0, 1, 3, 4, 5]])
    assert torch.isfinite(logits).all(1).tolist() == [True, True, False, True, True, True]
    assert torch.equal(adapter.bank.labels, other.bank.labels) and torch.equal(adapter.bank.images, other.bank.images)
    assert torch.allclose(adapter.drift.means, other.drift.means) and adapter.skipped == 0


def test_a_bad_batch_accepted_for_later_changes_nothing(fixed_view: None) -> None:
    adapter = make(check_input="deferred")
    adapter(by_hand.inputs(6))
    before = {key: value.clone() for key, value in adapter.state_dict().items() if isinstance(value, torch.Tensor)}
    x = by_hand.inputs(6, seed=1)
    x[2, 1] = float("inf")
    adapter(x)
    assert all(torch.equal(adapter.state_dict()[key], value) for key, value in before.items())


def test_reset_forgets_the_drift_and_the_bank(fixed_view: None) -> None:
    adapter = make()
    for seed in range(3):
        adapter(by_hand.inputs(8, seed))
    assert not torch.equal(adapter.drift.means, adapter.drift.source_means)
    adapter.reset()
    assert torch.equal(adapter.drift.means, adapter.drift.source_means)
    assert (adapter.bank.labels == -1).all() and (adapter.bank.images == 0).all()
    assert all(
        np.allclose(numbers(n.body[0].running_mean), by_hand_batch.MEAN) for n in (adapter.anchor, adapter.teacher)
    )


@torch.no_grad()
def test_distance_of_weights_by_hand() -> None:
    moving = [nn.Parameter(torch.tensor([3.0, 4.0])), nn.Parameter(torch.tensor([1.0, 1.0, 0.0]))]
    source = [nn.Parameter(torch.tensor([4.0, 3.0])), nn.Parameter(torch.tensor([0.0, 1.0, 0.0]))]
    assert float(petta.weight_distance(moving, source, "cosine")) == pytest.approx(-(0.96 + 0.5**0.5) / 2)
    assert float(petta.weight_distance(moving, source, "l2")) == pytest.approx((2.0 + 1.0) / 2)


@pytest.mark.parametrize("start", [0.0, 0.1])
def test_weights_that_are_zero_in_the_source_are_not_tied(start: float) -> None:
    moving, source = nn.Parameter(torch.full((3,), start)), nn.Parameter(torch.zeros(3))
    (gradient,) = torch.autograd.grad(petta.weight_distance([moving], [source], "cosine"), moving)
    assert torch.equal(gradient, torch.zeros(3))


@pytest.mark.filterwarnings("ignore:.*no norm layers")
def test_a_network_without_norm_layers_stays_as_it_is(fixed_view: None) -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    adapter = sf.adapt(net, "petta").fit_source(source())
    x = by_hand.inputs(8)
    assert torch.allclose(adapter(x), net(x), atol=1e-6) and torch.allclose(adapter(x), net(x), atol=1e-6)
