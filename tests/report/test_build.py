"""The report as files: same records, same bytes; nothing in a record becomes markup; bad stores are survived."""

from __future__ import annotations

import json
import os
import re
import shutil
from importlib import resources
from pathlib import Path

import made_up
import pytest
from test_records import damage

from slomofast.core.errors import DataError
from slomofast.report import build_report
from slomofast.report.aggregate import group_runs
from slomofast.report.html import script_json
from slomofast.report.paper_tables import all_tables
from slomofast.report.payload import Limits, build_payload
from slomofast.report.records import read_store


def payload_of(page: Path) -> dict:
    text = page.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="report-data">(.*?)</script>', text, re.DOTALL)[1])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_same_records_give_the_same_bytes(small_store: Path, small_report: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for path in sorted(small_store.glob("*.json"), reverse=True):
        shutil.copy(path, copy)
    again = build_report(copy, tmp_path / "report", title="A small store")
    assert contents(again.parent) == contents(small_report.parent)


def test_the_page_carries_every_record(small_store: Path, small_report: Path) -> None:
    data = payload_of(small_report)
    assert sorted(data["records"]["id"]) == sorted(p.stem for p in small_store.glob("*.json"))
    for group in data["groups"]:
        for cell in group["cells"]:
            errors = [data["records"]["error"][row] for row in cell["runs"]]
            assert cell["error"] == pytest.approx(sum(errors) / len(errors), abs=0.01)
            assert len(cell["curve"]) == len(group["layouts"][0]["x"]) <= 200
    assert len(data["maps"]) == 1 and data["dropped"] == []


def test_the_page_is_one_file_without_addresses_to_load(small_report: Path) -> None:
    folder = resources.files("slomofast.report").joinpath("page")
    own = "".join(f.read_text(encoding="utf-8") for f in folder.iterdir())
    assert not re.search(r"https?://|src=|@import|url\(", own)
    assert "Plotly" in small_report.read_text(encoding="utf-8")


def test_nothing_in_a_record_becomes_markup(tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>\u2028"
    record = made_up.make_record("tent", warnings=[evil])
    record["job"] |= {"method": evil, "overrides": {evil: evil}, "options": {evil: evil}}
    record["job"]["data"]["name"] = evil
    made_up.write_store(tmp_path / "runs", [record])
    page = build_report(tmp_path / "runs", tmp_path / "out", title=evil)
    text = page.read_text(encoding="utf-8")
    assert "<img src=x" not in text and "&lt;img src=x" in text
    assert payload_of(page)["methods"][0]["name"] == evil
    assert payload_of(page)["methods"][0]["title"] == f"{evil} ({evil}={evil})"
    for path in (tmp_path / "out" / "tables").glob("*.md"):
        assert "<img" not in path.read_text(encoding="utf-8")
    assert script_json({"a": "<!--</script>"}) == '{"a":"\\u003c!--\\u003c/script>"}'


def test_an_empty_store_gives_a_page_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    page = build_report(tmp_path / "runs", tmp_path / "out")
    data = payload_of(page)
    assert data["title"] == "Test-time adaptation: runs"
    assert data["groups"] == [] and data["tables"] == [] and list((tmp_path / "out/tables").iterdir()) == []


def test_damaged_records_are_named_on_the_page(tmp_path: Path) -> None:
    made_up.write_store(tmp_path / "runs", [made_up.make_record("tent", batches=2)])
    expected = damage(tmp_path / "runs")
    data = payload_of(build_report(tmp_path / "runs", tmp_path / "out"))
    assert {file for file, _ in data["problems"]} == expected.keys() and len(data["records"]["id"]) == 1


def test_tables_of_an_earlier_report_do_not_stay_behind(tmp_path: Path) -> None:
    made_up.write_store(tmp_path / "a", [made_up.make_record("tent", "cyclic", batches=2)])
    made_up.write_store(tmp_path / "b", [made_up.make_record("tent", batches=2)])
    build_report(tmp_path / "a", tmp_path / "out")
    assert (tmp_path / "out/tables/cyclic.md").exists()
    build_report(tmp_path / "b", tmp_path / "out")
    assert not (tmp_path / "out/tables/cyclic.md").exists() and (tmp_path / "out/tables/summary.md").exists()


def test_what_was_there_stays_until_the_new_is_whole(
    small_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = build_report(small_store, tmp_path / "out").parent
    before = contents(out)

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        build_report(small_store, out, title="Another")
    assert contents(out) == before


def test_a_file_in_the_place_of_the_report_is_an_error(tmp_path: Path, small_store: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(DataError, match="is a file"):
        build_report(small_store, tmp_path / "out")


def test_limits_drop_curves_not_records_and_say_so(small_store: Path) -> None:
    reading = read_store(small_store)
    groups = group_runs(reading.runs)
    tight = Limits(run_curves=2, cell_curves=3, intervals=1, table_rows=5, maps=0)
    data = build_payload(reading, groups, all_tables(groups), "x", tight)
    assert len(data["records"]["id"]) == len(reading.runs)
    cells = [cell for group in data["groups"] for cell in group["cells"]]
    assert sum("curve" in cell for cell in cells) == 3 and sum("against" in cell for cell in cells) == 1
    assert len(data["runCurves"]) == 2 and data["maps"] == []
    assert sum(len(table["rows"]) for table in data["tables"]) <= 5
    assert len(data["dropped"]) == 5 and all(re.search(r"\d", text) for text in data["dropped"])


def test_streams_that_differ_between_seeds_keep_their_own_bands(tmp_path: Path) -> None:
    made_up.write_store(tmp_path / "runs", [made_up.make_record("tent", "stochastic", seed=s) for s in (0, 1)])
    (group,) = payload_of(build_report(tmp_path / "runs", tmp_path / "out"))["groups"]
    assert len(group["layouts"]) == 2 and group["layoutOfSeed"] == {"0": 0, "1": 1}
    assert group["layouts"][0]["x"] == group["layouts"][1]["x"]
    assert group["layouts"][0]["bands"] != group["layouts"][1]["bands"]
