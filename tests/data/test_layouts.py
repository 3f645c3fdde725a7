"""Every official layout: written small, read back, and refused when something is wrong with it."""

import io
import sys
import tarfile

import numpy as np
import pytest
import torch
from layouts import picture, write_image, write_shard

from slomofast.core.errors import ConfigError, DataError
from slomofast.corruptions import CANONICAL, GROUPS
from slomofast.data import open_data
from slomofast.data.images import encode_jpeg
from slomofast.streams import Stream


def close(images, seeds, side):
    expected = np.stack([picture(s, side) for s in seeds]).transpose(0, 3, 1, 2).astype(int)
    return np.abs(images.numpy().astype(int) - expected).mean() < 3


class TestCifar:
    def test_rows_are_severity_major(self, cifar_c):
        data = open_data(f"cifar10_c:{cifar_c}", size=12)
        images = data.load("fog", 3, np.array([5, 2]))
        d = CANONICAL.index("fog")
        assert images.dtype == torch.uint8
        assert images.shape == (2, 3, 32, 32)
        assert images[:, 0, 0, 0].tolist() == [24 + 5 + 7 * d, 24 + 2 + 7 * d]
        assert (images[:, 1] == 200).all()
        assert data.labels("fog")[[10, 11]].tolist() == [0, 1]
        assert (data.family, data.classes, data.size, data.domains) == ("cifar", 10, 12, CANONICAL)
        assert data.groups == GROUPS

    def test_a_hundred_classes_are_a_family_of_their_own(self, cifar_c):
        assert open_data(f"cifar100_c:{cifar_c}", size=12).family == "cifar100"

    def test_files_stay_on_disk(self, cifar_c):
        data = open_data(f"cifar10_c:{cifar_c}", size=12)
        assert all(isinstance(a, np.memmap) for a in data._arrays.values())

    def test_through_a_stream(self, cifar_c):
        data = open_data(f"cifar10_c:{cifar_c}", size=12)
        batches = list(Stream("continual", data, batch_size=5, domains=["fog", "snow"]))
        assert [len(b) for b in batches] == [5, 5, 2, 5, 5, 2]
        d = CANONICAL.index("fog")
        rows = torch.cat([b.images for b in batches[:3]])[:, 0, 0, 0].mul(255).round().long() - 7 * d - 48
        assert sorted(rows.tolist()) == list(range(12))
        assert torch.equal(torch.cat([b.target for b in batches[:3]]), rows % 10)

    def test_wrong_rows_labels_and_missing_files_are_named(self, cifar_c):
        with pytest.raises(DataError, match=r"60 x 32 x 32 x 3, expected 50000"):
            open_data(f"cifar10_c:{cifar_c}")
        np.save(cifar_c / "labels.npy", np.full(60, 10))
        with pytest.raises(DataError, match=r"label 10 of row 0 is outside 0\.\.9"):
            open_data(f"cifar10_c:{cifar_c}", size=12)
        np.save(cifar_c / "labels.npy", np.arange(60) % 10)
        with pytest.raises(DataError, match="disagree"):
            open_data(f"cifar10_c:{cifar_c}", size=12)
        (cifar_c / "frost.npy").unlink()
        with pytest.raises(DataError, match=r"lacks frost.npy"):
            open_data(f"cifar10_c:{cifar_c}", size=12)
        path = cifar_c / "snow.npy"
        path.write_bytes(path.read_bytes()[:5000])
        with pytest.raises(DataError, match=r"snow.npy is not a readable"):
            open_data(f"cifar10_c:{cifar_c}", size=12, domains="snow")

    def test_a_stored_set_has_whole_severities(self, cifar_c):
        data = open_data(f"cifar10_c:{cifar_c}", size=12)
        with pytest.raises(ConfigError, match=r"1 to 5, not 2\.5"):
            data.load("fog", 2.5, np.arange(2))
        with pytest.raises(ConfigError, match="0 to 11, got 3 to 12"):
            data.load("fog", 2, np.array([3, 12]))

    def test_fingerprint_follows_the_pixels(self, cifar_c):
        before = open_data(f"cifar10_c:{cifar_c}", size=12).fingerprint
        assert open_data(f"cifar10_c:{cifar_c}", size=12).fingerprint == before
        np.save(cifar_c / "fog.npy", np.zeros((60, 32, 32, 3), np.uint8))
        assert open_data(f"cifar10_c:{cifar_c}", size=12).fingerprint != before


