"""Writing layouts and checking them, from the functions and from the command line."""

import json
import tarfile

import numpy as np
import pytest
import torch
from layouts import write_image
from typer.testing import CliRunner

from slomofast.cli.__main__ import app
from slomofast.core.errors import ConfigError, DataError
from slomofast.data import open_data, write_pack
from slomofast.data.bench import _ahead, bench_loading
from slomofast.data.check import check_data
from slomofast.data.make import make_arrays, make_folders, make_shards
from slomofast.data.synthetic import LETTERS, draw_glyphs
from slomofast.streams import Ccc, Stream


class Stop(Exception):
    pass


def stop_after(calls):
    def progress(*_):
        nonlocal calls
        calls -= 1
        if not calls:
            raise Stop

    return progress


@pytest.fixture
def glyphs():
    return open_data("glyphs", size=20, domains="fog,gaussian_noise")


def test_arrays_read_back_as_cifar_c(glyphs, tmp_path):
    make_arrays(glyphs, tmp_path / "out")
    again = open_data(f"cifar10_c:{tmp_path / 'out'}", size=20, domains="fog,gaussian_noise")
    index = np.array([3, 17])
    for severity in (1, 5):
        assert torch.equal(again.load("fog", severity, index), glyphs.load("fog", severity, index))
    assert (again.labels("fog") == glyphs.labels("fog")).all()


def test_an_interrupted_array_continues_and_ends_in_the_same_bytes(glyphs, tmp_path):
    make_arrays(glyphs, tmp_path / "whole")
    with pytest.raises(Stop):
        make_arrays(glyphs, tmp_path / "out", stop_after(4), chunk=8)
    assert not (tmp_path / "out" / "fog.npy").exists()
    done = []
    make_arrays(glyphs, tmp_path / "out", lambda name, rows, _: done.append((name, rows)), chunk=8)
    assert done[0] == ("fog", 36)  # the fourth piece ended at row 28, of which none is made twice
    for name in ("fog", "gaussian_noise", "labels"):
        assert (tmp_path / "out" / f"{name}.npy").read_bytes() == (tmp_path / "whole" / f"{name}.npy").read_bytes()
    assert not list((tmp_path / "out").glob(".*part*"))


def test_folders_read_back_as_imagenet_c(tmp_path):
    data = open_data("glyphs", size=60, domains="fog")
    with pytest.raises(Stop):
        make_folders(data, tmp_path / "out", stop_after(2), severities=(1, 5), chunk=16)
    assert len(list((tmp_path / "out").rglob("*.JPEG"))) == 32
    make_folders(data, tmp_path / "out", severities=(1, 5), chunk=16)
    options = {"classes": 10, "image_size": 32, "domains": "fog", "severities": (1, 5)}
    again = open_data(f"imagenet_c:{tmp_path / 'out'}", **options)
    assert again.size == 60
    numbers = np.array([int(p.split("/")[1].split(".")[0]) for p in again.paths])
    assert (again.labels("fog") == data.labels("fog")[numbers]).all()
    mine, theirs = again.load("fog", 5, np.arange(60)).float(), data.load("fog", 5, numbers).float()
    assert (mine - theirs).abs().mean() < 8  # JPEG at quality 85
    assert not list((tmp_path / "out").rglob("*.part"))


def test_images_that_would_share_a_file_are_refused(tmp_path):
    for name in ("c/a.png", "c/b.png", "c/a.jpg", "d/a.png"):
        write_image(tmp_path / "clean" / name, 0, 32)
    data = open_data(f"folder:{tmp_path / 'clean'}", domains="fog")
    with pytest.raises(DataError, match=r"c/a.jpg and c/a.png would both become a.JPEG; rename"):
        make_folders(data, tmp_path / "out", severities=(1,))
    assert not (tmp_path / "out").exists()


