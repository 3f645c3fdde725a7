"""Clean images corrupted on the fly: glyphs, packs, folders, arrays."""

import numpy as np
import pytest
import torch
from layouts import picture, write_image

from slomofast.core.errors import ConfigError, DataError
from slomofast.corruptions import CANONICAL, corrupt
from slomofast.data import Arrays, open_data, write_pack
from slomofast.data._draws import uniform
from slomofast.data.corrupted import shifted
from slomofast.data.folder import random_box
from slomofast.data.synthetic import LETTERS, draw_glyphs
from slomofast.streams import Stream, make_setting


class TestGlyphs:
    def test_an_image_is_the_same_in_every_request(self):
        whole = open_data("glyphs", size=700)
        part = open_data("glyphs", size=1200)
        index = np.array([640, 3, 511])
        assert torch.equal(whole.clean(index), part.clean(index))
        assert torch.equal(whole.clean(np.arange(700))[index], whole.clean(index))
        assert (whole.labels("fog")[index] == part.labels("fog")[index]).all()

    def test_splits_differ_and_classes_are_balanced(self):
        train, test = open_data("glyphs", split="train", size=300), open_data("glyphs", size=300)
        assert not torch.equal(train.clean(np.arange(9)), test.clean(np.arange(9)))
        counts = np.bincount(open_data("glyphs", size=5000).labels("fog"), minlength=10)
        assert counts.min() > 400
        assert train.fingerprint != test.fingerprint

    def test_labels_name_the_letters_that_are_drawn(self):
        from slomofast.models import load_source

        images, labels = draw_glyphs("test", np.arange(300))
        with torch.inference_mode():
            answers = load_source("glyphs")(images.float() / 255).argmax(1).numpy()
        assert (answers != labels).mean() < 0.1

    def test_facts(self):
        data = open_data("glyphs", size=50)
        assert (data.family, data.classes, data.image_size, data.domains) == ("cifar", 10, 32, CANONICAL)
        assert data.class_names == list(LETTERS)
        assert data.load("fog", 5, np.arange(3)).dtype == torch.uint8
        assert open_data("glyphs", domains="all").domains[-1] == "saturate"
        assert open_data("glyphs").size == 10_000

    def test_bad_options(self):
        with pytest.raises(ConfigError, match="train and test"):
            open_data("glyphs", split="val")
        with pytest.raises(ConfigError, match="takes no path"):
            open_data("glyphs:/somewhere")
        with pytest.raises(ConfigError, match="did you mean 'fog'"):
            open_data("glyphs", domains=["fogg"])
        with pytest.raises(ConfigError, match="did you mean 'size'"):
            open_data("glyphs", sise=3)
        with pytest.raises(ConfigError, match="did you mean 'glyphs'"):
            open_data("glyph")


@pytest.fixture
def pack(tmp_path):
    images = np.stack([picture(i) for i in range(20)])
    return write_pack(tmp_path / "small.npz", images, np.arange(20) % 4, ["a", "b", "c", "d"])


