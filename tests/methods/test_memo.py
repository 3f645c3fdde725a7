"""MEMO's step against numbers worked out in NumPy, its forgetting, and AugMix against Pillow."""

import by_hand
import numpy as np
import pytest
import torch
from torch import nn

import slomofast as sf
from slomofast import augment
from slomofast.core.rng import Rng
from slomofast.losses import marginal_entropy
from slomofast.methods import memo


def flat_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), *by_hand.network())


def test_marginal_entropy_by_hand() -> None:
    logits = torch.tensor([[[2.0, 0.0, 0.0]], [[0.0, 2.0, 0.0]]])  # two views of one sample
    p = by_hand.softmax(logits.numpy().astype(float)).mean(0)[0]
    assert float(marginal_entropy(logits)) == pytest.approx(float(-(p * np.log(p)).sum()), rel=1e-5)
    sure = torch.tensor([[[200.0, 0.0, 0.0]], [[200.0, 0.0, 0.0]]])
    assert float(marginal_entropy(sure)) == 0.0


def test_each_image_takes_its_own_step_from_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def views(x: torch.Tensor, *_: object) -> torch.Tensor:
        shifts = torch.tensor([[0.0, 0.1, 0.2, 0.3], [0.3, 0.0, -0.2, 0.1]]).view(2, 1, 2, 2)
        return x + shifts.repeat(len(x) // 2, 1, 1, 1)

    monkeypatch.setattr(memo, "augmix", views)
    x = by_hand.inputs(3).view(3, 1, 2, 2)
    adapter = sf.adapt(flat_net(), "memo", views=2, lr=0.5)
    found = adapter(x).numpy()
    start = np.concatenate([by_hand.GAMMA_BETA, by_hand.HEAD.reshape(-1)])

    def logits(theta: np.ndarray, rows: np.ndarray) -> np.ndarray:
        centred = rows - rows.mean(1, keepdims=True)
        unit = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
        return (unit * theta[:4] + theta[4:8]) @ theta[8:].reshape(3, 4).T

    for k in range(3):
        two = views(x[k : k + 1].repeat(2, 1, 1, 1)).flatten(1).numpy().astype(float)

        def loss(theta: np.ndarray) -> float:
            p = by_hand.softmax(logits(theta, two)).mean(0)  # noqa: B023
            return float(-(p * np.log(p)).sum())

        theta = start - 0.5 * by_hand.slope(loss, start)
        expected = logits(theta, x[k : k + 1].flatten(1).numpy().astype(float))
        assert np.allclose(found[k], expected[0], atol=1e-3)
        assert not np.allclose(expected, logits(start, x[k : k + 1].flatten(1).numpy().astype(float)), atol=1e-2)


def test_nothing_is_carried_over() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, 3)).eval()
    x = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    adapter = sf.adapt(net, "memo", views=4, lr=0.1, optimizer="adam").prepare(x)
    before = {key: value.clone() for key, value in adapter.student.state_dict().items()}
    changed = adapter(x)
    assert all(torch.equal(value, before[key]) for key, value in adapter.student.state_dict().items())
    assert not adapter.optimizer_student.first.any() and float(adapter.optimizer_student.count) == 0
    plain = adapter.predict(x)
    assert not torch.allclose(changed, plain, atol=1e-3)
    # BatchNorm mixes in each image's own statistics, whatever stands beside it
    assert torch.allclose(plain[1:2], adapter.predict(x[1:2]), atol=1e-6)


def test_the_views_of_a_large_batch_are_made_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    true = augment.augmix
    monkeypatch.setattr(memo, "augmix", lambda x, *rest: sizes.append(len(x)) or true(x, *rest))
    monkeypatch.setattr(memo, "VALUES_AT_ONCE", 3 * 4 * 12 * 2)
    adapter = sf.adapt(nn.Sequential(nn.Flatten(), nn.LayerNorm(12), nn.Linear(12, 3)), "memo", views=4)
    assert adapter(torch.rand(5, 3, 2, 2)).shape == (5, 3)
    assert sizes == [8, 8, 4]


# -- AugMix, against Pillow ----------------------------------------------------------------------------------------


