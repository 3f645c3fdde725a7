"""Training: it learns, it resumes exactly, it refuses nonsense."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from slomofast.core.errors import CheckpointError, ConfigError
from slomofast.models import load_source
from slomofast.models.train import TrainConfig, augment, error_rate, rate_at, train


@pytest.fixture(scope="module")
def bars():
    """Two classes a network learns at once: vertical and horizontal bars in noise."""
    rng = np.random.default_rng(0)
    labels = torch.from_numpy(rng.integers(0, 2, 256))
    images = torch.from_numpy(rng.integers(0, 120, (256, 3, 16, 16), dtype=np.uint8))
    for i, label in enumerate(labels):
        place = int(rng.integers(2, 12))
        if label:
            images[i, :, place : place + 2] = 250
        else:
            images[i, :, :, place : place + 2] = 250
    return images, labels


def fresh():
    torch.manual_seed(0)
    return load_source("wrn_10_1", classes=2)


CONFIG = TrainConfig(epochs=3, lr=0.05, batch_size=32, crop=1)
BOTH = pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, lr=0.01, optimizer="adamw")], ids=["sgd", "adamw"])


@BOTH
def test_training_learns(bars, config):
    images, labels = bars
    network = fresh()
    epochs = list(train(network, lambda i: images[i], labels, config))
    assert [e.number for e in epochs] == [1, 2, 3]
    assert epochs[-1].loss < epochs[0].loss
    assert error_rate(network, lambda i: images[i], labels) < 15
    assert not network.training


def test_the_two_optimisers_learn_differently(bars):
    images, labels = bars
    weights = []
    for optimizer in ("sgd", "adamw"):
        network = fresh()
        list(train(network, lambda i: images[i], labels, replace(CONFIG, epochs=1, optimizer=optimizer)))
        weights.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
    assert not torch.allclose(*weights, atol=1e-3)


@BOTH
def test_resuming_ends_in_the_same_weights(bars, tmp_path, config):
    images, labels = bars
    whole = fresh()
    list(train(whole, lambda i: images[i], labels, config))
    checkpoint = tmp_path / "training.pt"
    first = train(fresh(), lambda i: images[i], labels, config, checkpoint)
    next(first)
    first.close()
    second = fresh()
    epochs = list(train(second, lambda i: images[i], labels, config, checkpoint))
    assert [e.number for e in epochs] == [2, 3]
    assert all(
        torch.equal(a, b) for a, b in zip(whole.state_dict().values(), second.state_dict().values(), strict=True)
    )


def test_a_checkpoint_of_other_options_is_refused(bars, tmp_path):
    images, labels = bars
    checkpoint = tmp_path / "training.pt"
    next(train(fresh(), lambda i: images[i], labels, CONFIG, checkpoint))
    other = TrainConfig(epochs=3, lr=0.06, batch_size=32, crop=1)
    with pytest.raises(CheckpointError, match="other options"):
        next(train(fresh(), lambda i: images[i], labels, other, checkpoint))
    checkpoint.write_bytes(b"cut")
    with pytest.raises(CheckpointError, match="no readable"):
        next(train(fresh(), lambda i: images[i], labels, CONFIG, checkpoint))


def test_the_rate_rises_then_falls_to_nothing():
    config = TrainConfig(lr=1.0)
    rates = [rate_at(k, 100, config) for k in range(100)]
    assert max(rates) == pytest.approx(1.0, abs=0.06)
    assert rates.index(max(rates)) == 20
    assert rates[0] < 0.1
    assert rates[-1] < 0.001
    assert rate_at(0, 100, TrainConfig(lr=1.0, schedule="cosine")) == pytest.approx(1.0)


def test_augmentation_moves_and_mirrors_whole_images():
    images = torch.arange(36.0).view(1, 1, 6, 6).expand(64, 3, 6, 6)
    moved = augment(images, True, 2, torch.Generator().manual_seed(0))
    assert moved.shape == images.shape
    assert set(moved.unique().tolist()) <= set(range(36))
    rising = (moved[:, 0, 3, 3] - moved[:, 0, 3, 2]).sign()
    assert {-1.0, 1.0} <= set(rising.tolist())
    still = augment(images, False, 0, torch.Generator())
    assert torch.equal(still, images)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"lr": 0},
        {"crop": -1},
        {"precision": "fp8"},
        {"schedule": "flat"},
        {"optimizer": "lion"},
        {"label_smoothing": 1},
    ],
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TrainConfig(**wrong)


def test_too_few_images_and_a_diverging_loss_are_explained(bars):
    images, labels = bars
    with pytest.raises(ConfigError, match="do not fill a batch"):
        next(train(fresh(), lambda i: images[i], labels[:8], CONFIG))
    with pytest.raises(ConfigError, match="lower lr"):
        list(train(fresh(), lambda i: images[i], labels, TrainConfig(epochs=2, lr=1e12, batch_size=64)))


def test_cutout_covers_one_square_per_image():
    images = torch.rand(16, 3, 12, 12)
    covered = augment(images, False, 0, torch.Generator().manual_seed(0), cutout=6)
    changed = (covered != images).any(1)
    assert torch.all(covered[changed[:, None].expand_as(covered)] == 0.5)
    assert torch.all(changed.flatten(1).sum(1) <= 36) and torch.all(changed.flatten(1).any(1))
    for mask in changed:
        rows, columns = mask.any(1).sum(), mask.any(0).sum()
        assert mask.sum() == rows * columns  # a rectangle, cut where it leaves the image