def test_a_folder_takes_one_quality_only(glyphs, tmp_path):
    with pytest.raises(Stop):
        make_folders(glyphs, tmp_path / "out", stop_after(1), severities=(1,), quality=50, chunk=4)
    with pytest.raises(DataError, match="other images or options"):
        make_folders(glyphs, tmp_path / "out", severities=(1,))
    note = tmp_path / "out" / "slomofast.json"
    said = json.loads(note.read_text())
    note.write_text(json.dumps({key: value for key, value in said.items() if key != "quality"}))  # as it once was
    make_folders(glyphs, tmp_path / "out", severities=(1,), quality=50)
    assert json.loads(note.read_text()) == said


def test_an_error_while_reading_ahead_is_raised():
    def read(index):
        if index[0] == 2:
            raise OSError("a broken disk")
        return torch.from_numpy(index)

    batches = _ahead(read, (np.array([k]) for k in range(5)))
    assert [int(next(batches)), int(next(batches))] == [0, 1]
    with pytest.raises(OSError, match="a broken disk"):
        next(batches)


class TestShards:
    def stream(self, data, **changes):
        """Six notches of ten images, fading by a staircase."""
        setting = Ccc(**{"level": "easy", "speed": 10, "images": 60, "calibrated": False} | changes)
        return Stream(setting, data, batch_size=10, seed=44)

    def write(self, data, folder, stream=None, progress=None, **options):
        stream = stream or self.stream(data)
        notches = ((*s.pair, stream.rows(k)[1]) for k, s in enumerate(stream.segments))
        return make_shards(data, folder, notches, 60, stream.fingerprint, progress, **{"per_shard": 25} | options)

    @pytest.fixture
    def letters(self):
        return open_data("glyphs", size=20)

    def test_they_play_what_the_setting_shows(self, letters, tmp_path):
        told = []
        self.write(letters, tmp_path / "out", progress=lambda *a: told.append(a))
        assert told[-1] == ("images", 60, 60)
        shards = sorted(p.name for p in (tmp_path / "out").glob("*.tar"))
        assert shards == ["serial_00000.tar", "serial_00001.tar"]  # thirty each: whole notches
        again = open_data(f"ccc:{tmp_path / 'out'}", classes=10)
        assert (again.size, again.image_size, again.family) == (60, 32, "cifar")
        made, live = Stream("continual", again, batch_size=10), self.stream(letters)
        for one, other in zip(made, live, strict=True):
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.target, other.target)

    def test_large_images_keep_the_one_round_trip(self, tmp_path):
        for c, name in enumerate(("ant", "bee")):
            for i in range(5):
                write_image(tmp_path / "clean" / name / f"{i}.JPEG", 10 * c + i, 160)
        data = open_data(f"folder:{tmp_path / 'clean'}", image_size=128)
        stream = self.stream(data)
        self.write(data, tmp_path / "out", stream)
        again = open_data(f"ccc:{tmp_path / 'out'}", classes=2)
        index = stream.rows(2)[1]
        assert torch.equal(again.load("ccc", 5, np.arange(20, 30)), data.load_pair(*stream.segments[2].pair, index))

    def test_members_are_those_of_the_published_shards(self, letters, tmp_path):
        self.write(letters, tmp_path / "out")
        with tarfile.open(tmp_path / "out" / "serial_00001.tar") as shard:
            names = shard.getnames()
            info = shard.extractfile(names[0]).read().decode()
            assert set(shard.getmembers()[4].get_info().items()) >= {("mtime", 0), ("uid", 0), ("mode", 0o444)}
        assert names[:4] == ["sample_0.info", "sample_0.input.png", "sample_0.output.cls", "sample_1.info"]
        assert len(names) == 90
        (first, one), (second, other) = self.stream(letters).segments[3].pair
        assert info.endswith(f"++n1++{first}++s1++{one}++n2++{second}++s2++{other}")

    @pytest.mark.parametrize("calls", [1, 4, 7, 9])
    def test_an_interrupted_run_continues_and_ends_in_the_same_bytes(self, letters, tmp_path, calls):
        self.write(letters, tmp_path / "whole")
        with pytest.raises(Stop):
            self.write(letters, tmp_path / "out", progress=stop_after(calls), chunk=4)
        parts = list((tmp_path / "out").glob(".*.part"))
        for part in parts:  # a crash may leave bytes that no note speaks of
            part.write_bytes(part.read_bytes() + b"half a picture")
        done = []
        self.write(letters, tmp_path / "out", progress=lambda _, images, __: done.append(images), chunk=6)
        for name in ("serial_00000.tar", "serial_00001.tar"):
            assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
        assert not [p for p in (tmp_path / "out").iterdir() if p.name.startswith(".")]

    def test_a_folder_takes_one_stream_only(self, letters, tmp_path):
        self.write(letters, tmp_path / "out")
        with pytest.raises(DataError, match="other images or options"):
            self.write(letters, tmp_path / "out", self.stream(letters, level="hard"))


