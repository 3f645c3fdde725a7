"""RoTTA's bank, robust BatchNorm and update against plain re-tellings of its rules."""

import math
import random

import by_hand
import by_hand_batch
import numpy as np
import pytest
import torch
from by_hand_batch import numbers
from torch import nn

import slomofast as sf
from slomofast.core.norms import TestTimeNorm
from slomofast.memory import BalancedLedger
from slomofast.methods import rotta

PLAIN = {"optimizer": "sgd", "momentum": 0.0, "nesterov": False, "lr": 0.1}


class Retold:
    """The bank as lists of items per class, every rule written out."""

    def __init__(self, capacity: int, classes: int) -> None:
        self.capacity, self.classes = capacity, classes
        self.lists: list[list[dict[str, float]]] = [[] for _ in range(classes)]

    def score(self, age: float, u: float) -> float:
        return 1 / (1 + math.exp(-age / self.capacity)) + u / math.log(self.classes)

    def add(self, name: int, y: int, u: float) -> None:
        total, candidates = sum(map(len, self.lists)), None
        if len(self.lists[y]) < self.capacity / self.classes:
            if total >= self.capacity:
                most = max(map(len, self.lists))
                candidates = [c for c in range(self.classes) if len(self.lists[c]) == most]
        else:
            candidates = [y]
        accept = True
        if candidates is not None:
            worst, where = -math.inf, (0, 0)
            for c in candidates:
                for k, item in enumerate(self.lists[c]):
                    if self.score(item["age"], item["u"]) >= worst:
                        worst, where = self.score(item["age"], item["u"]), (c, k)
            accept = worst > self.score(0, u)
            if accept:
                self.lists[where[0]].pop(where[1])
        if accept:
            self.lists[y].append({"name": name, "age": 0, "u": u})
        for items in self.lists:
            for item in items:
                item["age"] += 1


@pytest.mark.parametrize(("capacity", "classes", "balance"), [(8, 3, 1.0), (8, 3, 4.0), (6, 10, 1.5), (64, 10, 2.0)])
def test_the_ledger_does_what_the_rules_say(capacity: int, classes: int, balance: float) -> None:
    generator = random.Random(capacity * classes)
    told, ledger, names = Retold(capacity, classes), BalancedLedger(capacity, classes), {}
    for name in range(500):
        y = min(int(classes * generator.random() ** balance), classes - 1)
        u = generator.choice([0.1, 0.5, generator.random() * math.log(classes)])  # equal entropies are common
        told.add(name, y, u)
        slot = ledger.add(y, u)
        if slot is not None:
            names[slot] = name
        if name % 50 == 0:  # through stored values and back
            again = BalancedLedger(capacity, classes)
            again.load([*ledger.labels, -1], [*ledger.uncertainties, 0.0], [*ledger.ages, 0])
            ledger = again
        held = {(item["name"], c, item["age"], item["u"]) for c, items in enumerate(told.lists) for item in items}
        mine = zip(ledger.labels, ledger.ages, ledger.uncertainties, strict=True)
        assert {(names[slot], *row) for slot, row in enumerate(mine)} == held
    counts = [ledger.labels.count(c) for c in range(classes)]
    assert len(ledger.labels) <= capacity and max(counts) <= math.ceil(capacity / classes)


def test_a_worse_arrival_is_turned_away_and_still_ages_the_rest() -> None:
    ledger = BalancedLedger(2, 2)
    assert [ledger.add(0, 0.1), ledger.add(1, 0.1)] == [0, 1]
    assert ledger.add(0, 0.6) is None and ledger.ages == [3, 2]
    assert ledger.add(0, 0.2) == 0 and ledger.ages == [1, 3]  # sigmoid(3/2) + 0.1/ln 2 is worse than 0.5 + 0.2/ln 2


def robust(theta: np.ndarray, x: np.ndarray, alpha: float) -> np.ndarray:
    mean = (1 - alpha) * by_hand_batch.MEAN + alpha * x.mean(0)
    variance = (1 - alpha) * by_hand_batch.VARIANCE + alpha * x.var(0)
    return by_hand_batch.logits(theta, x, mean, variance)


def test_robust_norm_by_hand_with_gradient() -> None:
    layer = TestTimeNorm(by_hand_batch.network()[0], "robust", alpha=0.3)
    x = by_hand.inputs(5).requires_grad_(True)
    assert np.allclose(
        numbers(layer(x)) @ by_hand.HEAD.T,
        by_hand_batch.logits(by_hand.GAMMA_BETA, numbers(x), by_hand_batch.MEAN, by_hand_batch.VARIANCE),
        atol=1e-5,
    )
    layer.measuring = True
    out = layer(x)
    assert np.allclose(numbers(out) @ by_hand.HEAD.T, robust(by_hand.GAMMA_BETA, numbers(x), 0.3), atol=1e-5)
    assert np.allclose(numbers(layer.running_var), 0.7 * by_hand_batch.VARIANCE + 0.3 * numbers(x).var(0), atol=1e-6)
    (gradient,) = torch.autograd.grad((out**3).sum(), x)

    def cubes(flat: np.ndarray) -> float:
        x = flat.reshape(5, 4)
        mean = 0.7 * by_hand_batch.MEAN + 0.3 * x.mean(0)
        variance = 0.7 * by_hand_batch.VARIANCE + 0.3 * x.var(0)
        return float((by_hand_batch.features(by_hand.GAMMA_BETA, x, mean, variance) ** 3).sum())

    assert np.allclose(numbers(gradient).ravel(), by_hand.slope(cubes, numbers(x).ravel()), atol=1e-3)


