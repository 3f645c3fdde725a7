"""A folder of records: one JSON file per job, written once, checked on every first reading.

A record is written to a temporary file beside its place, flushed to the disk and moved there in one step, so a
power cut leaves either no record or a whole one. The last line carries a checksum of everything above it; a file
whose checksum is wrong is set aside (`<id>.json.damaged-1`) and counts as missing. Files that are not named like a
record are somebody else's: they are neither listed nor touched.

Opening a large store is cheap because `.index.jsonl` keeps, for every file, its size and time of change together
with the small parts of the record; only files that are new or changed since are read again. The index is a cache:
deleting it costs time, never data, and a folder where it cannot be written is only slower to open.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slomofast.core.errors import DataError
from slomofast.core.files import write_atomically

FORMAT = 1
Record = dict[str, Any]

# What `job.digest` and `job.unresolved_id` make; a `package.json` in the same folder is not ours to judge.
_ID = re.compile(r"(open-)?[0-9a-f]{16}")
_CHECKSUM = b',\n"checksum": "'
_TAIL = len(_CHECKSUM) + 64 + len(b'"}\n')
_LONG = (b'"curve":', b'"diagnostics":', b'"prototypes":')
# What an index entry repeats of a record: enough for tables of means, small enough for 20,000 of them.
_SMALL = (
    "status",
    "reason",
    "job",
    "environment",
    "fingerprints",
    "started",
    "seconds",
    "skipped_steps",
    "warnings",
)


class DamagedRecord(DataError):
    """A record file that is cut short, edited or otherwise not what was written."""


def encode(record: Mapping[str, Any]) -> bytes:
    """The bytes of a record file: one top-level entry a line, the checksum last.

    >>> encode({"id": "a", "status": "done"}).splitlines()[1]
    b'"status": "done",'
    """
    lines = [
        f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in record.items() if key != "checksum"
    ]
    body = ("{" + ",\n".join(lines)).encode()
    return body + _CHECKSUM + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def decode(raw: bytes, name: str = "record", small: bool = False) -> Record:
    """The record in `raw`; raises `DamagedRecord` unless it is exactly what `encode` wrote.

    `small` leaves out the long entries (curve, diagnostics, prototypes), which takes most of the time of reading.
    """
    body, tail = raw[:-_TAIL], raw[-_TAIL:]
    if not tail.startswith(_CHECKSUM):
        raise DamagedRecord(f"{name} ends without its checksum: it was cut short or not written by slomofast")
    if hashlib.sha256(body).hexdigest().encode() != tail[len(_CHECKSUM) : len(_CHECKSUM) + 64]:
        raise DamagedRecord(f"{name} does not match its checksum: its contents were changed after it was written")
    if small:
        raw = b"\n".join(line for line in raw.split(b"\n") if not line.startswith(_LONG))
    try:
        record = json.loads(raw)
    except ValueError as error:
        raise DamagedRecord(f"{name} is not JSON: {error}") from error
    if record.get("format") != FORMAT:
        raise DamagedRecord(f"{name} has format {record.get('format')!r}; this version reads format {FORMAT}")
    return record


@dataclass(frozen=True)
class Row:
    """The small parts of a record, as the index keeps them: everything but curve, segments and diagnostics."""

    id: str
    size: int
    changed_ns: int
    status: str
    reason: str | None = None
    job: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)
    started: str = ""
    seconds: float = 0.0
    skipped_steps: int = 0
    warnings: list[str] = field(default_factory=list)
    error: float | None = None
    steps: int = 0


def _row(record: Mapping[str, Any], stat: os.stat_result) -> Row:
    error = (record.get("metrics") or {}).get("error") or {}
    last = (record.get("segments") or [{}])[-1]
    steps = last.get("start", 0) + last.get("steps", 0)
    small = {name: record[name] for name in _SMALL if name in record}
    return Row(record["id"], stat.st_size, stat.st_mtime_ns, error=error.get("mean"), steps=steps, **small)


class Store:
    """The records in a folder, by job id.

    >>> import tempfile
    >>> store = Store(tempfile.mkdtemp())
    >>> id = "0123456789abcdef"
    >>> _ = store.put({"format": 1, "id": id, "status": "done"})
    >>> id in store, store.get(id)["status"], len(store)
    (True, 'done', 1)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise DataError(f"{self.path} is a file; a store is a folder of records: name another place")
        self.path.mkdir(parents=True, exist_ok=True)
        self.damaged: list[Path] = []  # files set aside since this object was made
        self._rows: dict[str, Row] | None = None

    # reading

    def __contains__(self, id: object) -> bool:
        """Whether a whole record of this id exists; a damaged one is set aside here and counts as missing."""
        return isinstance(id, str) and self.row(id) is not None

    def __len__(self) -> int:
        return len(self.rows())

    def __iter__(self) -> Iterator[Record]:
        """Every whole record, in the order of ids; damaged ones are set aside and left out."""
        for id in sorted(self.rows()):
            record = self.find(id)
            if record is not None:
                yield record

    def get(self, id: str) -> Record:
        """The whole record of a job; `DataError` if there is none, `DamagedRecord` if it cannot be trusted."""
        path = self.record_path(id)
        try:
            return decode(path.read_bytes(), str(path))
        except FileNotFoundError:
            raise DataError(f"no record {id!r} in {self.path}") from None

    def find(self, id: str) -> Record | None:
        """The whole record of a job, or None; a damaged one is set aside, even where the index took it for sound."""
        try:
            return self.get(id)
        except DamagedRecord:
            self._drop(id)
        except DataError:
            pass  # there is none
        return None

    def rows(self) -> dict[str, Row]:
        """The small parts of every whole record, by id; reads only what changed since the index was written."""
        known = self._known()
        found: dict[str, Row] = {}
        fresh: list[Row] = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                id, ending = os.path.splitext(entry.name)
                if ending != ".json" or not _ID.fullmatch(id):
                    continue
                try:
                    stat = entry.stat()
                except FileNotFoundError:  # removed in the meantime, by a retry elsewhere
                    continue
                row = known.get(id)
                if row is None or (row.size, row.changed_ns) != (stat.st_size, stat.st_mtime_ns):
                    row = self._read_row(id)
                    if row is None:
                        continue
                    fresh.append(row)
                found[id] = row
        self._rows = found
        if len(fresh) > 100 or len(known) > len(found):
            self._rewrite_index(found)
        elif fresh:
            self._append_index(fresh)
        return found

    def row(self, id: str) -> Row | None:
        """The small parts of one record, or None; looks at the file itself, so other processes' records count."""
        known = self._known()
        try:
            stat = self.record_path(id).stat()
        except FileNotFoundError:
            known.pop(id, None)
            return None
        row = known.get(id)
        if row is not None and (row.size, row.changed_ns) == (stat.st_size, stat.st_mtime_ns):
            return row
        row = self._read_row(id)
        if row is not None:
            known[id] = row
            self._append_index([row])
        return row

    # writing

    def put(self, record: Mapping[str, Any]) -> Path:
        """Write a record and say where it is. A finished record of the same id is kept: records are written once."""
        id = record["id"]
        if not _ID.fullmatch(id):
            raise DataError(f"{id!r} is not the id of a record: 16 of the digits 0-9 and a-f, perhaps after 'open-'")
        path = self.record_path(id)
        existing = self.row(id)
        if existing is not None and existing.status == "done":
            return path
        write_atomically(path, encode({**record, "format": FORMAT}))
        row = _row(record, path.stat())
        self._known()[id] = row
        self._append_index([row])
        return path

    def discard(self, id: str) -> None:
        """Remove a record, for example a failure that is about to be tried again."""
        self.record_path(id).unlink(missing_ok=True)
        self._known().pop(id, None)

    def set_aside(self, id: str) -> Path:
        """Rename a record that cannot be trusted, so that its job runs again and nothing is lost."""
        path, number = self.record_path(id), 1
        while (target := path.with_name(f"{path.name}.damaged-{number}")).exists():
            number += 1
        os.replace(path, target)
        self.damaged.append(target)
        return target

    def check_writable(self) -> None:
        """Raise `DataError` unless files can be made here: better now than after hours of work."""
        probe = self.path / f".{uuid.uuid4().hex[:8]}.tmp"
        try:
            probe.write_bytes(b"slomofast")
        except OSError as error:
            raise DataError(
                f"cannot write to the folder of records {self.path} ({error.strerror or error}); "
                "make it writable, free some space, or name another place"
            ) from error
        finally:
            with contextlib.suppress(OSError):
                probe.unlink(missing_ok=True)

    # places

    def record_path(self, id: str) -> Path:
        """Where the record of a job is, or would be."""
        return self.path / f"{id}.json"

    def folder(self, name: str) -> Path:
        """A folder inside the store for things that are not records (`checkpoints`, `cache`), made if missing."""
        path = self.path / f".{name}"
        path.mkdir(exist_ok=True)
        return path

    # the index

    @property
    def index_path(self) -> Path:
        """The file that makes opening fast."""
        return self.path / ".index.jsonl"

    def _known(self) -> dict[str, Row]:
        if self._rows is None:
            self._rows = {}
            try:
                lines = self.index_path.read_bytes().splitlines()
            except OSError:
                lines = []
            for line in lines:
                try:
                    row = Row(**json.loads(line))
                except (ValueError, TypeError):
                    continue  # a line cut short by a crash, or of another version: the record is read instead
                self._rows[row.id] = row
        return self._rows

    def _drop(self, id: str) -> None:
        """Set a damaged record aside and forget it; one that cannot be renamed counts as missing all the same."""
        self._known().pop(id, None)
        with contextlib.suppress(OSError):
            self.set_aside(id)

    def _read_row(self, id: str) -> Row | None:
        if not _ID.fullmatch(id):
            return None
        path = self.record_path(id)
        try:
            stat = path.stat()
            record = decode(path.read_bytes(), str(path), small=True)
            if record["id"] != id:
                raise DamagedRecord(f"{path} holds the record of {record['id']!r}")
        except FileNotFoundError:
            return None
        except DamagedRecord:
            self._drop(id)
            return None
        return _row(record, stat)

    def _append_index(self, rows: list[Row]) -> None:
        text = "".join(json.dumps(row.__dict__) + "\n" for row in rows).encode()
        # One write to a file opened for appending does not mix with those of other processes.
        with contextlib.suppress(OSError), open(self.index_path, "ab", buffering=0) as file:
            file.write(text)

    def _rewrite_index(self, rows: Mapping[str, Row]) -> None:
        text = "".join(json.dumps(row.__dict__) + "\n" for row in rows.values()).encode()
        with contextlib.suppress(OSError):
            write_atomically(self.index_path, text)


def comparable(record: Mapping[str, Any]) -> Record:
    """A record without what depends on when and where it ran: times, memory, the machine.

    Two runs of one job on the CPU give equal values of this, whether or not they were interrupted.
    """
    kept = {k: v for k, v in record.items() if k not in ("started", "seconds", "environment", "checksum")}
    if kept.get("curve"):
        kept["curve"] = {k: v for k, v in kept["curve"].items() if k not in ("seconds", "peak_bytes")}
    if kept.get("metrics"):
        kept["metrics"] = {k: v for k, v in kept["metrics"].items() if k != "cost"}
    return kept