def test_a_folder_takes_one_source_only(glyphs, tmp_path):
    make_arrays(glyphs, tmp_path / "out")
    with pytest.raises(DataError, match="other images or options"):
        make_arrays(open_data("glyphs", size=30, domains="fog"), tmp_path / "out")


def test_check_names_every_damaged_file(cifar_c):
    assert check_data(f"cifar10_c:{cifar_c}", size=12) == []
    (cifar_c / "fog.npy").unlink()
    snow = cifar_c / "snow.npy"
    snow.write_bytes(snow.read_bytes()[:-10])
    np.save(cifar_c / "frost.npy", np.zeros((50, 32, 32, 3), np.uint8))
    np.save(cifar_c / "labels.npy", np.full(60, 11))
    found = {f.path.rpartition("/")[2]: f.problem for f in check_data(f"cifar10_c:{cifar_c}", size=12)}
    assert set(found) == {"fog.npy", "snow.npy", "frost.npy", "labels.npy"}
    assert found["fog.npy"] == "missing"
    assert "not a readable" in found["snow.npy"]
    assert "50 x 32" in found["frost.npy"]
    assert "label 11" in found["labels.npy"]


def test_check_of_folders(imagenet_c):
    bad = imagenet_c / "fog" / "3" / "n01" / "n01_0.JPEG"
    bad.write_bytes(bad.read_bytes()[:50])
    (imagenet_c / "fog" / "4" / "n02" / "n02_1.JPEG").unlink()
    write_image(imagenet_c / "gaussian_noise" / "1" / "n01" / "strange.JPEG", 0, 64)
    found = check_data(f"imagenet_c:{imagenet_c}", classes=3)
    missing_folders = [f for f in found if f.problem == "missing" and not f.path.endswith("JPEG")]
    assert len(missing_folders) == 13 * 5
    rest = {f.path.rpartition("/")[2]: f.problem for f in found if f not in missing_folders}
    assert rest.keys() == {"n01_0.JPEG", "n02_1.JPEG", "strange.JPEG"}
    assert rest["n02_1.JPEG"] == "missing"
    assert rest["strange.JPEG"] == "not part of the set"
    assert "not a readable image" in rest["n01_0.JPEG"]
    quick = check_data(f"imagenet_c:{imagenet_c}", classes=3, images=False)
    assert len(quick) == len(found) - 1


def test_check_of_clean_folders_packs_and_shards(tree, shards, tmp_path):
    assert check_data(f"folder:{tree}") == []
    (tree / "bee" / "2.png").write_bytes(b"x")
    (tree / "zzz").mkdir()
    assert [f.path.rpartition("/")[2] for f in check_data(f"folder:{tree}")] == ["zzz", "2.png"]
    assert check_data(f"ccc:{shards}") == []
    (shards / "serial_00001.tar").write_bytes(b"cut")
    assert "serial_00001.tar" in check_data(f"ccc:{shards}")[0].path
    (tmp_path / "bad.npz").write_bytes(b"cut")
    assert "not a readable" in check_data(f"pack:{tmp_path / 'bad.npz'}")[0].problem
    assert check_data(f"pack:{tmp_path / 'absent.npz'}")[0].problem == "missing"
    with pytest.raises(ConfigError, match="did you mean 'ccc'"):
        check_data("cccc:/x")


