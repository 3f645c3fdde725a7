"""PALM's selection of tensors, their paces and its step, worked out by hand."""

import itertools
import shutil

import by_hand
import by_hand_batch
import numpy as np
import pytest
import torch
from by_hand_batch import numbers
from torch import Tensor, nn

import slomofast as sf
from slomofast.methods import palm
from slomofast.testing import batches, tiny_net

TENSORS = (slice(0, 4), slice(4, 8))  # scales, shifts
CLASSES = 3


@pytest.fixture(autouse=True)
def plain_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Augmentation without chance for what is no image."""
    true = palm.augment
    monkeypatch.setattr(palm, "augment", lambda x, *rest, per: view(x) if x.dim() == 2 else true(x, *rest, per=per))


def view(x: Tensor) -> Tensor:
    return 0.5 * x.flip(1) + x


class Hand:
    """The method in NumPy, on scales and shifts."""

    def __init__(self, **options: float) -> None:
        self.theta = by_hand.GAMMA_BETA.copy()
        self.average = [np.zeros(4), np.zeros(4)]
        self.deviation: list[np.ndarray | None] = [None, None]
        self.options, self.scores, self.selected = options, [0.0, 0.0], [False, False]

    def step(self, x: Tensor) -> np.ndarray:
        o, before = self.options, by_hand.logits(self.theta, numbers(x))
        slope = by_hand.slope(lambda t: self.distance(t, numbers(x)), self.theta)
        self.scores = [float(np.abs(slope[part]).sum()) for part in TENSORS]
        self.selected = [score <= o["threshold"] for score in self.scores]
        for k, part in enumerate(TENSORS):
            if self.selected[k]:
                now = np.abs(self.theta[part] * slope[part])
                self.average[k] = o["memory"] * self.average[k] + (1 - o["memory"]) * now
                self.deviation[k] = np.abs(now - self.average[k])
        g = by_hand.slope(lambda t: self.loss(t, numbers(x), numbers(view(x))), self.theta)
        g = g + o["weight_decay"] * self.theta
        for k, part in enumerate(TENSORS):
            pace = self.pace(k) * (self.selected[k] or not o["strict_freeze"])
            self.theta[part] -= o["lr"] * pace * g[part] / (np.abs(g[part]) + 1e-8)
        return before

    def pace(self, k: int) -> float:
        deviation = self.deviation[k]
        return 0.0 if deviation is None else float(((deviation + 1e-8) / (self.average[k] + 1e-8)).mean())

    def distance(self, theta: np.ndarray, x: np.ndarray) -> float:
        p = by_hand.softmax(by_hand.logits(theta, x) / self.options["temperature"])
        return float(-np.log(p).sum(1).mean())

    def loss(self, theta: np.ndarray, x: np.ndarray, x_view: np.ndarray) -> float:
        clean, altered = by_hand.logits(theta, x), by_hand.logits(theta, x_view)
        h = by_hand.entropies(clean)
        sure = h[h < 0.4].mean() if (h < 0.4).any() else 0.0
        agreement = by_hand_batch.cross_entropy(clean, altered).mean()
        return float(sure + self.options["consistency"] * CLASSES * agreement)


OPTIONS = {"lr": 0.02, "temperature": 3.0, "threshold": 1.1, "memory": 0.3, "consistency": 0.2, "weight_decay": 0.03}


@pytest.mark.parametrize("strict", [False, True])
def test_steps_by_hand(strict: bool) -> None:
    adapter = sf.adapt(by_hand.network(), "palm", strict_freeze=strict, **OPTIONS)
    hand, seen = Hand(strict_freeze=strict, **OPTIONS), []
    for seed in range(6):
        x = by_hand.inputs(6, seed)
        assert np.allclose(numbers(adapter(x)), hand.step(x), atol=1e-4)  # from before the update
        assert np.allclose(by_hand.weights(adapter.student), hand.theta, atol=1e-5)
        assert numbers(adapter.pace) == pytest.approx([hand.pace(0), hand.pace(1)], rel=1e-3)
        assert np.allclose(numbers(adapter.sensitivity), np.concatenate(hand.average), atol=1e-5)
        assert min(abs(score - OPTIONS["threshold"]) for score in hand.scores) > 1e-3
        seen.append(tuple(hand.selected))
    assert len(set(seen)) > 1, seen
    assert any(now < before for s in itertools.pairwise(seen) for before, now in zip(*s, strict=True)), seen


def test_the_distance_to_uniform_is_summed_over_classes() -> None:
    x = by_hand.inputs(6)
    hand = Hand(**OPTIONS | {"strict_freeze": False})
    hand.step(x)
    for margin, selected in ((-1e-3, 0.5), (1e-3, 1.0)):
        options = OPTIONS | {"threshold": max(hand.scores) + margin}
        adapter = sf.adapt(by_hand.network(), "palm", **options)
        adapter(x)
        assert float(adapter.logged["share_selected"]) == selected


@pytest.mark.parametrize(("memory", "factor"), [(0.5, 1.0), (0.1, 1 / 9), (0.0, 0.0)])
def test_the_first_pace_follows_from_the_memory_alone(memory: float, factor: float) -> None:
    adapter = sf.adapt(by_hand.network(), "palm", memory=memory, threshold=100.0, temperature=1.0)
    adapter(by_hand.inputs(6))
    assert float(adapter.pace[0]) == pytest.approx(factor, abs=1e-4)


def test_a_step_is_as_long_whatever_came_before() -> None:
    # an Adam that starts anew moves every weight by its rate, along the sign of the gradient
    adapter = sf.adapt(by_hand.network(), "palm", threshold=100.0, lr=0.01).prepare(by_hand.inputs(6))
    for seed in range(3):
        before = by_hand.weights(adapter.student)
        adapter(by_hand.inputs(6, seed))
        moved = np.abs(by_hand.weights(adapter.student) - before)
        paces = numbers(adapter.pace).repeat(4)
        assert np.allclose(moved, 0.01 * paces, atol=1e-6)


def test_what_is_never_selected_stays_even_under_weight_decay() -> None:
    adapter = sf.adapt(by_hand.network(), "palm", threshold=0.0, weight_decay=0.1)
    for seed in range(3):
        adapter(by_hand.inputs(6, seed))
    assert np.allclose(by_hand.weights(adapter.student), by_hand.GAMMA_BETA, atol=1e-7)
    assert float(adapter.logged["share_moving"]) == 0.0 and not adapter.sensitivity.any()


def test_without_a_confident_image_agreement_teaches_alone() -> None:
    x = by_hand.inputs(6)
    adapter = sf.adapt(by_hand.network(), "palm", entropy_margin=1e-6, threshold=100.0)
    adapter(x)
    assert float(adapter.logged["loss_entropy"]) == 0.0 and float(adapter.logged["share_sure"]) == 0.0
    assert np.abs(by_hand.weights(adapter.student) - by_hand.GAMMA_BETA).max() > 1e-5
    assert adapter.skipped == 0
    idle = sf.adapt(by_hand.network(), "palm", entropy_margin=1e-6, threshold=100.0, consistency=0.0)
    idle(x)
    assert np.allclose(by_hand.weights(idle.student), by_hand.GAMMA_BETA, atol=1e-7)


def test_equal_predictions_move_nothing() -> None:
    net = by_hand.network()
    nn.init.zeros_(net[1].weight)
    adapter = sf.adapt(net, "palm")
    assert not adapter(by_hand.inputs(6)).any()
    assert adapter.pace.tolist() == pytest.approx([1.0, 1.0])  # 0 / 0 reads as one
    assert np.allclose(by_hand.weights(adapter.student), by_hand.GAMMA_BETA, atol=1e-7)


@pytest.mark.parametrize("rows", [1, 2])
def test_few_images(rows: int) -> None:
    adapter = sf.adapt(by_hand_batch.network(), "palm", threshold=100.0)
    for x in (by_hand.inputs(6), by_hand.inputs(rows, 1), by_hand.inputs(6, 2)):
        assert torch.isfinite(adapter(x)).all()
    assert adapter.skipped == 0 and torch.isfinite(adapter.pace).all()


@pytest.mark.parametrize("kind", ["batch", "group", "layer"])
def test_convolutions_and_norm_layers_learn_and_linear_ones_stay(kind: str) -> None:
    source = tiny_net(kind)
    adapter = sf.adapt(source, "palm", threshold=1e6)
    for x in batches(3):
        adapter(x)
    for (name, moved), there in zip(adapter.student.named_parameters(), source.parameters(), strict=True):
        linear = isinstance(adapter.student.get_submodule(name.rpartition(".")[0]), nn.Linear)
        assert torch.equal(moved, there) == linear, name


def test_a_tensor_without_gradient_is_not_selected() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.spare = tiny_net(), nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    net = Spare()
    adapter = sf.adapt(net, "palm", weight_decay=0.1, threshold=1e6)
    for x in batches(3):
        adapter(x)
    assert torch.equal(adapter.student.body.spare.weight, net.spare.weight)
    assert adapter.pace[-2:].tolist() == [0.0, 0.0] and (adapter.pace[:-2] > 0).all()
    assert adapter.skipped == 0


def test_reset_forgets_sensitivities() -> None:
    adapter = sf.adapt(by_hand.network(), "palm", threshold=100.0).prepare(by_hand.inputs(6))
    stream = [by_hand.inputs(6, seed) for seed in range(3)]
    outputs = [adapter(x) for x in stream]
    assert adapter.sensitivity.any() and adapter.pace.all()
    adapter.reset()
    assert not adapter.sensitivity.any() and not adapter.pace.any()
    assert all(torch.equal(adapter(x), y) for x, y in zip(stream, outputs, strict=True))


def test_a_bad_batch_leaves_no_trace() -> None:
    adapter = sf.adapt(by_hand.network(), "palm", threshold=100.0, check_input="deferred")
    adapter(by_hand.inputs(6))
    before = {name: value.clone() for name, value in adapter.named_buffers() if "optimizer" not in name}
    weights, bad = by_hand.weights(adapter.student), by_hand.inputs(6, 1)
    bad[0, 0] = float("nan")
    adapter(bad)
    assert all(torch.equal(value, before[name]) for name, value in adapter.named_buffers() if name in before)
    assert np.array_equal(by_hand.weights(adapter.student), weights)


def test_a_network_with_nothing_to_choose_from_still_predicts() -> None:
    net, x = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), by_hand.inputs(6)
    with pytest.warns(UserWarning, match="no norm layers"):
        found = sf.adapt(net, "palm")(x)
    assert torch.allclose(found, net(x).detach(), atol=1e-6)


def test_a_recorded_pass_serves_the_view_alone() -> None:
    adapter = sf.adapt(by_hand.network(), "palm").prepare(by_hand.inputs(6))
    seen: list[Tensor] = []
    student, x = adapter.student, by_hand.inputs(6)
    student.recorder = lambda images: seen.append(images) or student.body(images)
    adapter(x)
    assert len(seen) == 1 and torch.equal(seen[0], view(x))


@pytest.mark.skipif(shutil.which("gcc") is None and shutil.which("clang") is None, reason="compiling needs a compiler")
def test_compiled_networks_agree() -> None:
    plain, fast = (sf.adapt(tiny_net("layer"), "palm", compile=on) for on in (False, True))
    for x in batches(3):
        torch.testing.assert_close(fast(x), plain(x), rtol=1e-3, atol=1e-3)


def test_presets_are_those_of_the_data_sets() -> None:
    config = palm.PalmConfig
    found = [(c.lr, c.weight_decay, c.memory, c.temperature, c.threshold, c.consistency) for c in
             (config(), config.for_("cifar100"), config.for_("imagenet"))]  # fmt: skip
    assert found == [
        (5e-4, 0.0, 0.5, 50.0, 1.0, 0.01),
        (5e-4, 5e-4, 0.1, 100.0, 0.5, 0.01),
        (5e-5, 0.0, 0.5, 1000.0, 0.3, 0.01),
    ]