class TestPack:
    def test_images_and_labels(self, pack):
        data = open_data(f"pack:{pack}")
        expected = np.stack([picture(i) for i in (7, 2)]).transpose(0, 3, 1, 2).astype(int)
        assert np.abs(data.clean(np.array([7, 2])).numpy().astype(int) - expected).mean() < 3
        assert data.labels("fog")[[7, 2]].tolist() == [3, 2]
        assert (data.name, data.classes, data.size, data.family) == ("small", 4, 20, "cifar")

    def test_load_is_the_corruption_of_the_clean_image(self, pack):
        data = open_data(f"pack:{pack}", seed=5)
        index = np.array([11, 4])
        expected = corrupt(data.clean(index), "gaussian_noise", 3, seed=5, index=index)
        assert torch.equal(data.load("gaussian_noise", 3, index), expected)
        assert torch.equal(data.load("gaussian_noise", 3, index[::-1].copy()), expected.flip(0))
        assert torch.equal(data.load("fog", 0, index), data.clean(index))
        other = open_data(f"pack:{pack}", seed=6).load("gaussian_noise", 3, index)
        assert not torch.equal(other, expected)

    def test_fingerprint_says_what_decides_the_pixels(self, pack):
        prints = {
            open_data(f"pack:{pack}", **o).fingerprint for o in ({}, {"seed": 1}, {"size": 10}, {"domains": "fog,snow"})
        }
        assert len(prints) == 4
        assert open_data(f"pack:{pack}").fingerprint in prints

    def test_damage_is_named(self, pack, tmp_path):
        with np.load(pack) as kept:
            parts = dict(kept)
        bad = tmp_path / "bad.npz"
        np.savez(bad, **{**parts, "labels": parts["labels"] + 2})
        with pytest.raises(DataError, match=r"label 4 of row 2 is outside 0\.\.3"):
            open_data(f"pack:{bad}")
        np.savez(bad, **{**parts, "offsets": parts["offsets"][:-1]})
        with pytest.raises(DataError, match="20 labels need 21 offsets"):
            open_data(f"pack:{bad}")
        np.savez(bad, **{**parts, "data": parts["data"][:-5]})
        with pytest.raises(DataError, match="damaged"):
            open_data(f"pack:{bad}")
        np.savez(bad, data=parts["data"])
        with pytest.raises(DataError, match="lacks offsets"):
            open_data(f"pack:{bad}")
        broken = parts["data"].copy()
        broken[parts["offsets"][6] : parts["offsets"][6] + 30] = 0
        np.savez(bad, **{**parts, "data": broken})
        with pytest.raises(DataError, match="image 6 of"):
            open_data(f"pack:{bad}").clean(np.arange(3))
        bad.write_bytes(pack.read_bytes()[:900])
        with pytest.raises(DataError, match="not a readable"):
            open_data(f"pack:{bad}")
        with pytest.raises(DataError, match="no pack"):
            open_data(f"pack:{tmp_path}/absent.npz")
        with pytest.raises(ConfigError, match=r"size 21 is outside 1\.\.20"):
            open_data(f"pack:{pack}", size=21)

    def test_the_real_pack(self, shared_data):
        data = open_data(f"pack:{shared_data / 'tinyimagenet_val.npz'}", size=30)
        assert (data.classes, data.image_size, data.family) == (200, 64, "imagenet")
        assert data.load("motion_blur", 5, np.arange(4)).shape == (4, 3, 64, 64)

    def test_clean_batches(self, pack):
        batches = list(open_data(f"pack:{pack}").clean_loader(batch_size=8))
        assert [len(y) for _, y in batches] == [8, 8, 4]
        assert sorted(torch.cat([y for _, y in batches]).tolist()) == sorted(list(range(4)) * 5)
        assert all(float(x.max()) <= 1 for x, _ in batches)


class TestFolder:
    def test_labels_follow_sorted_folders(self, tree):
        data = open_data(f"folder:{tree}")
        assert (data.classes, data.size, data.image_size) == (3, 12, 32)
        assert data.labels("fog").tolist() == [0] * 4 + [1] * 4 + [2] * 4
        expected = picture(12).transpose(2, 0, 1).astype(int)
        assert np.abs(data.clean(np.array([6]))[0].numpy().astype(int) - expected).mean() < 3

    def test_large_images_get_the_central_square(self, tmp_path):
        from PIL import Image

        wide = np.zeros((100, 300, 3), np.uint8)
        wide[:, 100:200] = 255
        (tmp_path / "c" / "x").mkdir(parents=True)
        Image.fromarray(wide).save(tmp_path / "c" / "x" / "1.png")
        data = open_data(f"folder:{tmp_path / 'c'}", image_size=56)
        image = data.clean(np.array([0]))
        assert image.shape == (1, 3, 56, 56)
        assert (image > 200).all()  # 64 pixels high, 192 wide: the middle third holds the square

    def test_errors(self, tree, tmp_path):
        with pytest.raises(DataError, match="3 class folders where 2 are expected"):
            open_data(f"folder:{tree}", classes=2)
        (tree / "dog").mkdir()
        with pytest.raises(DataError, match=r"dog has no images"):
            open_data(f"folder:{tree}")
        with pytest.raises(DataError, match="no folder"):
            open_data(f"folder:{tmp_path}/absent")
        with pytest.raises(ConfigError, match="folder needs a path"):
            open_data("folder")
        with pytest.raises(DataError, match="data get cifar10_c"):
            open_data("cifar10_c")


