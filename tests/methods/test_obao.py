"""OBAO's losses, buffer and step against numbers worked out in NumPy."""

import by_hand
import by_hand_batch
import numpy as np
import pytest
import torch
from by_hand_batch import numbers

import slomofast as sf
from slomofast.core.rng import Rng
from slomofast.memory import CertainImages
from slomofast.methods import obao
from slomofast.methods.obao import ObaoConfig, relation_distance, relations
from slomofast.testing import batches, make, tiny_net

PLAIN = {"optimizer": "sgd", "momentum": 0.0, "nesterov": False, "lr": 0.1}
CPU = torch.device("cpu")


def source(rows: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(by_hand.inputs(rows, seed=30 + k), torch.arange(rows) % 3) for k in range(2)]


def view(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x.flip(1)


@pytest.fixture(autouse=True)
def fixed_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Augmentation without chance."""
    monkeypatch.setattr(obao, "augment", lambda x, *_, per: view(x))


def both_ways(z: np.ndarray, target: np.ndarray) -> np.ndarray:
    return 0.5 * by_hand_batch.cross_entropy(target, z) + 0.5 * by_hand_batch.cross_entropy(z, target)


def cosines(vectors: np.ndarray) -> np.ndarray:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    out = unit @ unit.T
    np.fill_diagonal(out, 1.0)
    return out


def related(z: np.ndarray, labels: np.ndarray, prototypes: np.ndarray) -> float:
    """Minus the cosine of the two matrices over the classes among the labels, class by class."""
    here = sorted(set(labels.tolist()))
    now = cosines(np.stack([z[labels == c].mean(0) for c in here]))
    then = cosines(prototypes)[np.ix_(here, here)]
    return -float((now * then).sum() / np.sqrt((now**2).sum() * (then**2).sum()))


def source_means() -> np.ndarray:
    """Class means of source features, each batch under its own statistics."""
    z = np.concatenate([by_hand_batch.features(by_hand.GAMMA_BETA, numbers(x)) for x, _ in source()])
    y = np.concatenate([labels.numpy() for _, labels in source()])
    return np.stack([z[y == c].mean(0) for c in range(3)])


def test_one_step_by_hand() -> None:
    weights = {"target_weight": 1.5, "replay_weight": 0.5, "relation_weight": 2.0}
    adapter = sf.adapt(by_hand_batch.network(), "obao", entropy_margin=1.0, capacity=6, teacher_momentum=0.5,
                       **weights, **PLAIN).fit_source(source())  # fmt: skip
    first, x = by_hand.inputs(6), by_hand.inputs(5, seed=1)
    sums = numbers(adapter(first))  # now the buffer is full, and student and teacher differ
    labels = sums.argmax(1)
    assert len(set(labels.tolist())) == 3
    theta, theta_teacher = by_hand_batch.affine(adapter.student), by_hand_batch.affine(adapter.teacher)
    assert np.abs(theta - theta_teacher).max() > 1e-3
    teacher = by_hand_batch.logits(theta_teacher, numbers(x))
    images = {"clean": numbers(x), "view": numbers(view(x)), "stored": numbers(first)}

    def parts(theta: np.ndarray) -> tuple[float, float, float]:
        clean, altered, replayed = (by_hand_batch.logits(theta, images[k]) for k in ("clean", "view", "stored"))
        agreement = 0.5 * np.mean(both_ways(clean, teacher) + both_ways(altered, teacher))
        certain = -np.log(by_hand.softmax(replayed)[np.arange(6), labels]).mean()
        z = by_hand_batch.features(theta, images["stored"])
        return float(agreement), float(certain), related(z, labels, source_means())

    def loss(theta: np.ndarray) -> float:
        return float(np.dot([1.5, 0.5, 2.0], parts(theta)))

    expected = theta - 0.1 * by_hand.slope(loss, theta)
    output = adapter(x)
    for name, value in zip(("agreement", "replay", "relation"), parts(theta), strict=True):
        assert float(adapter.logged[f"loss_{name}"]) == pytest.approx(value, rel=1e-3), name
    assert np.allclose(numbers(output), by_hand_batch.logits(theta, numbers(x)) + teacher, atol=1e-4)
    stepped = by_hand_batch.affine(adapter.student)
    assert np.abs(stepped - theta).max() > 1e-3 and np.allclose(stepped, expected, atol=1e-4)
    assert np.allclose(by_hand_batch.affine(adapter.teacher), 0.5 * (theta_teacher + stepped), atol=1e-6)
    assert torch.equal(adapter.student.head.weight, torch.tensor(by_hand.HEAD).float())


def test_source_relations_are_cosines_of_class_means_under_batch_statistics() -> None:
    adapter = sf.adapt(by_hand_batch.network(), "obao").fit_source(source())
    assert np.allclose(numbers(adapter.source_relations), cosines(source_means()), atol=1e-5)
    assert torch.equal(adapter.source_relations.diagonal(), torch.ones(3))


def test_the_heads_rows_stand_for_source_images() -> None:
    adapter = sf.adapt(by_hand_batch.network(), "obao", relation="head")
    assert not adapter.needs_source
    adapter(by_hand.inputs(6))
    assert np.allclose(numbers(adapter.source_relations), cosines(by_hand.HEAD), atol=1e-5)
    with pytest.raises(sf.ConfigError, match="drop the call"):
        adapter.fit_source(source())


def test_relations_of_absent_and_unknown_classes_do_not_count() -> None:
    z, labels = by_hand.inputs(7), torch.tensor([0, 0, 1, 1, 3, 2, 4])
    prototypes = by_hand.inputs(5, seed=2)
    known = relations(prototypes)
    known[2], known[:, 2] = 0.0, 0.0  # no source image
    mask = torch.tensor([1, 1, 1, 1, 1, 1, 0], dtype=torch.bool)  # class 4 is masked
    found = float(relation_distance(z, labels, mask, known))
    assert found == pytest.approx(related(numbers(z[:5]), labels[:5].numpy(), numbers(prototypes)), rel=1e-5)


@pytest.mark.parametrize("rows, expected", [(0, 0.0), (1, -1.0), (2, -1.0)])
def test_one_class_or_none_has_no_gradient(rows: int, expected: float) -> None:
    z = by_hand.inputs(4).requires_grad_()
    known = relations(by_hand.inputs(3, seed=2))
    distance = relation_distance(z, torch.tensor([1, 1, 0, 2]), torch.arange(4) < rows, known)
    distance.backward()
    assert float(distance.detach()) == pytest.approx(expected) and float(z.grad.abs().max()) < 1e-6


def test_matching_relations_are_at_the_minimum() -> None:
    vectors = by_hand.inputs(3, seed=2)
    distance = relation_distance(3.0 * vectors, torch.arange(3), torch.ones(3, dtype=torch.bool), relations(vectors))
    assert float(distance) == pytest.approx(-1.0)


def pushed(bank: CertainImages, entropies: list[float], keep: list[int] | None = None, start: int = 10) -> None:
    value = torch.arange(start, start + len(entropies))
    kept = torch.ones(len(entropies)) if keep is None else torch.tensor(keep)
    bank.push(value[:, None].float(), value, torch.tensor(entropies), kept.bool())
    assert torch.equal(bank.images[:, 0].long(), bank.labels)


def test_free_slots_are_filled_in_order_and_then_the_least_certain_goes() -> None:
    bank = CertainImages(4, (1,), CPU)
    pushed(bank, [0.1, 0.9, 0.5, 0.7], keep=[1, 0, 1, 0])
    assert bank.labels.tolist() == [10, 12, 0, 0] and float(bank.fill()) == 0.5
    pushed(bank, [0.3, 0.8, 0.6], start=20)  # two are free, then 0.5 goes although 0.6 is more
    assert bank.labels.tolist() == [10, 22, 20, 21]
    pushed(bank, [0.95, 0.05], start=30)  # 0.8 first, then 0.6
    assert bank.labels.tolist() == [10, 31, 20, 30]
    assert bank.entropies.tolist() == pytest.approx([0.1, 0.05, 0.3, 0.95])
    pushed(bank, [0.01] * 3, keep=[0, 0, 0], start=40)
    assert bank.labels.tolist() == [10, 31, 20, 30]


def test_of_more_images_than_slots_the_first_are_stored() -> None:
    bank = CertainImages(3, (1,), CPU)
    pushed(bank, [0.5, 0.4, 0.3, 0.2, 0.1], keep=[0, 1, 1, 1, 1])
    assert bank.labels.tolist() == [11, 12, 13]
    pushed(bank, [0.9, 0.9, 0.9, 0.9], start=20)
    assert bank.labels.tolist() == [20, 21, 22]


def test_a_draw_marks_repetitions_and_an_empty_bank() -> None:
    rng, bank = Rng(0, CPU), CertainImages(6, (1,), CPU)
    assert not bank.draw(4, rng)[2].any()
    pushed(bank, [0.1, 0.2, 0.3])
    images, labels, fresh = bank.draw(5, rng)
    assert fresh.tolist() == [True] * 3 + [False] * 2
    assert sorted(labels[:3].tolist()) == [10, 11, 12] and torch.equal(labels[3:], labels[:2])
    assert torch.equal(images[:, 0].long(), labels)
    orders = {tuple(bank.draw(2, rng)[1].tolist()) for _ in range(60)}
    assert len(orders) == 6


def test_repetitions_weigh_nothing() -> None:
    """Without BatchNorm a replay batch larger than the buffer's content gives the losses of the content."""
    adapter = sf.adapt(by_hand.network(), "obao", entropy_margin=1.0, capacity=50, replay_batch=50, **PLAIN)
    adapter.fit_source(source())
    x = by_hand.inputs(7)
    labels = numbers(adapter(x)).argmax(1)
    theta = by_hand.weights(adapter.student)
    adapter(by_hand.inputs(7, seed=1))
    expected = -np.log(by_hand.softmax(by_hand.logits(theta, numbers(x)))[np.arange(7), labels]).mean()
    assert float(adapter.logged["loss_replay"]) == pytest.approx(expected, rel=1e-4)


def test_the_first_batch_is_learned_from_without_replay() -> None:
    full = sf.adapt(by_hand_batch.network(), "obao", **PLAIN).fit_source(source())
    bare = sf.adapt(by_hand_batch.network(), "obao", replay_weight=0.0, relation_weight=0.0, **PLAIN)
    assert not bare.needs_source
    x = by_hand.inputs(6)
    assert torch.equal(full(x), bare(x))
    assert float(full.logged["loss_replay"]) == 0.0 and float(full.logged["loss_relation"]) == 0.0
    assert "loss_replay" not in bare.logged
    assert np.array_equal(by_hand_batch.affine(full.student), by_hand_batch.affine(bare.student))


def test_only_sure_images_are_stored_with_the_summed_prediction() -> None:
    adapter = sf.adapt(by_hand_batch.network(), "obao", entropy_margin=0.3, capacity=8, teacher_momentum=0.5, **PLAIN)
    adapter.fit_source(source())
    adapter(by_hand.inputs(6, seed=4))
    before = int(torch.isfinite(adapter.buffer.entropies).sum())
    x = by_hand.inputs(6)
    h = by_hand.entropies(by_hand_batch.logits(by_hand_batch.affine(adapter.student), numbers(x)))
    sure = h < 0.3 * np.log(3)
    assert 0 < sure.sum() < 6 and before + sure.sum() <= 8
    output = adapter(x)
    added = slice(before, before + int(sure.sum()))
    assert torch.equal(adapter.buffer.images[added], x[torch.from_numpy(sure)])
    assert np.array_equal(adapter.buffer.labels[added].numpy(), numbers(output).argmax(1)[sure])
    assert np.allclose(numbers(adapter.buffer.entropies[added]), h[sure], atol=1e-4)
    assert float(adapter.logged["buffer_fill"]) == pytest.approx((before + sure.sum()) / 8)


@pytest.mark.parametrize("net", ["batch", "layer"])
def test_a_filter_that_nobody_passes_leaves_the_buffer_empty(net: str) -> None:
    adapter = make("obao", tiny_net(net), entropy_margin=0.0)
    for x in batches(3):
        assert torch.isfinite(adapter(x)).all()
    assert adapter.skipped == 0 and float(adapter.buffer.fill()) == 0.0


@pytest.mark.parametrize("net", ["batch", "group", "layer"])
def test_equal_images_single_images_and_short_batches_stay_finite(net: str) -> None:
    adapter = make("obao", tiny_net(net), entropy_margin=1.0, capacity=5, replay_batch=3)
    x = batches(1)[0]
    for part in (x[:1].expand(8, -1, -1, -1), x[:1], x[:2], x[1:2], x):
        assert torch.isfinite(adapter(part)).all()
    assert adapter.skipped == 0 and float(adapter.buffer.fill()) == 1.0
    assert all(torch.isfinite(p).all() for p in adapter.parameters())


def test_reset_empties_the_buffer_and_keeps_the_relations() -> None:
    adapter = sf.adapt(by_hand_batch.network(), "obao", entropy_margin=1.0, **PLAIN).fit_source(source())
    known = adapter.source_relations.clone()
    adapter(by_hand.inputs(6))
    assert float(adapter.buffer.fill()) > 0
    adapter.reset()
    assert float(adapter.buffer.fill()) == 0.0 and not adapter.buffer.images.any()
    assert torch.equal(adapter.source_relations, known)


def test_a_bad_batch_is_not_stored() -> None:
    adapter = sf.adapt(by_hand_batch.network(), "obao", entropy_margin=1.0, check_input="deferred", **PLAIN)
    adapter.fit_source(source())
    x = by_hand.inputs(6)
    x[0, 0] = float("nan")
    with pytest.warns(UserWarning, match="not finite"):
        adapter(x)
    assert float(adapter.buffer.fill()) == 0.0


class Scaled(torch.nn.Module):
    """A network with a parameter that is called neither weight nor bias."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.norm = torch.nn.Parameter(torch.ones(4)), torch.nn.LayerNorm(4)
        self.head = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x * self.gain))


@pytest.mark.parametrize("train, more", [("named", set()), ("all", {"body.gain"})])
def test_what_learns(train: str, more: set[str]) -> None:
    adapter = sf.adapt(Scaled(), "obao", train=train).fit_source(source())
    learning = {name for name, p in adapter.student.named_parameters() if p.requires_grad}
    assert learning == {"body.norm.weight", "body.norm.bias"} | more


def test_predict_adds_student_and_teacher() -> None:
    adapter = sf.adapt(by_hand_batch.network(), "obao", teacher_momentum=0.5, **PLAIN).fit_source(source())
    adapter(by_hand.inputs(6))
    x = by_hand.inputs(6, seed=1)
    members = adapter.members_predict(x)
    assert not torch.allclose(members["student"], members["teacher"], atol=1e-3)
    assert torch.allclose(adapter.predict(x), members["student"] + members["teacher"], atol=1e-6)


def test_published_presets() -> None:
    def picked(config: ObaoConfig) -> tuple[object, ...]:
        names = ("optimizer", "lr", "replay_weight", "relation_weight", "entropy_margin", "capacity", "replay_batch")
        return tuple(getattr(config, name) for name in names)

    assert picked(ObaoConfig.for_("cifar")) == ("adam", 1e-3, 1.0, 1.0, 0.1, 1000, 200)
    assert picked(ObaoConfig.for_("cifar100")) == ("adam", 1e-3, 1.0, 200.0, 0.1, 200, 200)
    assert picked(ObaoConfig.for_("imagenet")) == ("sgd", 0.01, 0.5, 1.0, 0.2, 1000, 64)
