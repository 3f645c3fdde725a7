"""The speed and fidelity benchmarks and the commands in front of them."""

from __future__ import annotations

import csv
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from made_pictures import picture_batch
from torch import Tensor, nn

from slomofast.bench.bench_corruptions import (
    read_reference,
    run_corruption_benchmark,
    run_fidelity,
    sample_images,
    write_rows,
)
from slomofast.core.errors import ConfigError, DataError
from slomofast.corruptions import CANONICAL, EXTRA, corrupt
from slomofast.data import write_pack


class Mean(nn.Module):
    """Two classes: is the image bright? With a BatchNorm layer, so that batch statistics matter."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1, affine=False)
        self.norm.running_mean.fill_(0.5)  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        bright = self.norm(x.mean(dim=(1, 2, 3))[:, None])
        return torch.cat([-bright, bright], 1)


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    images = picture_batch(24, 32)
    labels = (images.float().mean((1, 2, 3)) > 127).long().numpy()
    write_pack(tmp_path / "made.npz", images.permute(0, 2, 3, 1).numpy(), labels, ["dark", "bright"])
    return tmp_path / "made.npz"


def test_every_corruption_is_timed(tmp_path: Path) -> None:
    rows = list(run_corruption_benchmark(images=8, names=(*CANONICAL[:2], "fog")))
    assert [row.corruption for row in rows] == ["gaussian_noise", "shot_noise", "fog"]
    assert all(row.seconds > 0 and row.images_per_second == pytest.approx(8 / row.seconds) for row in rows)
    write_rows(rows, tmp_path / "deep" / "speed.csv", "slomofast bench corruptions", "cpu")
    stored = list(csv.DictReader((tmp_path / "deep" / "speed.csv").open()))
    assert stored[2]["corruption"] == "fog" and stored[0]["command"] == "slomofast bench corruptions"
    assert stored[0]["device"] == "cpu" and "commit" in stored[0]


def test_the_other_package_is_timed_or_its_failure_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(image: np.ndarray, corruption_name: str, severity: int) -> np.ndarray:
        if corruption_name == "fog":
            raise TypeError("no such keyword")
        return image[::-1]

    made = types.ModuleType("imagecorruptions")
    made.corrupt = other  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "imagecorruptions", made)
    fine, broken = run_corruption_benchmark(images=4, names=("contrast", "fog"), compare=True)
    assert fine.other_images_per_second and not fine.note
    assert broken.other_images_per_second is None and "no such keyword" in broken.note
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    (missing,) = run_corruption_benchmark(images=4, names=("contrast",), compare=True)
    assert "cannot be imported" in missing.note


def test_threads_are_restored() -> None:
    before = torch.get_num_threads()
    list(run_corruption_benchmark(images=1, names=("contrast",), threads=before + 1))
    assert torch.get_num_threads() == before


def test_sample_images_are_lively() -> None:
    images = sample_images(3, 64)
    assert images.shape == (3, 3, 64, 64) and images.dtype == torch.uint8
    assert images.float().std() > 15 and not torch.equal(images[0], images[1])


def test_fidelity_measures_the_error_on_our_corruptions(pack: Path) -> None:
    model = Mean().eval()
    reference, names = [50.0, 40.0], ("brightness", "contrast")
    rows = list(run_fidelity(pack, model, reference, batch_statistics=True, names=names, batch_size=7))
    from slomofast.data import open_data

    data = open_data(f"pack:{pack}")
    clean = data.load("fog", 0, np.arange(24))
    labels = torch.from_numpy(data.labels("fog"))
    for row, name, wanted in zip(rows, names, reference, strict=True):
        wrong = (model(corrupt(clean, name).float() / 255).argmax(1) != labels).float().mean()
        assert row.error == pytest.approx(100 * float(wrong), abs=1e-4)
        assert row.difference == pytest.approx(row.error - wanted)
        assert row.images == 24 and row.bn_error is not None
    assert rows[0].error > 20 > rows[1].error  # brightness makes everything bright, contrast keeps the mean
    assert rows[0].bn_error < rows[0].error
    assert not model.norm.training and float(model.norm.running_mean) == 0.5  # type: ignore[arg-type]


def test_references_come_as_words_or_files(tmp_path: Path) -> None:
    assert read_reference("30.7 27.7, 48.9") == [30.7, 27.7, 48.9]
    (tmp_path / "r.json").write_text('{"fog": 1.5, "snow": 2}')
    assert read_reference(str(tmp_path / "r.json")) == [1.5, 2.0]
    (tmp_path / "r.csv").write_text("1,2\n3,4\n")
    assert read_reference(str(tmp_path / "r.csv")) == [1, 2, 3, 4]
    with pytest.raises(ConfigError, match="numbers"):
        read_reference("low high")
    with pytest.raises(DataError, match="no reference file"):
        read_reference(str(tmp_path / "none.json"))


def test_a_reference_of_the_wrong_length_is_refused(pack: Path) -> None:
    with pytest.raises(ConfigError, match="2 reference errors for 15"):
        list(run_fidelity(pack, Mean().eval(), [1.0, 2.0]))


def test_the_commands(tmp_path: Path, pack: Path) -> None:
    from typer.testing import CliRunner

    from slomofast.cli.__main__ import app

    runner = CliRunner()
    listing = runner.invoke(app, ["corruptions"])
    assert listing.exit_code == 0 and all(name in listing.output for name in (*CANONICAL, *EXTRA))
    sheet = tmp_path / "sheet.png"
    drawn = runner.invoke(app, ["corruptions", "show", str(pack), "--out", str(sheet), "--index", "3"])
    assert drawn.exit_code == 0, drawn.output
    from PIL import Image

    assert Image.open(sheet).size == (150 + 6 * 100, 19 * 100)
    table = tmp_path / "speed.csv"
    timed = runner.invoke(app, ["bench", "corruptions", "--images", "4", "--out", str(table)])
    assert timed.exit_code == 0 and "images/s" in timed.output, timed.output
    assert len(list(csv.DictReader(table.open()))) == 15
