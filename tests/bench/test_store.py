from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from pathlib import Path
from typing import NoReturn

import pytest

from slomofast.bench.store import DamagedRecord, Store, comparable, decode, encode
from slomofast.core.errors import DataError
from slomofast.core.files import write_atomically

A, B = "a1" * 8, "b2" * 8


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
    path = store.put(made_up(A))
    assert path == tmp_path / f"{A}.json"
    assert Store(tmp_path).get(A)["curve"] == made_up(A)["curve"]
    assert json.loads(path.read_text())["id"] == A
    row = Store(tmp_path).row(A)
    assert row is not None and (row.status, row.error, row.steps) == ("done", 12.5, 40)


def test_a_finished_record_is_written_once(tmp_path) -> None:
    store = Store(tmp_path)
    store.put(made_up(A))
    store.put(made_up(A) | {"seconds": 99.0})
    assert store.get(A)["seconds"] == 4.0


def test_a_failure_makes_way_for_a_result(tmp_path) -> None:
    store = Store(tmp_path)
    store.put(made_up(A, "failed"))
    store.put(made_up(A))
    assert Store(tmp_path).row(A).status == "done"


@pytest.mark.parametrize("cut", [0, 1, 10, 500, -1, -70])
def test_a_record_cut_short_is_set_aside(tmp_path, cut: int) -> None:
    store = Store(tmp_path)
    path = store.put(made_up(A))
    path.write_bytes(path.read_bytes()[:cut])
    fresh = Store(tmp_path)
    assert A not in fresh
    assert not path.exists()
    assert [p.name for p in fresh.damaged] == [f"{A}.json.damaged-1"]
    fresh.put(made_up(A))
    assert A in Store(tmp_path)


def test_every_changed_byte_is_noticed() -> None:
    raw = encode(made_up(A, steps=3))
    for place in range(0, len(raw), 7):
        changed = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
        with pytest.raises(DamagedRecord):
            decode(changed)


def test_a_later_change_is_noticed_by_an_open_store(tmp_path) -> None:
    store = Store(tmp_path)
    path = store.put(made_up(A))
    assert A in store
    path.write_bytes(path.read_bytes().replace(b"12.5", b"10.5"))
    os.utime(path, ns=(1, 1))
    assert A not in store
    assert A not in store.rows()


@pytest.mark.parametrize("name", ["package.json", "settings.json", "a1.json", "open-house.json", f"{A}-half.json"])
def test_files_that_are_not_named_like_records_are_left_alone(tmp_path, name: str) -> None:
    (tmp_path / name).write_text('{"name": "mine"}')
    store = Store(tmp_path)
    store.put(made_up(A))
    store.put(made_up(f"open-{B}", "failed"))
    assert sorted(store.rows()) == sorted(Store(tmp_path).rows()) == [A, f"open-{B}"]
    assert name.removesuffix(".json") not in store
    assert (tmp_path / name).read_text() == '{"name": "mine"}' and not store.damaged


def test_a_damaged_record_of_a_broken_job_is_set_aside(tmp_path) -> None:
    (tmp_path / f"open-{B}.json").write_text("{}")
    store = Store(tmp_path)
    assert len(store) == 0 and [p.name for p in store.damaged] == [f"open-{B}.json.damaged-1"]


def test_a_record_that_would_never_be_listed_is_refused(tmp_path) -> None:
    with pytest.raises(DataError, match="'a1' is not the id of a record"):
        Store(tmp_path).put(made_up("a1"))
    assert not list(tmp_path.iterdir())


def spoil(path: Path) -> None:
    """Change one figure of a record so that neither its size nor its time tells."""
    stat = path.stat()
    path.write_bytes(path.read_bytes().replace(b"12.5", b"10.5"))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_damage_that_the_index_does_not_see(tmp_path) -> None:
    Store(tmp_path).put(made_up(A))
    Store(tmp_path).put(made_up(B))
    spoil(tmp_path / f"{A}.json")
    store = Store(tmp_path)
    assert A in store
    with pytest.raises(DamagedRecord, match="does not match its checksum"):
        store.get(A)
    assert [record["id"] for record in store] == [B]
    assert [p.name for p in store.damaged] == [f"{A}.json.damaged-1"]
    assert store.find(A) is None and A not in store and A not in Store(tmp_path)
    store.put(made_up(A))
    assert [record["id"] for record in Store(tmp_path)] == [A, B]


