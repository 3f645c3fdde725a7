"""What commands say to do next is what works, and it is said before the long part begins."""

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slomofast.bench import search as searching
from slomofast.cli.__main__ import app
from slomofast.core.errors import ConfigError, DataError
from slomofast.corruptions import EXTRA
from slomofast.data import open_data
from slomofast.data.cifar import CifarC
from slomofast.data.imagenet import ImageNetC, NaturalShift
from slomofast.metrics.statistics import Difference, paired_difference
from slomofast.models import load_source
from slomofast.report.comparison import Comparison, Line
from slomofast.streams import LazyMatrices


def call(*words: object) -> str:
    answer = CliRunner().invoke(app, [str(word) for word in words])
    assert answer.exit_code == 0, (answer.output, answer.exception)
    return answer.output


class TestCccIsDrawn:
    def test_at_once_as_a_staircase(self) -> None:
        begun = time.monotonic()
        shown = call("settings", "show", "ccc")
        assert time.monotonic() - begun < 30  # measuring takes minutes
        assert "plain staircase" in shown and "--set calibrated=true" in shown
        assert "ccc over glyphs" in shown

    def test_without_a_remark_where_it_was_asked_for(self) -> None:
        assert "drawn as" not in call("settings", "show", "ccc", "--set", "calibrated=false")
        assert "drawn as" not in call("settings", "show", "continual")

    def test_inside_another_setting(self) -> None:
        shown = call("settings", "show", "cyclic", "--set", "inner=ccc", "--set", "cycles=2")
        assert "plain staircase" in shown and "--model NAME" in shown and "--set calibrated" not in shown

    def test_calibrated_when_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(LazyMatrices, "__getitem__", lambda self, key: [[90, 50, 10], [60, 30, 5], [20, 10, 0]])
        words = ("settings", "show", "ccc", "--set", "images=2000")
        for asked in (("--set", "calibrated=true"), ("--model", "glyphs")):
            shown = call(*words, *asked)
            assert "measuring accuracies of corruption pairs; this takes minutes" in shown
            assert "plain staircase of severities" not in shown


def test_made_shards_say_how_many_classes(tmp_path: Path) -> None:
    words = ("--size", 30, "--layout", "ccc", "--speed", 10, "--images", 20)
    made = call("data", "make", "glyphs", tmp_path / "out", *words)
    assert f"use them as --data ccc:{tmp_path / 'out'} --data-set classes=10" in made
    assert open_data(f"ccc:{tmp_path / 'out'}", classes=10).classes == 10


class TestMissingFolders:
    @pytest.mark.parametrize(
        "name", ["cifar10_c", "cifar100_c", "imagenet_c", "tinyimagenet_c", "imagenet_r", "imagenet_sketch"]
    )
    def test_are_fetched_where_they_were_looked_for(self, name: str, tmp_path: Path) -> None:
        where = tmp_path / "not here"
        with pytest.raises(DataError) as error:
            open_data(f"{name}:{where}")
        assert f"no folder {where}; `slomofast data get {name} --folder '{where}'` downloads it" in str(error.value)

    def test_of_other_sets_say_what_they_hold(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"own_c cannot be downloaded, name a folder that holds labels\.npy and"):
            CifarC(tmp_path / "absent", name="own_c")
        with pytest.raises(DataError, match="holds <corruption>/<severity>/<wnid>/<image>"):
            ImageNetC(tmp_path / "absent", name="own_c")
        with pytest.raises(DataError, match="holds <wnid>/<image>"):
            NaturalShift(tmp_path / "absent", name="own_r", classes=3)


