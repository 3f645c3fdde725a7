"""Reading a store: what counts, what is skipped and named, what is kept for the next time."""

from __future__ import annotations

import json
import os
from pathlib import Path

import made_up
import pytest

from slomofast.bench.store import decode
from slomofast.core.errors import DataError
from slomofast.metrics import Curve, summarise
from slomofast.report import cache, records
from slomofast.report.records import read_run, read_store, take_apart


def test_made_up_records_are_what_a_sweep_writes() -> None:
    record = made_up.make_record("tent", "cyclic", forgetting=True)
    stored = decode(made_up.encode(record))
    assert {k: v for k, v in stored.items() if k != "checksum"} == record
    figures = summarise(Curve.from_dict(record["curve"]), ["error", "recovery"])
    run, _ = take_apart(record, "x.json")
    assert figures["error"]["mean"] == pytest.approx(run.error)
    assert figures["error"]["by_domain"] == pytest.approx(dict(run.domains))


def test_a_run_says_what_its_record_says() -> None:
    record = made_up.make_record("roid", "gradual", "cifar100_c", seed=3, overrides={"lr": 0.1})
    run, layout = take_apart(record, "x.json")
    assert (run.id, run.method, run.setting, run.data, run.model, run.seed) == (
        record["id"],
        "roid",
        "gradual",
        "cifar100_c",
        "resnext29",
        3,
    )
    assert run.overrides == '{"lr":0.1}' and run.error == record["metrics"]["error"]["mean"]
    assert layout is not None and layout.steps == len(record["curve"]["position"])
    assert len(layout.bands) == 15  # the nine severities of a corruption are one band


def test_an_error_that_was_not_stored_is_computed_from_the_curve() -> None:
    record = made_up.make_record("tent")
    stored = record["metrics"]["error"]["mean"]
    run, _ = take_apart(record | {"metrics": {}}, "x.json")
    assert run.error == pytest.approx(stored)
    assert run.metrics["cost"]["milliseconds_median"] == pytest.approx(21, rel=0.2)


def test_unread_columns_may_be_missing_but_not_the_counts(tmp_path: Path) -> None:
    record = made_up.make_record("tent")
    whole = records.parse(made_up.encode(record))["curve"]
    assert "nll" not in whole and whole["wrong"] == record["curve"]["wrong"]
    assert whole["by_domain"] == record["curve"]["by_domain"] and whole["domains"] == made_up.DOMAINS


def damage(folder: Path) -> dict[str, str]:
    """Files no report can use, with a word of the reason that must be given."""
    good = made_up.encode(made_up.make_record("tent", seed=50))
    plain = made_up.make_record("tent", seed=51)
    files = {
        "cut.json": (good[: len(good) // 2], "cut short"),
        "changed.json": (good.replace(b'"tent"', b'"test"'), "checksum"),
        "future.json": (made_up.encode(plain | {"format": 99}), "format 99"),
        "list.json": (b"[1, 2, 3]", "not a record"),
        "other.json": (b'{"accuracy": 0.9}', "not a record"),
        "empty.json": (b"", "not JSON"),
        "status.json": (made_up.encode(plain | {"status": "running"}), "running"),
        "nothing.json": (made_up.encode(plain | {"metrics": {}, "curve": None}), "neither an error nor a curve"),
        "wrong.json": (made_up.encode(plain | {"metrics": {"error": {"mean": 120.0}}}), "percent"),
        "nojob.json": (made_up.encode(plain | {"job": {"method": "tent"}}), "setting"),
        "binary.json": (bytes(range(256)), "not JSON"),
        "abc.json.damaged-1": (b"", "set aside"),
    }
    for name, (content, _) in files.items():
        (folder / name).write_bytes(content)
    return {name: words for name, (_, words) in files.items()}


def test_damaged_files_are_named_and_skipped(tmp_path: Path) -> None:
    made_up.write_store(tmp_path, [made_up.make_record("tent"), made_up.make_record("bn")])
    expected = damage(tmp_path)
    (tmp_path / "readme.txt").write_text("not a record, not looked at")
    reading = read_store(tmp_path)
    assert sorted(run.method for run in reading.runs) == ["bn", "tent"]
    problems = dict(reading.problems)
    assert problems.keys() == expected.keys()
    for name, words in expected.items():
        assert words in problems[name], (name, problems[name])


def test_records_without_a_checksum_are_read_too(tmp_path: Path) -> None:
    record = made_up.make_record("tent")
    (tmp_path / "plain.json").write_text(json.dumps(record, indent=2))
    assert read_store(tmp_path).runs == [take_apart(record, "plain.json")[0]]


def test_the_same_id_counts_once(tmp_path: Path) -> None:
    record = made_up.encode(made_up.make_record("tent"))
    (tmp_path / "a.json").write_bytes(record)
    (tmp_path / "b.json").write_bytes(record)
    reading = read_store(tmp_path)
    assert [run.file for run in reading.runs] == ["a.json"]
    assert reading.problems == [("b.json", "repeats the id of a.json; only that one is used")]


def test_failed_jobs_are_told_apart(tmp_path: Path) -> None:
    failed = made_up.make_record("tent") | {"status": "failed", "reason": "out of memory", "curve": None, "metrics": {}}
    made_up.write_store(tmp_path, [failed])
    reading = read_store(tmp_path)
    assert not reading.runs and not reading.problems
    assert [(f.title, f.reason) for f in reading.failures] == [
        ("tent · continual · cifar10_c · seed 0", "out of memory")
    ]
    with pytest.raises(DataError, match="failed"):
        read_run(tmp_path / f"{failed['id']}.json")


def test_a_missing_folder_is_an_error_and_an_empty_one_is_not(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a folder"):
        read_store(tmp_path / "nowhere")
    assert read_store(tmp_path).runs == []


def test_several_processes_read_the_same(small_store: Path) -> None:
    alone, together = read_store(small_store, workers=1), read_store(small_store, workers=2)
    assert alone.runs == together.runs and alone.layouts == together.layouts


def test_a_large_store_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_PARALLEL_FROM", 4)
    made_up.write_store(tmp_path, (made_up.make_record(m, seed=s) for m in ("tent", "bn") for s in range(3)))
    first = read_store(tmp_path, workers=1)
    assert (tmp_path / cache.NAME).exists()

    read: list[str] = []
    real = records._read_files
    monkeypatch.setattr(records, "_read_files", lambda files: read.extend(f.name for f in files) or real(files))
    second = read_store(tmp_path, workers=1)
    assert read == [] and second.runs == first.runs and second.layouts == first.layouts

    changed = tmp_path / first.runs[0].file
    record = json.loads(changed.read_bytes())
    record.pop("checksum")
    record["metrics"]["error"]["mean"] = 1.5
    changed.write_bytes(made_up.encode(record))
    os.utime(changed, ns=(1, 1))
    third = read_store(tmp_path, workers=1)
    assert read == [changed.name] and third.runs[0].error == 1.5

    (tmp_path / cache.NAME).write_text("nonsense\n")
    assert read_store(tmp_path, workers=1).runs == third.runs