def refuse(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EROFS, "Read-only file system")


def test_a_folder_that_cannot_be_written_is_read_all_the_same(tmp_path, monkeypatch) -> None:
    for number in range(3):
        (tmp_path / f"{number:016x}.json").write_bytes(encode(made_up(f"{number:016x}")))
    (tmp_path / f"{A}.json").write_text("{}")
    monkeypatch.setattr("slomofast.bench.store.open", refuse, raising=False)
    monkeypatch.setattr(os, "replace", refuse)
    store = Store(tmp_path)
    assert len(store) == 3 and len(list(store)) == 3 and A not in store
    (tmp_path / f"{0:016x}.json").unlink()
    assert len(store) == 2  # fewer than known: here the index would be written anew
    assert not store.index_path.exists() and not store.damaged


def test_an_index_that_cannot_be_used_loses_no_result(tmp_path) -> None:
    store = Store(tmp_path)
    store.index_path.mkdir()  # neither reading nor appending works
    store.put(made_up(A))
    assert A in Store(tmp_path) and len(Store(tmp_path)) == 1


def test_trying_whether_a_folder_can_be_written_leaves_nothing(tmp_path, monkeypatch) -> None:
    store = Store(tmp_path)
    store.check_writable()
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(DataError, match=re.escape(str(tmp_path)) + r".*Read-only.*name another place"):
        store.check_writable()


def test_a_record_under_a_wrong_name_is_not_trusted(tmp_path) -> None:
    store = Store(tmp_path)
    store.put(made_up(A)).rename(tmp_path / f"{B}.json")
    assert B not in Store(tmp_path)


def test_another_process_record_is_seen(tmp_path) -> None:
    first, second = Store(tmp_path), Store(tmp_path)
    assert len(first) == 0
    second.put(made_up(A))
    assert A in first and len(first) == 1


def test_index_is_only_a_cache(tmp_path) -> None:
    store = Store(tmp_path)
    for number in range(5):
        store.put(made_up(f"{number:016x}"))
    index = store.index_path.read_bytes()
    store.index_path.write_bytes(index[:-20])  # a crash while the last line was written
    assert len(Store(tmp_path).rows()) == 5
    store.index_path.write_bytes(b"nonsense\n\x00{")
    assert len(Store(tmp_path).rows()) == 5
    store.index_path.unlink()
    assert sorted(Store(tmp_path).rows()) == [f"{n:016x}" for n in range(5)]


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


def test_a_file_appears_by_renaming(tmp_path, monkeypatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr(Path, "replace", lambda *_: None)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


def test_missing_and_impossible_places(tmp_path) -> None:
    with pytest.raises(DataError, match="no record 'zz'"):
        Store(tmp_path).get("zz")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="is a file"):
        Store(tmp_path / "file")


def test_opening_costs_little_per_record(tmp_path) -> None:
    """2,000 records with an index open far faster than they can be read; so 20,000 take a few seconds at most."""
    for number in range(2000):
        (tmp_path / f"{number:016x}.json").write_bytes(encode(made_up(f"{number:016x}", steps=100)))
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


def test_a_record_removed_while_the_folder_is_listed_is_missing(tmp_path, monkeypatch) -> None:
    store = Store(tmp_path)
    for id in (A, B):
        store.put(made_up(id))
    real = os.scandir

    @contextlib.contextmanager
    def scandir(path):
        with real(path) as entries:
            found = list(entries)
        store.record_path(A).unlink()
        yield found

    monkeypatch.setattr(os, "scandir", scandir)
    assert list(store.rows()) == [B]
