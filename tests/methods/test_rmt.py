"""RMT's losses, teacher, replay and warm-up against numbers worked out in NumPy."""

import by_hand
import by_hand_batch
import numpy as np
import pytest
import torch
from by_hand_batch import numbers

import slomofast as sf
from slomofast.core.optim import FlatOptimizer
from slomofast.core.rng import Rng
from slomofast.memory import SourceReplay
from slomofast.methods import rmt

PLAIN = {"optimizer": "sgd", "momentum": 0.0, "nesterov": False, "lr": 0.1}


def source(batches: int = 2, rows: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(by_hand.inputs(rows, seed=30 + k), torch.arange(rows) % 3) for k in range(batches)]


def flat(network: torch.nn.Module) -> np.ndarray:
    return np.concatenate([numbers(p).ravel() for p in network.parameters()])


@pytest.fixture(autouse=True)
def fixed_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Augmentation without chance."""
    monkeypatch.setattr(rmt, "augment", lambda x, *_, per: 0.5 * x.flip(1))


def both_ways(z: np.ndarray, target: np.ndarray) -> np.ndarray:
    return 0.5 * by_hand_batch.cross_entropy(target, z) + 0.5 * by_hand_batch.cross_entropy(z, target)


def test_losses_and_output_by_hand() -> None:
    adapter = sf.adapt(by_hand_batch.network(), "rmt", projection=5, teacher_momentum=0.5, **PLAIN)
    adapter.fit_source(source())
    adapter(by_hand.inputs(6))  # now student and teacher differ
    x = by_hand.inputs(6, seed=1)
    views = [numbers(x), numbers(0.5 * x.flip(1))]
    networks = {name: (by_hand_batch.affine(n), numbers(n.head.weight)) for name, n in adapter.members().items()}
    z, z_view = (by_hand_batch.features(networks["student"][0], v) for v in views)
    head = networks["student"][1]
    teacher = by_hand_batch.features(networks["teacher"][0], views[0]) @ networks["teacher"][1].T
    expected = 0.5 * np.mean(both_ways(z @ head.T, teacher) + both_ways(z_view @ head.T, teacher))
    prototypes = numbers(adapter.means.prototypes)
    cosine = z @ prototypes.T / np.linalg.norm(z, axis=1)[:, None] / np.linalg.norm(prototypes, axis=1)
    stacked = np.stack([prototypes[cosine.argmax(1)], z, z_view])
    alignment = by_hand_batch.contrastive(by_hand_batch.projected(adapter.projector, stacked), 0.1)
    output = adapter(x)
    assert np.abs(head - networks["teacher"][1]).max() > 1e-3
    assert np.allclose(numbers(output), z @ head.T + teacher, atol=1e-4)
    assert float(adapter.logged["loss_agreement"]) == pytest.approx(expected, rel=1e-4)
    assert float(adapter.logged["loss_contrastive"]) == pytest.approx(alignment, rel=1e-3)


def test_the_teacher_follows_the_stepped_student_and_the_projector_learns() -> None:
    adapter = sf.adapt(by_hand_batch.network(), "rmt", teacher_momentum=0.9, **PLAIN).fit_source(source())
    before, projector = flat(adapter.student), flat(adapter.projector)
    adapter(by_hand.inputs(6))
    stepped = flat(adapter.student)
    assert np.abs(stepped - before).max() > 1e-3 and np.abs(flat(adapter.projector) - projector).max() > 1e-5
    assert np.allclose(flat(adapter.teacher), 0.9 * before + 0.1 * stepped, atol=1e-6)


def test_predict_adds_student_and_teacher() -> None:
    adapter = sf.adapt(by_hand_batch.network(), "rmt", teacher_momentum=0.5, **PLAIN).fit_source(source())
    adapter(by_hand.inputs(6))
    x = by_hand.inputs(6, seed=1)
    members = adapter.members_predict(x)
    assert not torch.allclose(members["student"], members["teacher"], atol=1e-3)
    assert torch.allclose(adapter.predict(x), members["student"] + members["teacher"], atol=1e-6)


def test_replay_is_a_pass_of_its_own_with_labels() -> None:
    adapter = sf.adapt(by_hand_batch.network(), "rmt", source_weight=1.0, replay_images=6, **PLAIN)
    adapter.fit_source(source(1))
    adapter(by_hand.inputs(6))
    images, labels = source(1)[0]  # six kept, six drawn: the same six in another order
    z = by_hand_batch.logits(by_hand.GAMMA_BETA, numbers(images))
    expected = -np.log(by_hand.softmax(z)[np.arange(6), labels.numpy()]).mean()
    assert float(adapter.logged["loss_source"]) == pytest.approx(expected, rel=1e-4)


def test_source_free_by_default() -> None:
    adapter = sf.adapt(by_hand_batch.network(), "rmt").fit_source(source())
    adapter(by_hand.inputs(6))
    assert "loss_source" not in adapter.logged and adapter.replay.images.numel() == 0


def test_warm_up_ramps_the_step_and_survives_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    true_step = FlatOptimizer.step

    def noted(self: FlatOptimizer, *arguments: object) -> None:
        rates.append(self.lr)
        true_step(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(FlatOptimizer, "step", noted)
    adapter = sf.adapt(by_hand_batch.network(), "rmt", warmup_images=29, teacher_momentum=0.5, **PLAIN)
    adapter.fit_source(source())
    assert rates == pytest.approx([0.025, 0.05, 0.075, 0.1])  # 29 // 6 steps
    assert adapter.optimizer_student.lr == 0.1
    warm = flat(adapter.student)
    # at the first step student and teacher agree, yet cross-entropy still pulls both to certainty
    assert np.abs(warm - flat(by_hand_batch.network())).max() > 1e-3
    adapter(by_hand.inputs(6))
    adapter.reset()
    assert np.array_equal(flat(adapter.student), warm)


def test_replay_keeps_a_uniform_sample() -> None:
    hits = torch.zeros(20)
    for seed in range(300):
        rng, bank = Rng(seed, torch.device("cpu")), SourceReplay(5, (1,), torch.device("cpu"))
        for start in range(0, 20, 4):
            value = torch.arange(start, start + 4)
            bank.push(value[:, None].float(), value, rng)
        assert torch.equal(bank.images[:, 0].long(), bank.labels) and len(set(bank.labels.tolist())) == 5
        hits[bank.labels] += 1
    # 75 expected, standard deviation 7.5
    assert hits.min() > 45 and hits.max() < 105


def test_a_short_replay_repeats() -> None:
    rng, bank = Rng(0, torch.device("cpu")), SourceReplay(8, (1,), torch.device("cpu"))
    bank.push(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1, 2, 3]), rng)
    images, labels = bank.draw(7, rng)
    assert sorted(labels[:3].tolist()) == [1, 2, 3] and torch.equal(labels[3:6], labels[:3])
    assert torch.equal(images[:, 0].long(), labels)
