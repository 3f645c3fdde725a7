"""What every corruption promises: bounds, types, growth with severity, per-image randomness, clear errors."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from made_pictures import picture_batch
from torch import Tensor

import slomofast.corruptions as corruptions
from slomofast.core.errors import ConfigError, DataError, InputError
from slomofast.corruptions import CANONICAL, EXTRA, GROUPS, corrupt, describe_corruption, list_corruptions
from slomofast.corruptions._levels import TABLES, level, nearest_size

ALL = (*CANONICAL, *EXTRA)


@pytest.fixture(scope="module")
def crowd() -> Tensor:
    return picture_batch(48, 32, seed=1)


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.float() - b.float()).abs().mean())


def test_the_lists_agree() -> None:
    assert list_corruptions() == list(CANONICAL) and list_corruptions(extra=True) == list(ALL)
    assert [name for names in GROUPS.values() for name in names] == list(CANONICAL)
    assert list(GROUPS) == ["noise", "blur", "weather", "digital", "distortion"]
    assert set(TABLES) == set(ALL)
    for name in ALL:
        known = describe_corruption(name)
        assert known.name == name and known.description and known.extra == (name in EXTRA)
        assert name in EXTRA or name in GROUPS[known.group]
    for name in corruptions.__all__:
        assert hasattr(corruptions, name)


@pytest.mark.parametrize("name", ALL)
def test_type_shape_and_bounds(name: str, pictures: Tensor) -> None:
    before = pictures.clone()
    small = corrupt(pictures, name)
    assert small.dtype == torch.uint8 and small.shape == pictures.shape and small.device == pictures.device
    assert not torch.equal(small, pictures)
    unit = pictures.float() / 255
    real = corrupt(unit, name)
    assert real.dtype == torch.float32 and real.shape == unit.shape
    assert torch.isfinite(real).all() and real.min() >= 0 and real.max() <= 1
    assert torch.equal(pictures, before)
    # The float result is the 8-bit one before its truncation.
    assert (real.mul(255).add(1e-3).floor() - small.float()).abs().max() <= 1
    assert distance(real.mul(255).add(1e-3).floor(), small) < 0.02


@pytest.mark.parametrize("name", ALL)
def test_severity_zero_changes_nothing(name: str, pictures: Tensor) -> None:
    for images in (pictures, pictures.float() / 255):
        same = corrupt(images, name, severity=0)
        assert torch.equal(same, images) and same.data_ptr() != images.data_ptr()


# Published tables that are not ordered: saturation falls before it rises; the elastic and glass tables trade one
# parameter for another; frost dims the image as it adds ice; spatter turns from water to mud. There only the ends
# of the scale are compared.
UNORDERED = {"saturate", "elastic_transform", "glass_blur", "spatter", "frost"}


@pytest.mark.parametrize("name", ALL)
def test_distance_from_clean_grows_with_severity(name: str, crowd: Tensor) -> None:
    steps = [distance(corrupt(crowd, name, s), crowd) for s in range(6)]
    assert steps[0] == 0 and min(steps[1:]) > 0.05
    if name == "saturate":
        assert steps[2] > steps[1] and steps[5] > steps[4] > steps[3]
    elif name in UNORDERED:
        assert max(steps[3:]) > steps[1] * (0.8 if name == "elastic_transform" else 1.0)
    else:
        assert all(later > earlier * 0.98 for earlier, later in pairwise(steps[1:]))
        assert steps[5] > 1.1 * steps[1]


@pytest.mark.parametrize("name", ALL)
def test_an_image_does_not_depend_on_its_batch(name: str, crowd: Tensor) -> None:
    images = crowd.repeat(4, 1, 1, 1)  # more than one internal piece
    whole = corrupt(images, name, 5, seed=7)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    assert torch.equal(corrupt(images[order], name, 5, seed=7, index=order), whole[order])
    for i in (0, 131, 191):
        assert torch.equal(corrupt(images[i : i + 1], name, 5, seed=7, index=[i]), whole[i : i + 1])


@pytest.mark.parametrize("name", ALL)
def test_seed_and_index_decide_the_draws(name: str, pictures: Tensor) -> None:
    first = corrupt(pictures, name, 5, seed=0)
    assert torch.equal(first, corrupt(pictures, name, 5, seed=0))
    differs_by_seed = not torch.equal(first, corrupt(pictures, name, 5, seed=1))
    twin = corrupt(pictures[:1].repeat(2, 1, 1, 1), name, 5)
    differs_by_index = not torch.equal(twin[0], twin[1])
    assert differs_by_seed == differs_by_index == describe_corruption(name).random


def test_another_process_makes_the_same_images(pictures: Tensor) -> None:
    code = (
        "import torch; from slomofast.corruptions import corrupt; torch.set_num_threads(1);"
        "x = torch.arange(2 * 3 * 32 * 32).view(2, 3, 32, 32).mul(37).remainder(256).to(torch.uint8);"
        "print([int(corrupt(x, n, 4.5, seed=-3).long().sum()) for n in ('shot_noise', 'frost', 'fog')])"
    )
    here: list[int] = []
    x = torch.arange(2 * 3 * 32 * 32).view(2, 3, 32, 32).mul(37).remainder(256).to(torch.uint8)
    for name in ("shot_noise", "frost", "fog"):
        here.append(int(corrupt(x, name, 4.5, seed=-3).long().sum()))
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert there.strip() == str(here)


@pytest.mark.parametrize("name", ALL)
def test_fractions_lie_between_their_neighbours(name: str, crowd: Tensor) -> None:
    """Parameters interpolate, so the distance from clean at a half lies near those of its neighbours."""
    for low in (0, 2, 4):
        below, between, above = (distance(corrupt(crowd, name, s), crowd) for s in (low, low + 0.5, low + 1))
        slack = 0.35 * max(below, above)
        if name in UNORDERED:
            assert between <= 1.6 * max(below, above)
        else:
            assert min(below, above) - slack <= between <= max(below, above) + 0.1 * max(below, above)


def test_parameters_interpolate_linearly() -> None:
    assert level("gaussian_noise", 4.5, 224) == pytest.approx((0.32,))
    assert level("shot_noise", 2.5, 224) == pytest.approx(((1 / 25 + 1 / 12) / 2,))
    assert level("jpeg_compression", 0.0, 32) == (95.0,) and level("jpeg_compression", 0.0, 224) == (85.0,)
    assert level("fog", 5, 64) == (2.0, 1.75)
    for name, tables in TABLES.items():
        for size, knots in tables.items():
            assert len(knots) == 6 and len({len(knot) for knot in knots}) == 1
            for severity, knot in enumerate(knots):
                assert level(name, severity, size) == pytest.approx(knot)


def test_sizes_without_a_table_take_the_nearest_and_scale_pixels() -> None:
    assert [nearest_size(s) for s in (16, 32, 45, 46, 64, 119, 120, 224, 384)] == [
        32,
        32,
        32,
        64,
        64,
        64,
        224,
        224,
        224,
    ]
    assert level("motion_blur", 5, 96) == pytest.approx((18.0, 4.5))
    assert level("gaussian_noise", 5, 96) == (0.18,)


@pytest.mark.parametrize("size", [16, 48, 96])
@pytest.mark.parametrize("name", ALL)
def test_other_sizes_work(name: str, size: int) -> None:
    images = picture_batch(2, size)
    for severity in (0.3, 2.7, 5):
        out = corrupt(images, name, severity)
        assert out.shape == images.shape
    assert not torch.equal(out, images)


@pytest.mark.parametrize("name", ALL)
def test_photograph_size_works(name: str) -> None:
    images = picture_batch(1, 224)
    assert distance(corrupt(images, name, 5), images) > 0.5


def test_empty_batches_and_strided_input() -> None:
    assert corrupt(torch.zeros(0, 3, 32, 32, dtype=torch.uint8), "fog").shape == (0, 3, 32, 32)
    images = picture_batch(2, 32)
    strided = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    for name in ("gaussian_noise", "motion_blur", "zoom_blur", "jpeg_compression"):
        assert torch.equal(corrupt(strided, name), corrupt(images, name))


def test_index_may_be_list_array_or_tensor(pictures: Tensor) -> None:
    places = [9, 3, 5, 100, 2**40, -4]
    expected = corrupt(pictures, "snow", index=places)
    assert torch.equal(expected, corrupt(pictures, "snow", index=np.array(places)))
    assert torch.equal(expected, corrupt(pictures, "snow", index=torch.tensor(places)))


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"name": "gausian_noise"}, ConfigError, "did you mean 'gaussian_noise'"),
        ({"severity": 5.1}, ConfigError, "5.1 is outside"),
        ({"severity": -1}, ConfigError, "outside"),
        ({"severity": float("nan")}, ConfigError, "outside"),
        ({"severity": "hard"}, ConfigError, "not a number"),
        ({"images": torch.zeros(2, 3, 32, 32, dtype=torch.float64)}, InputError, "float64"),
        ({"images": torch.zeros(3, 32, 32)}, InputError, "shape"),
        ({"images": torch.zeros(2, 1, 32, 32)}, InputError, "shape"),
        ({"images": torch.zeros(2, 3, 32, 40)}, InputError, "square"),
        ({"images": torch.zeros(2, 3, 8, 8)}, InputError, "at least 16"),
        ({"images": torch.full((2, 3, 32, 32), 1.5)}, InputError, r"\[0, 1\]"),
        ({"images": torch.full((2, 3, 32, 32), float("nan"))}, InputError, "finite"),
        ({"images": np.zeros((2, 3, 32, 32), np.uint8)}, InputError, "torch tensor"),
        ({"index": [1, 2, 3]}, InputError, "2 images"),
        ({"index": [0.5, 1.5]}, InputError, "integers"),
    ],
)
def test_bad_input_is_named(change: dict[str, object], kind: type[Exception], words: str) -> None:
    given: dict[str, object] = {"images": torch.zeros(2, 3, 32, 32, dtype=torch.uint8), "name": "fog", **change}
    with pytest.raises(kind, match=words):
        corrupt(**given)  # type: ignore[arg-type]


def test_frost_pictures_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pictures: Tensor) -> None:
    from PIL import Image

    for i in range(6):  # five grey sheets; a sixth, white, that must never be used
        Image.new("RGB", (400, 300), (40 * i + 20,) * 3 if i < 5 else (255, 255, 255)).save(tmp_path / f"frost{i}.png")
    monkeypatch.setenv("SLOMOFAST_FROST_DIR", str(tmp_path))
    black = torch.zeros(200, 3, 32, 32, dtype=torch.uint8)
    seen = set(corrupt(black, "frost", 5).unique().tolist())
    assert seen == {int(0.45 * (40 * i + 20) + 1e-3) for i in range(5)}
    monkeypatch.setenv("SLOMOFAST_FROST_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="SLOMOFAST_FROST_DIR"):
        corrupt(pictures, "frost")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ALL)
def test_gpu_and_cpu_agree(name: str, crowd: Tensor) -> None:
    here, there = corrupt(crowd, name, 5), corrupt(crowd.cuda(), name, 5)
    assert there.is_cuda
    difference = (there.cpu().float() - here.float()).abs()
    mean, far = (0.15, 0.02) if name == "jpeg_compression" else (0.05, 0.005)
    assert float(difference.mean()) < mean and float((difference > 2).float().mean()) < far