OPTIONS = {"classes": 3, "image_size": 64, "domains": ["gaussian_noise", "fog"]}


class TestImageNetC:
    def test_images_and_labels(self, imagenet_c):
        data = open_data(f"imagenet_c:{imagenet_c}", **OPTIONS)
        assert data.labels("fog").tolist() == [0, 0, 1, 1, 2, 2]
        assert close(data.load("fog", 4, np.array([3, 0])), [1411, 1400], 64)

    def test_the_tiny_form_is_the_same_at_64_pixels(self, imagenet_c):
        data = open_data(f"tinyimagenet_c:{imagenet_c}", classes=3, domains="gaussian_noise,fog")
        assert (data.name, data.image_size, data.size) == ("tinyimagenet_c", 64, 6)

    def test_through_a_stream(self, imagenet_c):
        data = open_data(f"imagenet_c:{imagenet_c}", **OPTIONS)
        stream = Stream("continual", data, batch_size=4)
        batches = list(stream)
        assert [len(b) for b in batches] == [4, 2, 4, 2]
        assert sorted(torch.cat([b.target for b in batches[:2]]).tolist()) == [0, 0, 1, 1, 2, 2]

    def test_a_subset_takes_an_equal_share_of_every_class(self, imagenet_c):
        data = open_data(f"imagenet_c:{imagenet_c}", subset=3, **OPTIONS)
        assert data.labels("fog").tolist() == [0, 1, 2]
        assert data.paths == open_data(f"imagenet_c:{imagenet_c}", subset=3, **OPTIONS).paths
        with pytest.raises(ConfigError, match="no multiple of the 3 classes"):
            open_data(f"imagenet_c:{imagenet_c}", subset=4, **OPTIONS)

    def test_a_list_of_files(self, imagenet_c, tmp_path):
        listed = tmp_path / "files.txt"
        listed.write_text("val/n03/n03_1.JPEG 2\nn01/n01_0.JPEG\n")
        data = open_data(f"imagenet_c:{imagenet_c}", files=str(listed), **OPTIONS)
        assert data.labels("fog").tolist() == [2, 0]
        assert close(data.load("gaussian_noise", 1, np.array([0])), [121], 64)
        listed.write_text("n09/absent.JPEG\n")
        with pytest.raises(DataError, match=r"n09/absent.JPEG"):
            open_data(f"imagenet_c:{imagenet_c}", files=str(listed), **OPTIONS)

    def test_class_folders_too_many_or_too_few(self, imagenet_c):
        with pytest.raises(DataError, match="3 class folders where 1000 are expected"):
            open_data(f"imagenet_c:{imagenet_c}", image_size=64, domains="fog")
        write_image(imagenet_c / "fog" / "2" / "n04" / "x.JPEG", 1, 64)
        with pytest.raises(DataError, match=r"1 too many \(n04\)"):
            open_data(f"imagenet_c:{imagenet_c}", **OPTIONS)

    def test_a_missing_corruption_severity_or_image(self, imagenet_c):
        with pytest.raises(DataError, match="lacks the corruptions shot_noise"):
            open_data(f"imagenet_c:{imagenet_c}", classes=3, image_size=64)
        with pytest.raises(DataError, match="64x64 pixels where 224x224"):
            open_data(f"imagenet_c:{imagenet_c}", classes=3, domains="fog")
        data = open_data(f"imagenet_c:{imagenet_c}", **OPTIONS)
        bad = imagenet_c / "fog" / "5" / "n02" / "n02_0.JPEG"
        bad.write_bytes(bad.read_bytes()[:40])
        with pytest.raises(DataError, match=r"n02_0.JPEG is not a readable image"):
            data.load("fog", 5, np.arange(6))
        bad.unlink()
        with pytest.raises(DataError, match=r"n02_0.JPEG is missing"):
            data.load("fog", 5, np.arange(6))
        (imagenet_c / "fog" / "5").rename(imagenet_c / "fog" / "6")
        with pytest.raises(DataError, match="no folder"):
            open_data(f"imagenet_c:{imagenet_c}", **OPTIONS)