@pytest.fixture
def picture() -> np.ndarray:
    """A smooth random 8-bit image (24, 24, 3) that does not use the whole range."""
    noise = torch.rand(1, 3, 6, 6, generator=torch.Generator().manual_seed(3))
    smooth = nn.functional.interpolate(noise, (24, 24), mode="bicubic").clamp(0.1, 0.8)[0]
    return (smooth.permute(1, 2, 0) * 255).byte().numpy()


def tensor(picture: np.ndarray) -> torch.Tensor:
    return torch.tensor(picture).permute(2, 0, 1)[None].float()


def difference(found: torch.Tensor, image: object) -> float:
    return float(np.abs(found[0].permute(1, 2, 0).numpy() - np.asarray(image, dtype=float)).max())


def test_tone_operations_are_pillows(picture: np.ndarray) -> None:
    ops = pytest.importorskip("PIL.ImageOps")
    from PIL import Image

    image, x = Image.fromarray(picture), tensor(picture)
    assert difference(augment.equalise(x), ops.equalize(image)) == 0
    assert difference(augment.autocontrast(x), ops.autocontrast(image)) <= 1
    assert difference(augment.posterise(x), ops.posterize(image, 4)) == 0
    assert difference(augment.solarise(x, torch.tensor([120.0])), ops.solarize(image, 120)) == 0
    flat = torch.full((1, 3, 5, 5), 77.0)
    assert torch.equal(augment.equalise(flat), flat) and torch.equal(augment.autocontrast(flat), flat)


@pytest.mark.parametrize("kind, level", [(4, 0.08), (4, -0.08), (5, 0.1), (6, -0.1), (7, 0.13), (8, -0.13)])
def test_motions_are_pillows(picture: np.ndarray, kind: int, level: float) -> None:
    pytest.importorskip("PIL")
    from PIL import Image

    image, x = Image.fromarray(picture), tensor(picture)
    if kind == 4:
        expected = image.rotate(-int(30 * level), Image.Resampling.BILINEAR)
    else:
        coefficients = {
            5: (1, 0.3 * level, 0, 0, 1, 0),
            6: (1, 0, 0, 0.3 * level, 1, 0),
            7: (1, 0, int(8 * level), 0, 1, 0),
            8: (1, 0, 0, 0, 1, int(8 * level)),
        }[kind]
        expected = image.transform((24, 24), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR)
    matrix = augment._motion(x, torch.tensor([kind]), torch.tensor([level]))
    assert difference(augment.affine(x, matrix), expected) <= 2
    assert difference(x, expected) > 10, "the motion must show"


def test_views_are_images_near_the_original_and_repeat_with_the_seed() -> None:
    x = torch.rand(40, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    for crop in ("pad", "resized", "none"):
        first = augment.augmix(x, Rng(4, torch.device("cpu")), crop)
        assert first.shape == x.shape and float(first.min()) >= 0 and float(first.max()) <= 1
        assert torch.equal(first, augment.augmix(x, Rng(4, torch.device("cpu")), crop))
        assert not torch.equal(first, augment.augmix(x, Rng(5, torch.device("cpu")), crop))
    mean_change = (augment.augmix(x, Rng(4, torch.device("cpu")), "none") - x).abs().mean((1, 2, 3))
    assert float(mean_change.median()) < 0.15 and int((mean_change > 1e-3).sum()) > 35


def test_a_padded_crop_shifts_by_whole_pixels() -> None:
    x = torch.zeros(200, 1, 16, 16)
    x[:, :, 8, 8] = 255.0
    cropped = augment._random_crop(x, Rng(0, torch.device("cpu")), "pad")
    assert set(cropped.unique().tolist()) == {0.0, 255.0} and (cropped.sum((1, 2, 3)) == 255).all()
    rows = cropped.amax(3).argmax(2).unique().tolist()
    assert rows == list(range(4, 13))


def test_vectors_are_refused_with_a_remedy() -> None:
    with pytest.raises(sf.InputError, match="images"):
        sf.adapt(by_hand.network(), "memo")(by_hand.inputs())
