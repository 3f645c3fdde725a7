"""TCA's losses, centroids, pair weights and output against numbers worked out pair by pair in NumPy."""

from itertools import combinations

import by_hand
import by_hand_batch
import numpy as np
import pytest
import torch
from by_hand import Array
from by_hand_batch import numbers

import slomofast as sf
from slomofast.methods import cotta, tca
from slomofast.testing import batches, tiny_net

PLAIN = {"optimizer": "sgd", "momentum": 0.0, "nesterov": False, "lr": 0.1}
NO_VIEWS = {"threshold": 0.0}
SMALL_VIEW, OTHER_VIEW = torch.tensor([0.5, 1.5, -0.7, 1.0]), torch.tensor([1.0, -0.6, 1.2, 0.8])


@pytest.fixture
def fixed_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Augmentation without chance: two views by turns, which mix inputs so that BatchNorm does not undo them."""
    calls: list[int] = []

    def view(x: torch.Tensor, *_: object, per: str) -> torch.Tensor:
        calls.append(0)
        return first_view(x) if len(calls) % 2 else second_view(x)

    monkeypatch.setattr(tca, "augment", view)


def first_view(x: torch.Tensor) -> torch.Tensor:
    return x * SMALL_VIEW + 0.4 * x.roll(1, 1)


def second_view(x: torch.Tensor) -> torch.Tensor:
    return x * OTHER_VIEW - 0.3 * x.roll(2, 1)


def network_weights(network: torch.nn.Module) -> Array:
    """Scales, shifts and head as one vector (20,)."""
    return np.concatenate([by_hand_batch.affine(network), numbers(network.head.weight).ravel()])


def forward(weights: Array, x: torch.Tensor) -> tuple[Array, Array]:
    z = by_hand_batch.features(weights[:8], numbers(x))
    return z, z @ weights[8:].reshape(3, 4).T


def unit(z: Array) -> Array:
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def both_ways(z: Array, target: Array) -> Array:
    return 0.5 * by_hand_batch.cross_entropy(target, z) + 0.5 * by_hand_batch.cross_entropy(z, target)


class ByHand:
    """Stored centroids by class and the full matrix of pair weights, kept in plain Python."""

    def __init__(self, classes: int = 3) -> None:
        self.centroids: dict[int, Array] = {}
        self.pairs = np.full((classes, classes), 1 / classes)
        self.started = False

    def moved(self, u: Array, labels: Array) -> tuple[dict[int, Array], Array]:
        """Centroids and pair weights after a batch, with the default momenta."""
        centroids = dict(self.centroids)
        for k in set(labels.tolist()):
            mean = u[labels == k].mean(0)
            centroids[k] = 0.1 * self.centroids[k] + 0.9 * mean if k in self.centroids else mean
        root = np.sqrt([(labels == k).sum() for k in range(len(self.pairs))])
        mu = root / (root.sum() + 1e-6)
        return centroids, 0.8 * self.pairs + 0.2 * (mu[:, None] + mu[None, :]) / 2

    def losses(self, weights: Array, x: torch.Tensor, target: Array, labels: Array) -> dict[str, float]:
        logits = forward(weights, x)[1]
        (z, logits_view), (other, _) = forward(weights, first_view(x)), forward(weights, second_view(x))
        u, w = unit(z), unit(other)
        centroids, pairs = self.moved(u, labels)
        between = list(combinations(sorted(centroids), 2))
        closeness = np.array([np.exp(-2 * ((centroids[i] - centroids[j]) ** 2).sum()) for i, j in between])
        weight = np.array([pairs[i, j] for i, j in between]) if self.started else np.ones(len(between))
        inside = []
        for k in set(labels.tolist()):
            rows = u[labels == k]
            if len(rows) > 1:
                inside.append(np.exp(-2 * np.mean([((a - b) ** 2).sum() for a, b in combinations(rows, 2)])))
        return {
            "agreement": 0.5 * float(np.mean(both_ways(logits, target) + both_ways(logits_view, target))),
            "align": float(((u - w) ** 2).sum(1).mean()),
            "inter": float(np.log((weight * closeness).sum() / weight.sum())) if between else 0.0,
            "intra": float(np.log(np.mean(inside))) if inside else 0.0,
        }


@pytest.mark.usefixtures("fixed_views")
@pytest.mark.parametrize(("intra", "sign"), [("spread", 1.0), ("compact", -1.0), ("none", 0.0)])
def test_three_steps_by_hand(intra: str, sign: float) -> None:
    options = {"align_weight": 0.5, "topology_weight": 0.8, "teacher_momentum": 0.7, "intra": intra}
    adapter = sf.adapt(by_hand_batch.network(), "tca", **options, **NO_VIEWS, **PLAIN)
    adapter.prepare(by_hand.inputs(7))
    hand, absent = ByHand(), set()
    for seed, rows in ((0, 7), (1, 5), (2, 3)):  # the last ones lack classes
        x = by_hand.inputs(rows, seed)
        student, teacher = network_weights(adapter.student), network_weights(adapter.teacher)
        target = forward(teacher, x)[1]
        z, logits_view = forward(student, first_view(x))
        labels = logits_view.argmax(1)
        absent |= set(hand.centroids) - set(labels.tolist())
        expected = hand.losses(student, x, target, labels)

        def total(weights: Array, x: torch.Tensor = x, target: Array = target, labels: Array = labels) -> float:
            part = hand.losses(weights, x, target, labels)
            return part["agreement"] + 0.5 * part["align"] + 0.8 * (part["inter"] + sign * part["intra"])

        output = adapter(x)
        assert np.allclose(numbers(output), 0.3 * forward(student, x)[1] + 0.7 * target, atol=1e-4)
        for name, value in expected.items():
            assert float(adapter.logged[f"loss_{name}"]) == pytest.approx(value, rel=1e-4, abs=1e-5), name
        stepped = student - 0.1 * by_hand.slope(total, student)
        assert np.allclose(network_weights(adapter.student), stepped, atol=1e-4)
        assert np.allclose(network_weights(adapter.teacher), 0.7 * teacher + 0.3 * stepped, atol=1e-4)
        hand.centroids, hand.pairs = hand.moved(unit(z), labels)
        hand.started = True
        for k, centroid in hand.centroids.items():
            assert np.allclose(numbers(adapter.centroids[k]), centroid, atol=1e-5)
        assert adapter.seen.tolist() == [k in hand.centroids for k in range(3)]
        frequency = numbers(adapter.frequency)
        assert np.allclose((frequency[:, None] + frequency[None, :]) / 2, hand.pairs, atol=1e-6)
    assert absent, "no class was ever absent after it was seen"


@pytest.mark.usefixtures("fixed_views")
def test_the_loss_between_classes_teaches() -> None:
    """The released code stops its gradient, and then nothing moves apart."""
    x = by_hand.inputs(8)
    found, labels = [], []
    small = {**PLAIN, "lr": 0.01, "centroid_momentum": 0.0, "pair_momentum": 1.0}
    for weight in (0.0, 2.0):
        adapter = sf.adapt(by_hand_batch.network(), "tca", topology_weight=weight, intra="none", **NO_VIEWS, **small)
        for _ in range(2):  # the second shows what the first has taught
            labels.append(forward(network_weights(adapter.prepare(x).student), first_view(x))[1].argmax(1).tolist())
            adapter(x)
        found.append(float(adapter.logged["loss_inter"]))
    assert all(row == labels[0] for row in labels), "with other labels the two losses are not of the same pairs"
    assert found[1] < found[0] - 1e-3


@pytest.mark.parametrize(("intra", "rises"), [("spread", True), ("compact", False)])
def test_the_sign_inside_classes(intra: str, rises: bool) -> None:
    rows = torch.tensor([[1.0, 0.2], [1.0, -0.2]], requires_grad=True)
    unit_rows = torch.nn.functional.normalize(rows, dim=1)
    loss = tca.spread_inside(unit_rows.mean(0, keepdim=True), torch.tensor([2.0]), 2.0)
    # two unit vectors at squared distance 4 * 0.04 / 1.04
    assert loss.item() == pytest.approx(-2 * 0.16 / 1.04, rel=1e-5)
    (loss if intra == "spread" else -loss).backward()
    assert bool(rows.grad[0, 1] < 0) == rises  # a step against the gradient lifts the upper one


def test_no_pair_no_loss_no_gradient() -> None:
    values = torch.randn(4, requires_grad=True)
    empty = tca.log_mean_exp(values, torch.zeros(4))
    empty.backward()
    assert empty.item() == 0.0 and torch.equal(values.grad, torch.zeros(4))
    # exponentials that all vanish in fp32
    far = tca.log_mean_exp(torch.tensor([-500.0, -500.0]), torch.tensor([1.0, 3.0]))
    assert float(far) == pytest.approx(-500.0)


def test_one_class_seen_has_no_distance() -> None:
    centroids = torch.randn(3, 4, requires_grad=True)
    loss = tca.spread_between(centroids, torch.ones(3), torch.tensor([False, True, False]), 2.0)
    loss.backward()
    assert loss.item() == 0.0 and torch.equal(centroids.grad, torch.zeros(3, 4))


def test_equal_images_are_no_trouble() -> None:
    """Every distance is zero, in one class: log of one."""
    adapter = sf.adapt(tiny_net("layer"), "tca", **NO_VIEWS)
    x = batches(1)[0][:1].repeat(6, 1, 1, 1)
    for _ in range(3):
        assert torch.isfinite(adapter(x)).all()
    assert adapter.skipped == 0 and float(adapter.logged["loss_intra"]) == pytest.approx(0.0, abs=1e-2)


@pytest.mark.parametrize("net", ["batch", "layer"])
def test_one_image_moves_its_centroid(net: str) -> None:
    adapter = sf.adapt(tiny_net(net), "tca", **NO_VIEWS)
    stream = batches(3)
    adapter(stream[0][:1])
    assert int(adapter.seen.sum()) == 1 and float(adapter.logged["loss_inter"]) == 0.0
    adapter(stream[1])
    before = adapter.centroids.clone()
    adapter(stream[2][:1])
    assert int((adapter.centroids != before).any(1).sum()) == 1
    assert float(adapter.logged["loss_intra"]) == 0.0 and float(adapter.logged["loss_inter"]) != 0.0
    assert adapter.skipped == 0


def test_many_classes_few_images() -> None:
    """Most classes are never seen, and most that are have one image."""
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(432, 32), torch.nn.LayerNorm(32))
    net = torch.nn.Sequential(*net, torch.nn.Linear(32, 500))
    adapter = sf.adapt(net, "tca", **NO_VIEWS)
    for x in batches(3):
        assert torch.isfinite(adapter(x)).all()
    assert adapter.skipped == 0 and 1 < int(adapter.seen.sum()) < 49


@pytest.mark.filterwarnings("ignore:tca. step 2 was not finite")
def test_a_bad_batch_leaves_no_trace() -> None:
    adapter = sf.adapt(tiny_net(), "tca", check_input="deferred", **NO_VIEWS)
    stream = batches(2)
    adapter(stream[0])
    before = {name: value.clone() for name, value in adapter.state_dict().items() if torch.is_tensor(value)}
    bad = stream[1].clone()
    bad[0, 0, 0, 0] = float("nan")
    adapter(bad)
    for name in ("centroids", "seen", "frequency"):
        assert torch.equal(adapter.state_dict()[name], before[name]), name


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_predict_mixes_student_and_teacher(share: float) -> None:
    adapter = sf.adapt(tiny_net(), "tca", student_share=share, teacher_momentum=0.5, lr=1e-2, **NO_VIEWS)
    stream = batches(3)
    for x in stream[:2]:
        adapter(x)
    members = adapter.members_predict(stream[2])
    assert not torch.allclose(members["student"], members["teacher"], atol=1e-3)
    expected = share * members["student"] + (1 - share) * members["teacher"]
    assert torch.allclose(adapter.predict(stream[2]), expected, atol=1e-5)
    # without views the step returns the same, from before its update
    assert torch.allclose(adapter(stream[2]), expected, atol=1e-5)


def test_an_unsure_source_averages_the_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def view(x: torch.Tensor, *_: object, per: str) -> torch.Tensor:
        calls.append(len(calls))
        return x * torch.tensor([1.0 + calls[-1], 1.0, 1.0, 1.0])

    monkeypatch.setattr(cotta, "augment", view)
    monkeypatch.setattr(tca, "augment", lambda x, *_, per: x)
    x = by_hand.inputs(6)
    adapter = sf.adapt(by_hand.network(), "tca", threshold=1.1, views=4)
    plain = by_hand.logits(by_hand.GAMMA_BETA, numbers(x))
    shifted = [x * torch.tensor([1.0 + k, 1.0, 1.0, 1.0]) for k in range(4)]
    averaged = np.mean([by_hand.logits(by_hand.GAMMA_BETA, numbers(v)) for v in shifted], 0)
    assert np.allclose(numbers(adapter(x)), 0.3 * plain + 0.7 * averaged, atol=1e-5)
    assert len(calls) == 4


def test_reset_forgets_centroids_and_weights() -> None:
    adapter = sf.adapt(tiny_net(), "tca", **NO_VIEWS)
    for x in batches(3):
        adapter(x)
    assert bool(adapter.seen.any())
    adapter.reset()
    assert not bool(adapter.seen.any()) and not bool(adapter.centroids.any())
    assert torch.equal(adapter.frequency, torch.full((4,), 0.25))