class TestNaturalShift:
    @pytest.fixture
    def renditions(self, tmp_path):
        for c, wnid in enumerate(("n02", "n05")):
            for i in range(2):
                write_image(tmp_path / "imagenet-r" / wnid / f"art_{i}.jpg", 10 * c + i, 80)
        return tmp_path / "imagenet-r"

    def test_logits_are_cut_to_the_classes_of_the_set(self, renditions, tmp_path):
        (tmp_path / "wnids.txt").write_text("n01 tench\nn02 shark\nn03\nn05\n")
        data = open_data(f"imagenet_r:{renditions}", classes=2, wnids=str(tmp_path / "wnids.txt"), image_size=56)
        assert data.class_mask.tolist() == [1, 3]
        assert data.labels("imagenet_r").tolist() == [0, 0, 1, 1]
        assert data.load("imagenet_r", 5, np.array([2])).shape == (1, 3, 56, 56)
        assert data.domains == ("imagenet_r",)
        batches = list(Stream("continual", data, batch_size=3))
        assert sorted(torch.cat([b.target for b in batches]).tolist()) == [0, 0, 1, 1]

    def test_the_list_of_classes_is_needed_and_checked(self, renditions, monkeypatch):
        monkeypatch.setitem(sys.modules, "timm", None)
        monkeypatch.setitem(sys.modules, "timm.data", None)
        with pytest.raises(ConfigError, match="pass wnids="):
            open_data(f"imagenet_r:{renditions}", classes=2)
        with pytest.raises(DataError, match="no class of the network"):
            open_data(f"imagenet_r:{renditions}", classes=2, wnids=["n02", "n04", "n06"])
        with pytest.raises(DataError, match="sorted order"):
            open_data(f"imagenet_r:{renditions}", classes=2, wnids=["n05", "n02"])
        with pytest.raises(DataError, match="2 class folders where 200"):
            open_data(f"imagenet_r:{renditions}", wnids=["n02", "n05", "n06"])

    def test_sketch_has_every_class_and_no_mask(self, renditions):
        data = open_data(f"imagenet_sketch:{renditions}", classes=2)
        assert data.class_mask is None
        assert data.load("imagenet_sketch", 5, np.array([0])).shape == (1, 3, 224, 224)


class TestCcc:
    def test_order_labels_and_pixels(self, shards):
        data = open_data(f"ccc:{shards}")
        assert data.ordered
        assert (data.size, data.image_size, data.domains) == (8, 48, ("ccc",))
        assert data.labels("ccc").tolist() == list(range(8))
        assert close(data.load("ccc", 5, np.array([6, 1])), [6, 1], 48)

    def test_plain_member_names_and_folders_in_the_archive(self, tmp_path):
        with tarfile.open(tmp_path / "a.tar", "w") as archive:
            for name, content in (("x/1.jpg", encode_jpeg(picture(3, 48), 95)), ("x/1.cls", b"3")):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        assert open_data(f"ccc:{tmp_path}").labels("ccc").tolist() == [3]

    def test_a_stream_keeps_the_order(self, shards):
        batches = list(Stream("continual", open_data(f"ccc:{shards}"), batch_size=3, seed=9))
        assert torch.cat([b.target for b in batches]).tolist() == list(range(8))

    def test_the_index_is_remembered(self, shards, tmp_path):
        first = open_data(f"ccc:{shards}")
        assert len(list((tmp_path / "home" / "indices").iterdir())) == 2
        again = open_data(f"ccc:{shards}")
        assert again.fingerprint == first.fingerprint
        assert torch.equal(again.load("ccc", 1, np.arange(8)), first.load("ccc", 1, np.arange(8)))

    def test_damaged_shards_are_named(self, shards):
        with pytest.raises(DataError, match=r"label 7 of row 7 is outside 0\.\.6"):
            open_data(f"ccc:{shards}", classes=7)
        write_shard(shards / "serial_00002.tar", [9, 10], omit=("sample_10.output.cls",))
        with pytest.raises(DataError, match="sample_10 has an image or a label but not both"):
            open_data(f"ccc:{shards}")
        (shards / "serial_00002.tar").write_bytes((shards / "serial_00000.tar").read_bytes()[:1500])
        with pytest.raises(DataError, match=r"serial_00002.tar"):
            open_data(f"ccc:{shards}")
        with pytest.raises(DataError, match=r"no .tar shards"):
            open_data(f"ccc:{shards.parent}")
