"""Small instances of every layout."""

import numpy as np
import pytest
from layouts import write_image, write_shard

from slomofast.corruptions import CANONICAL


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("SLOMOFAST_HOME", str(tmp_path / "home"))


@pytest.fixture
def cifar_c(tmp_path):
    """CIFAR-C layout with 12 images: row (s - 1) * 12 + i of corruption d is filled with a value of its own."""
    root = tmp_path / "CIFAR-10-C"
    root.mkdir()
    for d, name in enumerate(CANONICAL):
        array = np.zeros((60, 32, 32, 3), np.uint8)
        array[:] = ((np.arange(60) + 7 * d) % 256)[:, None, None, None]
        array[..., 1] = 200
        np.save(root / f"{name}.npy", array)
    np.save(root / "labels.npy", np.tile(np.arange(12) % 10, 5))
    return root


@pytest.fixture
def imagenet_c(tmp_path):
    """ImageNet-C layout: three classes of two images, 64 pixels, two corruptions, all severities."""
    root = tmp_path / "ImageNet-C"
    for d, domain in enumerate(("gaussian_noise", "fog")):
        for severity in range(1, 6):
            for c, wnid in enumerate(("n01", "n02", "n03")):
                for i in range(2):
                    seed = 1000 * d + 100 * severity + 10 * c + i
                    write_image(root / domain / str(severity) / wnid / f"{wnid}_{i}.JPEG", seed, 64)
    return root


@pytest.fixture
def tree(tmp_path):
    """Clean folder: three classes of four 32-pixel images."""
    root = tmp_path / "clean"
    for c, name in enumerate(("ant", "bee", "cat")):
        for i in range(4):
            write_image(root / name / f"{i}.png", 10 * c + i)
    return root


@pytest.fixture
def shards(tmp_path):
    root = tmp_path / "baseline_20_transition+speed_1000_seed_44"
    root.mkdir()
    write_shard(root / "serial_00000.tar", range(5))
    write_shard(root / "serial_00001.tar", range(5, 8))
    return root
