"""Two methods or two records side by side, and the two commands."""

from __future__ import annotations

import shutil
from pathlib import Path

import made_up
import pytest
from typer.testing import CliRunner

from slomofast.cli.__main__ import app
from slomofast.core.errors import ConfigError, DataError
from slomofast.report.aggregate import group_runs
from slomofast.report.comparison import compare
from slomofast.report.records import read_store
from slomofast.report.significance import difference


def call(*words: object) -> str:
    done = CliRunner().invoke(app, [str(w) for w in words], env={"COLUMNS": "100", "NO_COLOR": "1"})
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_methods_are_compared_in_every_experiment_either_ran(small_store: Path) -> None:
    found = compare("slomo_fast", "tent", read_store(small_store))
    assert (found.first, found.second, found.head) == ("SloMo-Fast", "TENT", "Experiment")
    by_name = {line.label: line for line in found.lines}
    cyclic = by_name["Cyclic · CIFAR10-C · WRN-28-10"]
    assert cyclic.difference is not None and cyclic.difference.pairs == 30 and cyclic.seeds == (2, 2)
    assert cyclic.difference.mean == pytest.approx(cyclic.first - cyclic.second, abs=1e-6)
    assert cyclic.difference.clear and cyclic.difference.mean < 0
    glyphs = by_name["Continual · Glyphs · glyphs"]
    assert glyphs.first is None and glyphs.second is not None and glyphs.difference is None
    assert found.lines[-1].label == "Mean of the 3 experiments both ran"


def test_exchanging_the_two_changes_the_sign(small_store: Path) -> None:
    reading = read_store(small_store)
    there, back = compare("roid", "tent", reading), compare("tent", "roid", reading)
    for a, b in zip(there.lines, back.lines, strict=True):
        if a.difference and b.difference:
            assert a.difference.mean == pytest.approx(-b.difference.mean)


def test_changed_options_are_named_like_the_report_names_them(small_store: Path) -> None:
    reading = read_store(small_store)
    assert compare("tent lr=0.01", "tent", reading).first == "TENT (lr=0.01)"
    assert compare("TENT (lr=0.01)", "tent", reading).first == "TENT (lr=0.01)"


def test_two_records_by_path_or_beginning_of_their_id(small_store: Path) -> None:
    reading = read_store(small_store)
    same = [r for r in reading.runs if (r.method, r.setting, r.data) == ("roid", "continual", "cifar10_c")]
    one, two = sorted(same, key=lambda r: r.seed)
    by_id = compare(one.id[:8], two.id, reading)
    by_path = compare(str(small_store / one.file), str(small_store / two.file))
    assert by_id == by_path and by_id.head == "Domain" and len(by_id.lines) == 16
    assert by_id.lines[-1].difference is not None and by_id.lines[-1].difference.pairs == 15
    assert by_id.remarks == ("they differ in seed: 0 and 1",)


def test_damaged_records_are_named(small_store: Path, tmp_path: Path) -> None:
    shutil.copytree(small_store, tmp_path / "runs")
    (tmp_path / "runs" / "ffffffffffffffff.json").write_text("{")
    shown = call("compare", "roid", "tent", "--runs", tmp_path / "runs")
    assert "ffffffffffffffff.json was left out: is not JSON" in " ".join(shown.split())
    assert "left out" not in call("compare", "roid", "tent", "--runs", small_store)


def test_intervals_are_those_of_the_report(small_store: Path) -> None:
    reading = read_store(small_store)
    group = next(g for g in group_runs(reading.runs) if g.title == "Cyclic · CIFAR10-C · WRN-28-10")
    cells = {method.name: cell.runs for method, cell in group.cells.items() if method.plain}
    line = next(x for x in compare("roid", "tent", reading).lines if x.label == group.title)
    assert line.difference == difference(cells["roid"], cells["tent"])


def test_what_cannot_be_compared_is_said(small_store: Path, tmp_path: Path) -> None:
    reading = read_store(small_store)
    with pytest.raises(ConfigError, match="did you mean 'slomo_fast'"):
        compare("slomofast", "tent", reading)
    with pytest.raises(ConfigError, match="two records or two methods"):
        compare(reading.runs[0].id, "tent", reading)
    with pytest.raises(DataError, match="no record file"):
        compare("missing.json", "other.json")
    with pytest.raises(DataError, match="no finished records"):
        compare("tent", "bn", read_store(tmp_path))
    made_up.write_store(tmp_path, [made_up.make_record("tent"), made_up.make_record("bn", "mixed")])
    with pytest.raises(ConfigError, match="share no experiment"):
        compare("tent", "bn", read_store(tmp_path))


def test_the_compare_command(small_store: Path) -> None:
    text = call("compare", "slomo_fast", "tent", "--runs", small_store)
    assert "SloMo-Fast against TENT" in text and "better" in text and "Cyclic" in text
    assert "[-" in text  # intervals are not eaten as markup


def test_the_report_command(small_store: Path, tmp_path: Path) -> None:
    made_up.write_store(tmp_path / "runs", [made_up.make_record("tent", batches=2)])
    (tmp_path / "runs" / "cut.json").write_text("{")
    text = call("report", tmp_path / "runs", "--out", tmp_path / "out", "--title", "Mine")
    assert "1 record in" in text
    assert "skipped cut.json" in text
    assert "<title>Mine</title>" in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")


def test_a_missing_store_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a folder of records"):
        call("report", tmp_path / "nowhere")


def test_a_bare_name_means_its_only_variant(tmp_path: Path) -> None:
    made_up.write_store(tmp_path, [made_up.make_record("bn"), made_up.make_record("tent", overrides={"lr": 0.01})])
    assert compare("tent", "bn", read_store(tmp_path)).first == "TENT (lr=0.01)"
