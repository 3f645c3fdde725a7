from __future__ import annotations

import json
import os
import time

import pytest

from slomofast.bench.store import DamagedRecord, Store, comparable, decode, encode, write_atomically
from slomofast.core.errors import DataError


def made_up(id: str, status: str = "done", steps: int = 40) -> dict:
    curve = {"position": list(range(steps)), "wrong": [3] * steps, "seconds": [0.1] * steps}
    job = {"method": "tent", "options": {"lr": 0.001}, "seed": 0}
    metrics = {"error": {"mean": 12.5}, "cost": {"milliseconds_median": 3.0}}
    return {
        "format": 1, "id": id, "status": status, "reason": None, "job": job, "environment": {"device": "cpu"},
        "segments": [{"start": 0, "steps": steps}],
        "started": "2025-01-01", "seconds": 4.0, "curve": curve, "metrics": metrics, "warnings": [],
    }  # fmt: skip


def test_round_trip(tmp_path) -> None:
    store = Store(tmp_path)
    path = store.put(made_up("a1"))
    assert path == tmp_path / "a1.json"
    assert Store(tmp_path).get("a1")["curve"] == made_up("a1")["curve"]
    assert json.loads(path.read_text())["id"] == "a1"
    row = Store(tmp_path).row("a1")
    assert row is not None and (row.status, row.error, row.steps) == ("done", 12.5, 40)


def test_a_finished_record_is_written_once(tmp_path) -> None:
    store = Store(tmp_path)
    store.put(made_up("a1"))
    store.put(made_up("a1") | {"seconds": 99.0})
    assert store.get("a1")["seconds"] == 4.0


def test_a_failure_makes_way_for_a_result(tmp_path) -> None:
    store = Store(tmp_path)
    store.put(made_up("a1", "failed"))
    store.put(made_up("a1"))
    assert Store(tmp_path).row("a1").status == "done"


@pytest.mark.parametrize("cut", [0, 1, 10, 500, -1, -70])
def test_a_record_cut_short_is_set_aside(tmp_path, cut: int) -> None:
    store = Store(tmp_path)
    path = store.put(made_up("a1"))
    path.write_bytes(path.read_bytes()[:cut])
    fresh = Store(tmp_path)
    assert "a1" not in fresh
    assert not path.exists()
    assert [p.name for p in fresh.damaged] == ["a1.json.damaged-1"]
    fresh.put(made_up("a1"))
    assert "a1" in Store(tmp_path)


def test_every_changed_byte_is_noticed() -> None:
    raw = encode(made_up("a1", steps=3))
    for place in range(0, len(raw), 7):
        changed = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
        with pytest.raises(DamagedRecord):
            decode(changed)


def test_a_later_change_is_noticed_by_an_open_store(tmp_path) -> None:
    store = Store(tmp_path)
    path = store.put(made_up("a1"))
    assert "a1" in store
    path.write_bytes(path.read_bytes().replace(b"12.5", b"10.5"))
    os.utime(path, ns=(1, 1))
    assert "a1" not in store
    assert "a1" not in store.rows()


def test_a_record_under_a_wrong_name_is_not_trusted(tmp_path) -> None:
    store = Store(tmp_path)
    store.put(made_up("a1")).rename(tmp_path / "b2.json")
    assert "b2" not in Store(tmp_path)


def test_another_process_record_is_seen(tmp_path) -> None:
    first, second = Store(tmp_path), Store(tmp_path)
    assert len(first) == 0
    second.put(made_up("a1"))
    assert "a1" in first and len(first) == 1


def test_index_is_only_a_cache(tmp_path) -> None:
    store = Store(tmp_path)
    for number in range(5):
        store.put(made_up(f"r{number}"))
    index = store.index_path.read_bytes()
    store.index_path.write_bytes(index[:-20])  # a crash while the last line was written
    assert len(Store(tmp_path).rows()) == 5
    store.index_path.write_bytes(b"nonsense\n\x00{")
    assert len(Store(tmp_path).rows()) == 5
    store.index_path.unlink()
    assert sorted(Store(tmp_path).rows()) == [f"r{n}" for n in range(5)]


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def no_space(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_missing_and_impossible_places(tmp_path) -> None:
    with pytest.raises(DataError, match="no record 'zz'"):
        Store(tmp_path).get("zz")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="is a file"):
        Store(tmp_path / "file")


def test_opening_costs_little_per_record(tmp_path) -> None:
    """2,000 records with an index open far faster than they can be read; so 20,000 take a few seconds at most."""
    for number in range(2000):
        (tmp_path / f"r{number}.json").write_bytes(encode(made_up(f"r{number}", steps=100)))
    begun = time.perf_counter()
    assert len(Store(tmp_path).rows()) == 2000
    cold = time.perf_counter() - begun
    begun = time.perf_counter()
    assert len(Store(tmp_path).rows()) == 2000
    warm = time.perf_counter() - begun
    assert cold < 10.0 and warm < cold / 2


def test_comparable_drops_what_depends_on_the_machine() -> None:
    first, second = made_up("a"), made_up("a")
    second["seconds"], second["environment"], second["curve"]["seconds"] = 1.0, {"device": "cuda"}, [9.0] * 40
    second["metrics"]["cost"] = {}
    assert comparable(first) == comparable(second)
    second["curve"]["wrong"][3] = 4
    assert comparable(first) != comparable(second)
