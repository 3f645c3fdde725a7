"""Every fast corruption against the slow one of reference.py, fed the same random draws."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import reference as slow
import torch
from made_pictures import picture_batch
from torch import Tensor

from slomofast.corruptions import CANONICAL, EXTRA, SampleRng, corrupt
from slomofast.corruptions import _water as fast_water
from slomofast.corruptions._frost import frost_texture
from slomofast.corruptions._jpeg import jpeg_files, jpeg_tensor
from slomofast.corruptions._levels import elastic_unit, level, whole
from slomofast.corruptions._ops import gaussian_map, separable
from slomofast.corruptions.weather import plasma

SEED = 3


def rng_for(name: str, count: int) -> SampleRng:
    return SampleRng(SEED, torch.arange(count), stream=name)


def pixels(images: Tensor) -> np.ndarray:
    return images.permute(0, 2, 3, 1).contiguous().numpy()


def slow_batch(name: str, images: Tensor, severity: float) -> np.ndarray:
    """Levels 0..255 of the slow version with the draws the fast one makes; (B, S, S, 3)."""
    count, _, size, _ = images.shape
    rng, values = rng_for(name, count), level(name, severity, size)
    pictures = pixels(images)

    def each(function: Callable[[np.ndarray, int], np.ndarray]) -> np.ndarray:
        results = [function(picture, i) for i, picture in enumerate(pictures)]
        return np.stack([r if r.dtype == np.uint8 else slow.truncate(r) for r in results])

    if name in ("gaussian_noise", "speckle_noise"):
        draws = rng.normal(3, size, size).permute(0, 2, 3, 1).numpy()
        return each(lambda p, i: getattr(slow, name)(p, values[0], draws[i]))
    if name in ("defocus_blur", "zoom_blur", "brightness", "contrast", "saturate"):
        return each(lambda p, i: getattr(slow, name)(p, *values))
    if name == "gaussian_blur":
        return each(lambda p, i: slow.gaussian_filter(p / 255, values[0]))
    if name == "pixelate":
        return each(lambda p, i: slow.pixelate(p, values[0]))
    if name == "jpeg_compression":
        return each(lambda p, i: slow.jpeg_compression(p, whole(values[0])))
    if name == "impulse_noise":
        dice = rng.uniform(3, size, size).permute(0, 2, 3, 1).numpy()
        salt, pepper = dice < values[0], dice < values[0] / 2
        return each(lambda p, i: np.where(pepper[i], 0.0, np.where(salt[i], 1.0, p / 255)))
    if name == "glass_blur":
        sigma, delta, rounds = values[0], whole(values[1]), whole(values[2])
        inner = size - 2 * delta
        jumps = []
        for _ in range(rounds):
            first = rng.integers(-delta, delta, inner, inner).numpy()
            jumps.append((first, rng.integers(-delta, delta, inner, inner).numpy()))
        return each(lambda p, i: slow.glass_blur(p, sigma, delta, [(x[i], y[i]) for x, y in jumps]))
    if name == "motion_blur":
        angle = rng.uniform(1, low=-math.pi / 4, high=math.pi / 4)[:, 0].tolist()
        return each(
            lambda p, i: slow.motion_blur_levels(p.astype(float), whole(values[0]), values[1], angle[i]).astype(
                np.uint8
            )
        )
    if name == "snow":
        draws = rng.normal(1, size, size)[:, 0].numpy().astype(np.float64)
        angle = rng.uniform(1, low=-0.75 * math.pi, high=-0.25 * math.pi)[:, 0].tolist()
        return each(lambda p, i: slow.snow(p, values, draws[i], angle[i]))
    if name == "fog":
        draws, step = [], size
        while step >= 2:
            draws += [rng.uniform(size // step, size // step, low=-1, high=1).numpy() for _ in range(3)]
            step //= 2
        return each(lambda p, i: slow.fog(p, values[0], slow.plasma(size, values[1], [d[i] for d in draws])))
    if name == "elastic_transform":
        alpha, sigma, jitter = (value * elastic_unit(size) for value in values)
        moved = rng.uniform(3, 2, low=-jitter, high=jitter).numpy().astype(np.float64)
        fields = rng.uniform(2, size, size, low=-1, high=1).numpy().astype(np.float64)
        return each(lambda p, i: slow.elastic_transform(p, alpha, sigma, moved[i], fields[i]))
    if name == "spatter":
        draws = rng.normal(1, size, size)[:, 0].numpy().astype(np.float64)
        kind = slow.mud if values[5] == 1 else slow.water
        return each(lambda p, i: kind(p, values, draws[i]))
    raise AssertionError(f"no slow version of {name}")


# Largest mean difference in levels, and share of values that may differ by more than one level. Zero where the
# arithmetic is the same; elsewhere float32 may fall on the other side of a rounding step now and then.
EXACT, CLOSE = (0.0, 0.0), (0.01, 0.0005)
TOLERANCE = {
    "impulse_noise": EXACT,
    "pixelate": EXACT,
    "jpeg_compression": EXACT,
    "glass_blur": (0.01, 0.0),
    "snow": (0.02, 0.001),
    "spatter": (0.05, 0.002),
    "elastic_transform": (0.02, 0.002),
}


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("name", [n for n in (*CANONICAL, *EXTRA) if n not in ("shot_noise", "frost")])
def test_equals_the_slow_version(name: str, severity: int, pictures: Tensor) -> None:
    images = pictures[:3]
    fast = pixels(corrupt(images, name, severity, seed=SEED)).astype(int)
    difference = np.abs(fast - slow_batch(name, images, severity).astype(int))
    mean, far = TOLERANCE.get(name, CLOSE)
    assert difference.mean() <= mean
    assert (difference > 1).mean() <= far


@pytest.mark.parametrize("name", ["defocus_blur", "glass_blur", "zoom_blur", "fog", "elastic_transform", "pixelate"])
def test_equals_the_slow_version_at_64_pixels(name: str) -> None:
    images = picture_batch(1, 64)
    fast = pixels(corrupt(images, name, 5, seed=SEED)).astype(int)
    difference = np.abs(fast - slow_batch(name, images, 5).astype(int))
    assert difference.mean() <= 0.02
    assert (difference > 1).mean() <= 0.002


@pytest.mark.parametrize(
    ("name", "severity"),
    [("pixelate", 1), ("pixelate", 3), ("pixelate", 5), ("jpeg_compression", 5), ("gaussian_blur", 2), ("spatter", 3)],
)
def test_equals_the_slow_version_at_224_pixels(name: str, severity: int) -> None:
    images = picture_batch(1, 224)
    fast = pixels(corrupt(images, name, severity, seed=SEED)).astype(int)
    difference = np.abs(fast - slow_batch(name, images, severity).astype(int))
    if name in ("pixelate", "jpeg_compression"):
        assert difference.max() == 0
    assert difference.mean() <= 0.02
    assert (difference > 1).mean() <= 0.002


@pytest.mark.parametrize("reach", [1, 6, 16])
def test_narrow_maps_in_blocks_equal_the_whole_matrix(reach: int) -> None:
    images = picture_batch(2, 150).float()
    matrix = gaussian_map(150, reach / 4, 4.0, "reflect", images.device)
    assert torch.equal(separable(images, matrix, reach), separable(images, matrix))


@pytest.mark.parametrize("severity", [1, 4, 5])
def test_large_discs_equal_direct_correlation(severity: int) -> None:
    images = picture_batch(1, 224)[:, :, :, :]
    fast = pixels(corrupt(images, "defocus_blur", severity)).astype(int)
    difference = np.abs(fast - slow_batch("defocus_blur", images, severity).astype(int))
    assert difference.max() <= 1 and difference.mean() < 0.01


@pytest.mark.parametrize(
    ("radius", "pixels_inside"), [(0.5, 1), (1, 5), (1.5, 9), (2.5, 21), (3, 29), (6, 113), (10, 317)]
)
def test_discs_have_the_published_support(radius: float, pixels_inside: int) -> None:
    from slomofast.corruptions.blur import disc

    assert int((disc(radius, 0.0) > 0).sum()) == pixels_inside


@pytest.mark.parametrize(("size", "counts"), [(32, (7, 12, 16, 21, 26)), (224, (12, 16, 11, 13, 11))])
def test_zoom_blur_uses_the_published_number_of_factors(size: int, counts: tuple[int, ...]) -> None:
    assert tuple(len(np.arange(1, *level("zoom_blur", s, size))) for s in range(1, 6)) == counts


def test_glass_chains_equal_the_loop_for_wide_jumps() -> None:
    """Jumps of up to four pixels make pixels copy from pixels that were themselves rewritten."""
    from slomofast.corruptions.blur import shuffle_sources

    size, delta = 40, 4
    sources = shuffle_sources(size, delta, SampleRng(1, torch.arange(2)))
    again = SampleRng(1, torch.arange(2))
    inner = size - 2 * delta
    jump_x, jump_y = again.integers(-delta, delta, inner, inner), again.integers(-delta, delta, inner, inner)
    for i in range(2):
        held = np.arange(size * size).reshape(size, size)
        for h in range(size - delta, delta, -1):
            for w in range(size - delta, delta, -1):
                dx, dy = int(jump_x[i, h - delta - 1, w - delta - 1]), int(jump_y[i, h - delta - 1, w - delta - 1])
                held[h, w] = held[h + dy, w + dx]
        assert np.array_equal(held.ravel(), sources[i].numpy())


@pytest.mark.parametrize("photons", [500.0, 50.0, 3.0])
def test_shot_noise_counts_follow_the_poisson_law(photons: float) -> None:
    from slomofast.corruptions.noise import _poisson_of_levels

    grey = torch.tensor([0, 1, 40, 128, 255], dtype=torch.int32)
    whole_levels = grey[:, None].expand(5, 40_000).contiguous()
    counts = _poisson_of_levels(whole_levels, photons, SampleRng(0, torch.arange(5)))
    expected = photons * grey.float() / 255
    error = 5 * (expected / 40_000).sqrt() + 1e-6
    assert ((counts.mean(1) - expected).abs() <= error).all()
    assert (counts.var(1) / expected.clamp(min=1e-9))[1:].sub(1).abs().max() < 0.05
    assert torch.equal(counts, counts.round()) and (counts[0] == 0).all()


def test_shot_noise_matches_poisson_probabilities() -> None:
    from slomofast.corruptions.noise import _poisson_of_levels

    levels = torch.full((1, 200_000), 51, dtype=torch.int32)  # mean 10 of 50
    counts = _poisson_of_levels(levels, 50.0, SampleRng(5, torch.arange(1))).long().flatten().numpy()
    mass = np.array([math.exp(k * math.log(10) - 10 - math.lgamma(k + 1)) for k in range(19)])
    expected = np.array([mass[:3].sum(), *mass[3:], 1 - mass.sum()]) * counts.size
    observed = np.bincount(np.clip(counts, 2, 19) - 2, minlength=18)
    assert ((observed - expected) ** 2 / expected).sum() < 46  # 17 degrees of freedom: exceeded once in 5000


def test_shot_noise_of_float_images_keeps_mean_and_variance() -> None:
    value = 100.4 / 255
    images = torch.full((40, 3, 32, 32), value)
    noisy = corrupt(images, "shot_noise", 1)
    assert abs(float(noisy.mean()) - value) < 5e-4
    assert abs(float(noisy.var()) / (value / 500) - 1) < 0.03


def test_frost_blends_a_window_of_a_texture(pictures: Tensor) -> None:
    """Frost minus the weighted image is a piece of one of the textures."""
    keep, ice = level("frost", 3, 32)
    images = pictures.float() / 255 * 0.5
    frozen = corrupt(images, "frost", 3)
    texture = frost_texture(0.2, 32, torch.device("cpu"))
    for image, result in zip(images, frozen, strict=True):
        crop = (result - keep * image) / ice
        found = 0
        for width, height, start in zip(texture.widths, texture.heights, texture.starts, strict=True):
            sheet = texture.pixels[:, start : start + width * height].view(3, height, width)
            corner = (sheet[:, None, : height - 31, : width - 31] - crop[:, :1, :1, None]).abs().amax((0, 1))
            for top, left in (corner < 1e-4).nonzero().tolist():
                window = sheet[:, top : top + 32, left : left + 32]
                found += bool(((window - crop).abs() < 1e-3).all())
        assert found >= 1


def test_plasma_spans_the_unit_interval() -> None:
    cloud = plasma(64, 1.75, SampleRng(0, torch.arange(4)))
    assert torch.equal(cloud.amin((1, 2)), torch.zeros(4)) and torch.equal(cloud.amax((1, 2)), torch.ones(4))


@pytest.mark.parametrize("quality", [95, 80, 40, 10])
@pytest.mark.parametrize("size", [32, 40])
def test_tensor_jpeg_agrees_with_the_codec(quality: int, size: int) -> None:
    levels = picture_batch(8, size).float()
    difference = (jpeg_tensor(levels, quality) - jpeg_files(levels, quality)).abs()
    # Apart from rounding, a coefficient may fall on the other side of a tie and shift a block by a step.
    assert float(difference.mean()) < 0.1
    assert float((difference > 3).float().mean()) < 0.01


def test_water_steps_equal_their_slow_versions() -> None:
    draws = SampleRng(0, torch.arange(3)).normal(1, 32, 32).mul(0.3).add(0.65)
    levels = torch.stack([torch.from_numpy(slow.gaussian_filter(d[0].numpy(), 1.0))[None] for d in draws]).float()
    levels = levels.mul(levels >= 0.69).clamp(0, 1).mul(255).floor()
    found = fast_water.canny_edges(levels)
    for got, image in zip(found, levels, strict=True):
        assert np.array_equal(got[0].numpy(), slow.edges(image[0].numpy()))
    assert found.any()
    away = fast_water.distance_to(found).clamp(max=20)
    from scipy import ndimage

    for got, mask in zip(away, found, strict=True):
        expected = np.minimum(ndimage.distance_transform_edt(~mask[0].numpy()), 20)
        assert np.allclose(got[0].numpy(), expected, atol=1e-4)
    equal = fast_water.equalise(levels)
    for got, image in zip(equal, levels, strict=True):
        assert np.array_equal(got[0].numpy().astype(np.uint8), slow.equalised(image[0].numpy().astype(np.uint8)))