class TestPairs:
    def test_second_follows_first(self):
        data = open_data("glyphs", size=20)
        index = np.array([4, 9])
        pair = data.load_pair(("contrast", 2.0), ("brightness", 1.0), index)
        seedless = data.load_pair(("contrast", 2.0), ("brightness", 1.0), index)
        assert torch.equal(pair, seedless)
        assert pair.dtype == torch.uint8
        swapped = data.load_pair(("brightness", 1.0), ("contrast", 2.0), index)
        assert not torch.equal(pair, swapped)

    def test_a_pair_at_nothing_is_the_varied_clean_image(self):
        data = open_data("glyphs", size=20)
        data.shift = 0
        index = np.array([4, 9])
        assert torch.equal(data.load_pair(("fog", 0.0), ("snow", 0.0), index), data.clean(index))

    def test_the_view_changes_with_the_point_on_the_path(self):
        data = Arrays(torch.arange(32 * 32 * 3, dtype=torch.int64).view(1, 3, 32, 32).to(torch.uint8), np.array([0]))
        views = {data.load_pair(("fog", 0.0), ("snow", 0.0), np.array([0]), draw=k).numpy().tobytes() for k in range(8)}
        assert len(views) > 4

    def test_shift_moves_and_reflects(self):
        image = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4).expand(1, 3, 4, 4)
        still = shifted(image, np.array([[0.9, 0.5, 0.5]], np.float32), 1, flip=True)
        assert torch.equal(still, image)
        mirrored = shifted(image, np.array([[0.1, 0.5, 0.5]], np.float32), 1, flip=True)
        assert torch.equal(mirrored, image.flip(3))
        up = shifted(image, np.array([[0.9, 0.99, 0.5]], np.float32), 1, flip=True)
        assert up[0, 0, :, 0].tolist() == [4, 8, 12, 8]

    def test_large_images_are_cropped_at_random_from_the_file(self, tmp_path):
        for i in range(2):
            write_image(tmp_path / "c" / "x" / f"{i}.jpg", i, 300)
        data = open_data(f"folder:{tmp_path / 'c'}")
        pair = data.load_pair(("contrast", 1.0), ("brightness", 0.25), np.array([0, 1]))
        assert pair.shape == (2, 3, 224, 224)
        assert not torch.equal(data.varied(np.array([0]), 1), data.varied(np.array([0]), 2))

    def test_random_boxes_have_the_stated_area_and_shape(self):
        draws = uniform("boxes", np.arange(300), 40).reshape(300, 10, 4)
        boxes = np.array([random_box(400, 300, d) for d in draws])
        width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
        assert (boxes >= 0).all()
        assert (boxes[:, 2] <= 400).all()
        assert (boxes[:, 3] <= 300).all()
        area, ratio = width * height / 120_000, width / height
        assert 0.075 < area.min() < 0.15
        assert area.max() > 0.85
        assert ratio.min() > 0.73
        assert ratio.max() < 1.37
        assert random_box(900, 100, np.full((10, 4), 0.999)) == (383, 0, 516, 100)

    def test_the_ccc_setting_runs_on_glyphs(self):
        data = open_data("glyphs", size=120)
        setting = make_setting("ccc", calibrated=False, speed=40, images=400)
        batch = next(iter(Stream(setting, data, batch_size=40)))
        assert batch.images.shape == (40, 3, 32, 32)


def test_cyclic_stream_on_glyphs_returns_to_the_same_images():
    data = open_data("glyphs", size=40)
    stream = Stream("cyclic", data, batch_size=40, domains=["fog", "contrast"])
    batches = list(stream)
    assert len(batches) == 4
    first, second = (torch.sort(b.images.flatten(1).sum(1))[0] for b in (batches[0], batches[2]))
    assert torch.equal(first, second)


def test_uniform_depends_on_key_and_image_alone():
    whole = uniform("k", np.arange(1000), 4)
    assert (uniform("k", np.array([77]), 2)[0] == whole[77, :2]).all()
    assert not (uniform("other", np.arange(1000), 4) == whole).any(1).all()
    assert abs(whole.mean() - 0.5) < 0.02
    assert whole.min() >= 0
    assert whole.max() < 1
    assert abs(np.corrcoef(whole[:, 0], whole[:, 1])[0, 1]) < 0.1


def test_arrays_are_checked():
    with pytest.raises(DataError, match=r"uint8 of shape"):
        Arrays(torch.rand(2, 3, 32, 32), np.zeros(2))
    with pytest.raises(DataError, match="as many labels"):
        Arrays(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), np.zeros(3))


@pytest.mark.gpu
def test_images_stay_on_the_device():
    data = open_data("glyphs", size=600, device="cuda")
    here = open_data("glyphs", size=600)
    index = np.array([5, 599])
    assert data.load("fog", 3, index).device.type == "cuda"
    assert torch.equal(data.clean(index).cpu(), here.clean(index))