@pytest.fixture
def fixed_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Augmentation without chance."""
    monkeypatch.setattr(rotta, "augment", lambda x, *_, per: 0.5 * x.flip(1))


def test_one_update_by_hand(fixed_view: None) -> None:
    theta, x = by_hand.GAMMA_BETA, by_hand.inputs(4)
    adapter = sf.adapt(by_hand_batch.network(), "rotta", capacity=12, update_every=4, teacher_momentum=0.9, **PLAIN)
    output = adapter(x)  # quota 4: all are accepted, the first is the oldest
    assert np.allclose(
        numbers(output), by_hand_batch.logits(theta, numbers(x), by_hand_batch.MEAN, by_hand_batch.VARIANCE), atol=1e-5
    )
    target, seen = robust(theta, numbers(x), 0.05), numbers(0.5 * x.flip(1))
    ages = np.array([4, 3, 2, 1]) / 12

    def loss(t: np.ndarray) -> float:
        disagreement = by_hand_batch.cross_entropy(target, robust(t, seen, 0.05))
        return float(np.mean(np.exp(-ages) / (1 + np.exp(-ages)) * disagreement))

    assert float(adapter.logged["loss"]) == pytest.approx(loss(theta), rel=1e-4)
    stepped = theta - 0.1 * by_hand.slope(loss, theta)
    assert np.allclose(by_hand_batch.affine(adapter.student), stepped, atol=1e-5)
    assert np.allclose(by_hand_batch.affine(adapter.teacher), 0.9 * theta + 0.1 * stepped, atol=1e-5)
    for network, images in ((adapter.teacher, numbers(x)), (adapter.student, seen)):
        expected = 0.95 * by_hand_batch.MEAN + 0.05 * images.mean(0)
        assert np.allclose(numbers(network.body[0].running_mean), expected, atol=1e-6)


def test_updates_fall_inside_a_batch_and_count_over_batches(fixed_view: None) -> None:
    adapter = sf.adapt(by_hand_batch.network(), "rotta")
    assert torch.allclose(adapter.predict(by_hand.inputs(200)), adapter(by_hand.inputs(200)), atol=1e-6)
    assert int(adapter.optimizer_student.count) == 3 and int(adapter.waiting) == 8
    for k in range(56):
        adapter(by_hand.inputs(1, seed=k))
    assert int(adapter.optimizer_student.count) == 4 and int(adapter.waiting) == 0


def test_banked_images_are_those_the_ledger_names(fixed_view: None) -> None:
    adapter = sf.adapt(by_hand.network(), "rotta", capacity=6, update_every=5)
    stream = torch.cat([by_hand.inputs(9, seed=k) for k in range(5)])
    told = Retold(6, 3)
    for start in range(0, 45, 9):
        x = stream[start : start + 9]
        p = adapter.predict(x).softmax(1)
        for row in range(9):
            u = float(-(p[row] * (p[row] + 1e-6).log()).sum())
            told.add(start + row, int(p[row].argmax()), u)
        adapter(x)
    held = sorted((c, int(item["age"]), int(item["name"])) for c, items in enumerate(told.lists) for item in items)
    mine = sorted(
        (int(y), int(age), int((stream == image).all(1).nonzero()))
        for y, age, image in zip(adapter.bank.labels, adapter.bank.ages, adapter.bank.images, strict=True)
        if y >= 0
    )
    assert mine == held


def test_a_bad_batch_accepted_for_later_is_not_banked() -> None:
    adapter = sf.adapt(by_hand.network(), "rotta", check_input="deferred")
    x = by_hand.inputs(5)
    x[2, 1] = float("nan")
    adapter(x)
    assert (adapter.bank.labels == -1).all()


def test_slow_statistics_survive_a_burst_of_one_class() -> None:
    """Batch statistics erase what a one-class batch has in common; the bank's do not."""
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3, bias=False)).eval()
    with torch.no_grad():
        net[1].weight.copy_(torch.eye(3, 4) * 4)
    noise = 0.3 * by_hand.inputs(60)
    wrong = {"bn": 0, "rotta": 0}
    for method in wrong:
        adapter = sf.adapt(net, method)
        for label in range(3):
            x = noise[20 * label : 20 * label + 20] + torch.eye(4)[label]
            wrong[method] += int((adapter(x).argmax(1) != label).sum())
    assert wrong["rotta"] < 6 < 30 < wrong["bn"]