def test_waiting_is_measured():
    report = bench_loading(lambda x: x.mean(), images=16, batch_size=8, side=64)
    assert report.images == 16
    assert 0 < report.waiting <= report.seconds
    assert report.decode_rate > 0
    import time

    slow = bench_loading(lambda x: time.sleep(0.2) or x, images=24, batch_size=8, side=64)
    assert slow.share < 40


class TestCommands:
    def run(self, *arguments):
        return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})

    def test_list(self):
        result = self.run("data", "list")
        assert result.exit_code == 0
        assert all(name in result.stdout for name in ("glyphs", "cifar10_c", "imagenet_r", "ccc", "pack"))

    def test_make_then_check(self, tmp_path):
        result = self.run("data", "make", "glyphs", tmp_path / "out", "--size", 10, "--domains", "fog")
        assert result.exit_code == 0, result.stdout
        assert "1 corruptions of 10 images" in result.stdout
        checked = self.run("data", "check", f"cifar10_c:{tmp_path / 'out'}", "--size", 10)
        assert checked.exit_code == 1
        assert "14 problems" in checked.stdout
        assert "fog.npy" not in checked.stdout

    def test_make_a_ccc_stream(self, tmp_path):
        options = ["--size", 30, "--layout", "ccc", "--speed", 10, "--images", 40, "--seed", 43]
        result = self.run("data", "make", "glyphs", tmp_path / "out", *options)
        assert result.exit_code == 0, result.output
        assert "wrote 40 images" in result.output
        assert self.run("data", "check", f"ccc:{tmp_path / 'out'}", "--classes", 10).exit_code == 0
        assert open_data(f"ccc:{tmp_path / 'out'}").size == 40
        assert self.run("data", "make", "glyphs", tmp_path / "x", "--layout", "shards").exit_code == 2

    def test_a_network_decides_the_severities(self, tmp_path):
        two = ["--domains", "gaussian_noise,contrast", "--level", "hard", "--target", 90, "--model", "glyphs"]
        options = ["--size", 20, "--layout", "ccc", "--speed", 10, "--images", 30, *two]
        result = self.run("data", "make", "glyphs", tmp_path / "out", *options)
        assert result.exit_code == 0, result.output
        (measured,) = (tmp_path / "out").glob("accuracies-*.json")
        before = measured.stat().st_mtime_ns
        (tmp_path / "out" / "serial_00000.tar").rename(tmp_path / "first.tar")
        assert self.run("data", "make", "glyphs", tmp_path / "out", *options).exit_code == 0
        assert measured.stat().st_mtime_ns == before
        assert (tmp_path / "out" / "serial_00000.tar").read_bytes() == (tmp_path / "first.tar").read_bytes()

    def test_train_writes_weights_that_load(self, tmp_path):
        from slomofast.models import load_source

        images, labels = draw_glyphs("train", np.arange(96))
        pack = write_pack(tmp_path / "small.npz", images.permute(0, 2, 3, 1).numpy(), labels, list(LETTERS))
        out, source = tmp_path / "w.safetensors", f"pack:{pack}"
        options = ["--test", source, "--epochs", 1, "--batch-size", 32, "--out", out, "--device", "cpu"]
        result = self.run("train", "wrn_10_1", "--data", source, *options)
        assert result.exit_code == 0, result.output
        assert "test error" in result.stdout
        assert load_source("wrn_10_1", out).fc.out_features == 10
        assert not list(tmp_path.glob("*.training.pt"))

    def test_train_refuses_what_cannot_work(self, tmp_path):
        assert self.run("train", "wrn_10_1", "--out", tmp_path / "w.bin").exit_code == 2
        assert self.run("train", "wrn_10_1", "--augment", "twirl").exit_code == 2
