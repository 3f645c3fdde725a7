"""SANTA's prototypes, anchor loss and contrastive loss against numbers worked out in NumPy."""

import by_hand
import by_hand_batch
import numpy as np
import pytest
import torch
from by_hand_batch import numbers

import slomofast as sf
from slomofast.core.errors import SlomofastError
from slomofast.methods import santa


def source(batches: int = 3, rows: int = 8, classes: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(by_hand.inputs(rows, seed=30 + k), torch.arange(rows) % classes) for k in range(batches)]


def class_means(batches: list[tuple[torch.Tensor, torch.Tensor]]) -> np.ndarray:
    """Mean feature of each class; every source batch is normalised with its own statistics."""
    z = np.concatenate([by_hand_batch.features(by_hand.GAMMA_BETA, numbers(x)) for x, _ in batches])
    y = np.concatenate([labels.numpy() for _, labels in batches])
    return np.stack([z[y == c].mean(0) for c in range(3)])


def nearest(z: np.ndarray, prototypes: np.ndarray) -> np.ndarray:
    cosine = z @ prototypes.T / np.linalg.norm(z, axis=1)[:, None] / np.linalg.norm(prototypes, axis=1)
    return prototypes[cosine.argmax(1)]


def test_prototypes_are_class_means_under_batch_statistics() -> None:
    adapter = sf.adapt(by_hand_batch.network(), "santa").fit_source(source())
    assert np.allclose(numbers(adapter.means.prototypes), class_means(source()), atol=1e-5)


def test_prototypes_stop_after_enough_images() -> None:
    adapter = sf.adapt(by_hand_batch.network(), "santa", source_images=8).fit_source(source())
    assert np.allclose(numbers(adapter.means.prototypes), class_means(source()[:2]), atol=1e-5)


def test_losses_of_two_steps_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(santa, "augment", lambda x, *_, per: 0.5 * x.flip(1))
    adapter = sf.adapt(by_hand_batch.network(), "santa", projection=5, lr=0.05).fit_source(source())
    prototypes = class_means(source())
    for seed in (0, 1):  # from the second step on student and anchor differ
        x = by_hand.inputs(6, seed)
        theta = by_hand_batch.affine(adapter.student)
        z, z_view = (by_hand_batch.features(theta, numbers(v)) for v in (x, 0.5 * x.flip(1)))
        views = np.stack([nearest(z, prototypes), z, z_view])
        expected = by_hand_batch.contrastive(by_hand_batch.projected(adapter.projector, views), 0.1)
        anchor = by_hand_batch.logits(by_hand.GAMMA_BETA, numbers(x))
        terms = [by_hand_batch.cross_entropy(v @ by_hand.HEAD.T, anchor) for v in (z, z_view)]
        output = adapter(x)
        assert np.allclose(numbers(output), z @ by_hand.HEAD.T, atol=1e-4)
        assert float(adapter.logged["loss_anchor"]) == pytest.approx(0.5 * np.mean(terms[0] + terms[1]), rel=1e-4)
        assert float(adapter.logged["loss_contrastive"]) == pytest.approx(expected, rel=1e-3)
    assert np.abs(theta - by_hand.GAMMA_BETA).max() > 1e-3


def test_the_student_weighs_the_log_of_the_anchor() -> None:
    student, anchor = torch.tensor([[0.0, 0.0]]), torch.tensor([[2.0, 0.0]])
    # -(0.5 log 0.880797 + 0.5 log 0.119203); the other direction would give log 2
    assert float(santa.anchored(student, student, anchor)) == pytest.approx(1.126928, abs=1e-5)


def test_a_class_without_source_images_is_nobodys_nearest() -> None:
    adapter = sf.adapt(by_hand_batch.network(), "santa").fit_source(source(classes=2))
    assert adapter.means.present.tolist() == [True, True, False]
    away = -adapter.means.prototypes.sum(0, keepdim=True)  # a zero vector would win by cosine 0
    found = adapter.means.nearest(away)
    assert any(torch.equal(found[0], p) for p in adapter.means.prototypes[:2])


@pytest.mark.parametrize("labels", [torch.full((8,), 3), torch.full((8,), -1), torch.zeros(8)])
def test_labels_that_cannot_be_are_refused(labels: torch.Tensor) -> None:
    with pytest.raises(SlomofastError, match="0 to 2"):
        sf.adapt(by_hand_batch.network(), "santa").fit_source([(by_hand.inputs(8), labels)])


def test_the_stream_waits_for_the_source() -> None:
    with pytest.raises(SlomofastError, match="fit_source"):
        sf.adapt(by_hand_batch.network(), "santa")(by_hand.inputs(8))