class TestSearchRefusesFirst:
    WORDS = ("--images-per-domain", "10", "--batch-size", "10", "--cycles", "1", "--severities", "5")

    @pytest.fixture
    def steps(self, monkeypatch: pytest.MonkeyPatch) -> list[object]:
        """Streams that were begun."""
        begun: list[object] = []
        real = searching.evaluate

        def noted(*args: object, **options: object) -> object:
            begun.append(args)
            return real(*args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(searching, "evaluate", noted)
        return begun

    def test_a_candidate_that_cannot_be_built(self, steps: list[object]) -> None:
        answer = CliRunner().invoke(app, ["search", "tent", "--grid", "optimizer=sgd,lamb", *self.WORDS])
        assert isinstance(answer.exception, ConfigError) and "lamb" in str(answer.exception)
        data = open_data("glyphs", size=20, domains=list(EXTRA))
        with pytest.raises(ConfigError, match="lr must be at least 0, got -1"):
            searching.search("tent", [{"lr": 1e-3}, {"lr": -1.0}], load_source("glyphs"), data)
        assert not steps

    def test_a_table_that_cannot_be_written(self, steps: list[object], tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        for out, reason in (
            (tmp_path / "file" / "s.csv", "cannot be written"),
            (tmp_path / "file" / "a" / "s.csv", "file is a file; check the path"),
            (tmp_path, "is a folder; name a file in it"),
        ):
            answer = CliRunner().invoke(app, ["search", "tent", *self.WORDS, "--out", str(out)])
            assert isinstance(answer.exception, ConfigError)
            assert str(out) in str(answer.exception) and reason in str(answer.exception)
        assert not steps

    def test_a_table_without_rights(self, steps: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.access", lambda path, mode: False)
        answer = CliRunner().invoke(app, ["search", "tent", *self.WORDS, "--out", str(tmp_path / "s.csv")])
        assert isinstance(answer.exception, ConfigError) and "cannot be written" in str(answer.exception)
        assert not steps

    def test_a_new_folder_is_made_and_named(self, steps: list[object], tmp_path: Path) -> None:
        out = tmp_path / "new" / "s.csv"
        shown = call("search", "tent", *self.WORDS, "--out", out)
        assert f"made the folder {out.parent}" in shown and out.is_file() and steps
        assert "made the folder" not in call("search", "tent", *self.WORDS, "--out", out)


def test_a_search_on_letters_takes_the_training_letters_for_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, object]] = []
    real = open_data

    def noted(spec: str, **options: object) -> object:
        opened.append((spec, options.get("split")))
        return real(spec, **{**options, "size": 60})

    monkeypatch.setattr("slomofast.data.open_data", noted)
    words = ("--images-per-domain", "10", "--batch-size", "10", "--cycles", "1", "--severities", "5")
    assert "error %" in call("search", "rmt", *words)
    assert opened == [("glyphs", None), ("glyphs", "train")]


class TestCompare:
    def test_eighty_columns_show_the_last_one(self) -> None:
        label = "Continual · CIFAR10-C · WRN-28-10, AugMix"
        shown = self.shown([Line(label, 83.51, 97.25, Difference(-13.74, -14.99, -12.01, 15, 15), (10, 10))] * 2)
        assert all(len(line) <= 80 for line in shown.splitlines())
        row = next(line for line in shown.splitlines() if "97.25" in line)
        assert "-13.74 [-14.99, -12.01]" in row and "better" in row and row.rstrip().endswith("10")
        assert any(line.rstrip().endswith("seeds") for line in shown.splitlines())

    def test_no_interval_where_there_is_none(self) -> None:
        equal, few = Difference(-0.5, -0.5, -0.5, 15, 15), paired_difference([1.0, 1.25], [1.75, 1.5])
        for difference in (equal, few):
            shown = self.shown([Line("all", 1.0, 1.5, difference, (1, 1))] * 2)
            assert "-0.50" in shown and "[" not in shown and "undecided" in shown and "better" not in shown

    def shown(self, lines: list[Line]) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("slomofast.report.comparison.compare", lambda *_: Comparison("a", "b", "Experiment", lines))
            answer = CliRunner().invoke(app, ["compare", "a.json", "b.json"], env={"COLUMNS": "80", "NO_COLOR": "1"})
        assert answer.exit_code == 0, answer.output
        return answer.output
