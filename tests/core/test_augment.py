"""Augmentations: ranges, randomness, and agreement with obvious versions."""

import colorsys

import pytest
import torch

from slomofast import augment as A
from slomofast.core.rng import Rng


def _rng(seed: int = 0) -> Rng:
    return Rng(seed, torch.device("cpu"))


@pytest.mark.parametrize("per", ["batch", "image"])
@pytest.mark.parametrize("chain", [A.MEAN_TEACHER, A.MEAN_TEACHER_SOFT, A.WEIGHT_ENSEMBLE])
def test_chain_keeps_shape_and_range_and_is_seeded(chain: A.Chain, per: A.Per) -> None:
    x = torch.rand(5, 3, 16, 16)
    y = A.augment(x, _rng(1), chain, per)
    assert y.shape == x.shape and y.min() >= 0 and y.max() <= 1
    assert torch.equal(y, A.augment(x, _rng(1), chain, per))
    assert not torch.equal(y, A.augment(x, _rng(2), chain, per))


def test_one_draw_for_the_batch_or_one_per_image() -> None:
    x = torch.rand(1, 3, 16, 16).repeat(4, 1, 1, 1)
    shared = A.augment(x, _rng(), A.WEIGHT_ENSEMBLE, "batch")
    own = A.augment(x, _rng(), A.WEIGHT_ENSEMBLE, "image")
    assert torch.equal(shared[0], shared[1]) and not torch.allclose(own[0], own[1], atol=1e-3)


def test_hue_against_colorsys() -> None:
    x = torch.rand(1, 3, 4, 4, dtype=torch.float64)
    for shift in (-0.3, 0.0, 0.07, 0.5):
        y = A.adjust_hue(x, shift)
        for i in range(4):
            for j in range(4):
                h, s, v = colorsys.rgb_to_hsv(*x[0, :, i, j].tolist())
                expected = colorsys.hsv_to_rgb((h + shift) % 1.0, s, v)
                assert y[0, :, i, j].tolist() == pytest.approx(expected, abs=1e-6)


def test_grey_images_keep_their_hue_and_single_channels_work() -> None:
    grey = torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(A.adjust_hue(grey.expand(-1, 3, -1, -1), 0.2), grey.expand(-1, 3, -1, -1))
    assert A.augment(grey, _rng()).shape == grey.shape


def test_warp_without_motion_is_the_identity_or_the_mirror() -> None:
    still = A.Chain(
        brightness=(1, 1), contrast=(1, 1), saturation=(1, 1), hue=(0, 0), gamma=(1, 1), degrees=0, translate=0,
        scale=(1, 1), blur_sigma=(0.001, 0.001), noise=0,
    )  # fmt: skip
    x = torch.rand(2, 3, 9, 12)
    seen = set()
    for seed in range(8):
        y = A.augment(x, _rng(seed), still)
        plain, mirrored = torch.allclose(y, x, atol=1e-5), torch.allclose(y, x.flip(3), atol=1e-5)
        assert plain != mirrored
        seen.add(plain)
    assert seen == {True, False}


def test_warp_equals_padding_then_rotating_then_cropping() -> None:
    """The single resampling against the long way: pad by half, rotate the big canvas, crop the centre."""
    turn = A.Chain(
        brightness=(1, 1), contrast=(1, 1), saturation=(1, 1), hue=(0, 0), gamma=(1, 1), degrees=15, translate=0,
        scale=(1, 1), border="reflection", blur_sigma=None, noise=0, flip=False,
    )  # fmt: skip
    x = torch.rand(1, 3, 16, 16)
    y = A.augment(x, _rng(3), turn)
    padded = torch.nn.functional.pad(x, (8, 8, 8, 8), mode="reflect")
    n = padded.shape[-1]
    rng = _rng(3)
    A.colour_jitter(x, rng, turn, 1)
    angle = rng.uniform(1, low=-15, high=15) * torch.pi / 180
    c = torch.arange(n, dtype=torch.float32) - (n - 1) / 2
    v, u = torch.meshgrid(c, c, indexing="ij")
    grid = torch.stack([angle.cos() * u + angle.sin() * v, angle.cos() * v - angle.sin() * u], -1)[None] * 2 / (n - 1)
    long = torch.nn.functional.grid_sample(padded, grid, align_corners=True)[..., 8:-8, 8:-8]
    torch.testing.assert_close(y, long, rtol=1e-3, atol=1e-4)


def test_destroy_keeps_what_it_should() -> None:
    x = torch.rand(3, 3, 16, 16)
    patch = A.destroy(x, _rng(), "patch")
    pixel = A.destroy(x, _rng(), "pixel")
    for y in (patch, pixel):
        assert not torch.equal(y, x)
        torch.testing.assert_close(y.flatten(2).sort(2).values, x.flatten(2).sort(2).values)
    blocks = {tuple(x[0, :, i : i + 4, j : j + 4].flatten().tolist()) for i in range(0, 16, 4) for j in range(0, 16, 4)}
    moved = {
        tuple(patch[0, :, i : i + 4, j : j + 4].flatten().tolist()) for i in range(0, 16, 4) for j in range(0, 16, 4)
    }
    assert blocks == moved
    occluded = A.destroy(x, _rng(), "occlusion")
    torch.testing.assert_close(occluded[:, :, 4:12, 4:12], x.mean((2, 3), keepdim=True).expand(-1, -1, 8, 8))
    assert torch.equal(occluded[:, :, :4], x[:, :, :4])
    assert A.destroy(torch.rand(2, 3, 15, 18), _rng(), "patch").shape == (2, 3, 15, 18)
