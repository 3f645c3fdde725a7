"""Reading a store of records: what every table and figure is made from, and what could not be read.

A record is one JSON file. It is taken apart once into a `Run`, which keeps the small numbers and a thinned curve; the
full curve is dropped at once, so twenty thousand records fit into memory. Files that are damaged, of another format or
not records at all are named in `Reading.problems` and skipped.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slomofast.core.errors import DataError
from slomofast.report import cache, curves

FORMAT = 1
_CHECKSUM = b',\n"checksum": "'
_TAIL = len(_CHECKSUM) + 64 + len(b'"}\n')
# Columns of a curve no figure here is made from, as they stand in a file.
_UNREAD_COLUMNS = tuple(f'"{name}": ['.encode() for name in ("position", "visit", "severity", "nll", "entropy"))
# Lines of a record file the report never looks at; leaving them unparsed halves the reading time.
_UNREAD = (b'"diagnostics"', b'"segments"')
_PROTOCOL = ("batch_size", "images_per_domain", "severity", "precision", "domains", "held_out")
_ROUNDING = 0.005  # points by which the parts of a score may miss it
_PARALLEL_FROM = 400  # files; below this a second process costs more than it saves


class BadRecord(ValueError):
    """A file that cannot be used; the message says why."""


@dataclass(frozen=True)
class Layout:
    """How a stream is laid out in time; equal for all runs of one seed, and of all seeds in most settings."""

    steps: int
    bands: tuple[curves.Band, ...]
    edges: tuple[int, ...]  # of the bins of a thinned curve, aligned with the bands


@dataclass(frozen=True)
class Run:
    """One record, reduced to what a report shows. Errors are percent."""

    id: str
    file: str
    method: str
    overrides: str  # canonical JSON of the options the user gave
    setting: str
    setting_fields: str  # canonical JSON of all the setting's fields
    data: str
    model: str
    protocol: tuple[tuple[str, str], ...]
    seed: int
    error: float
    domains: Mapping[str, float] = field(default_factory=dict)
    cycles: tuple[Mapping[str, float], ...] = ()
    visits: tuple[tuple[str, int, float], ...] = ()
    curve: list[float] | None = None  # error in aligned bins
    uniform: list[float] | None = None  # in equal bins, only where they differ from the aligned ones
    layout: str = ""
    profile: Mapping[str, list[float | None]] = field(default_factory=dict)
    recovery: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    prototypes: Mapping[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    skipped_steps: int = 0
    seconds: float | None = None
    started: str = ""
    device: str = ""
    batch_size: int = 0
    images_per_domain: int | None = None
    options: str = ""  # canonical JSON of all the method's options; empty where the record does not say
    family: str = ""  # of the data; a method's defaults depend on it
    source: str = ""  # where images of the source came from; empty for the stream's own
    stream: str = ""  # folder of the shards of a CCC stream; empty for other data
    images: int = 0  # in the whole stream
    parts: tuple[tuple[str, float, float], ...] = ()  # (column, weight, error) whose weighted mean is `error`


@dataclass(frozen=True)
class Failure:
    """A record that says its job failed."""

    id: str
    title: str
    reason: str


@dataclass
class Reading:
    """All that was found in a store."""

    runs: list[Run] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)  # (file, why it was skipped)
    layouts: dict[str, Layout] = field(default_factory=dict)


def read_store(folder: str | Path, workers: int | None = None) -> Reading:
    """Every record in a folder, in the order of ids; damaged files are named, not fatal.

    Raises `DataError` when the folder does not exist. An empty one gives an empty reading.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder of records; `slomofast run` and `slomofast sweep` write one (runs/)")
    entries = [entry for entry in os.scandir(folder) if entry.is_file() and not entry.name.startswith(".")]
    stamps = {entry.name: (entry.stat().st_size, entry.stat().st_mtime_ns) for entry in entries}
    names = sorted(stamps)
    reading = Reading()
    for name in names:
        if ".json.damaged" in name:
            reading.problems.append((name, "set aside earlier because its contents could not be trusted"))
    files = [folder / name for name in names if name.endswith(".json")]
    if len(files) >= _PARALLEL_FROM:
        known, reading.layouts = cache.load(folder)
        kept = {name: run for name, (stamp, run) in known.items() if stamps.get(name) == stamp}
        reading.runs = list(kept.values())
        files = [path for path in files if path.name not in kept]
    for part in _read_all(files, workers):
        reading.runs += part.runs
        reading.failures += part.failures
        reading.problems += part.problems
        reading.layouts |= part.layouts
    reading.runs.sort(key=lambda run: run.id)
    _drop_repeated(reading)
    reading.problems.sort()
    if len(files) >= _PARALLEL_FROM:
        cache.save(folder, reading.runs, stamps, reading.layouts)
    return reading


def read_run(path: str | Path) -> Run:
    """The run in one file; `DataError` when it cannot be used."""
    part = _read_files([Path(path)])
    if part.problems:
        raise DataError(f"{path}: {part.problems[0][1]}")
    if part.failures:
        raise DataError(f"{path}: the job failed ({part.failures[0].reason}); there is nothing to compare")
    return part.runs[0]


def _read_all(files: list[Path], workers: int | None) -> Iterable[Reading]:
    workers = workers or (min(8, os.cpu_count() or 1) if len(files) >= _PARALLEL_FROM else 1)
    # Where processes cannot be forked they would run the caller's script again; reading alone is safer there.
    if workers == 1 or "fork" not in multiprocessing.get_all_start_methods():
        return [_read_files(files)]
    size = max(50, -(-len(files) // (workers * 8)))
    chunks = [files[i : i + size] for i in range(0, len(files), size)]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
        return list(pool.map(_read_files, chunks))


def _read_files(files: list[Path]) -> Reading:
    reading = Reading()
    for path in files:
        try:
            record = parse(path.read_bytes())
            if record["status"] == "failed":
                reading.failures.append(_failure(record))
            else:
                run, layout = take_apart(record, path.name)
                reading.runs.append(run)
                if layout is not None:
                    reading.layouts.setdefault(run.layout, layout)
        except BadRecord as error:
            reading.problems.append((path.name, str(error)))
        except OSError as error:
            reading.problems.append((path.name, f"cannot be read: {error.strerror}"))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            reading.problems.append((path.name, f"does not follow the record format ({_say(error)})"))
    return reading


def _say(error: Exception) -> str:
    return f"no entry {error}" if isinstance(error, KeyError) else str(error)


def _drop_repeated(reading: Reading) -> None:
    kept: dict[str, Run] = {}
    for run in reading.runs:
        if run.id in kept:
            reading.problems.append((run.file, f"repeats the id of {kept[run.id].file}; only that one is used"))
        else:
            kept[run.id] = run
    reading.runs = list(kept.values())


def parse(raw: bytes, whole: bool = False) -> dict[str, Any]:
    """The record in the bytes of a file; unless `whole`, without the entries a report does not use.

    A checksum on the last line must fit; files without one are taken as they are.
    """
    tail = raw[-_TAIL:]
    if tail.startswith(_CHECKSUM):
        if hashlib.sha256(raw[:-_TAIL]).hexdigest().encode() != tail[len(_CHECKSUM) : len(_CHECKSUM) + 64]:
            raise BadRecord("its checksum does not fit: it was changed or damaged after it was written")
        if not whole:
            kept = [line for line in raw.split(b"\n") if not line.startswith(_UNREAD)]
            raw = b"\n".join(_without_columns(line) if line.startswith(b'"curve": {') else line for line in kept)
    try:
        record = json.loads(raw)
    except ValueError as error:
        raise BadRecord(f"is not JSON: cut short or damaged ({error})") from None
    if not isinstance(record, dict) or "job" not in record:
        raise BadRecord("is JSON but not a record of slomofast")
    if record.get("format") != FORMAT:
        raise BadRecord(f"has record format {record.get('format')!r}; this version reads format {FORMAT}")
    if record.get("status") not in ("done", "failed"):
        raise BadRecord(f"has status {record.get('status')!r}; expected done or failed")
    return record


def _without_columns(line: bytes) -> bytes:
    """A curve without the columns of plain numbers that are never read; parsing takes half as long."""
    for name in _UNREAD_COLUMNS:
        start = line.find(name)
        stop = line.find(b"], ", start)
        if start >= 0 and stop >= 0 and line.find(b"[", start + len(name), stop) < 0:
            line = line[:start] + line[stop + 3 :]
    return line


def canonical(value: Any) -> str:
    """JSON in one spelling, so that equal values compare as equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def take_apart(record: Mapping[str, Any], file: str) -> tuple[Run, Layout | None]:
    """The run of a finished record, and how its stream is laid out."""
    job, metrics = record["job"], dict(record.get("metrics") or {})
    setting, data, model = _named(job["setting"]), _named(job["data"]), _named(job["model"])
    values: dict[str, Any] = {}
    layout, steps = None, 0
    if record.get("curve"):
        series = curves.Series.of(record["curve"])
        steps = len(series)
        layout, values = _from_curve(series)
        values["parts"] = curves.score_parts(series, record["curve"])
        metrics.setdefault("cost", _cost(record["curve"], series))
    stored = metrics.get("error") or {}
    error = stored.get("mean")
    if error is None:
        if not values:
            raise BadRecord("is marked done but holds neither an error nor a curve")
        error = float(np.mean(list(values["domains"].values())))
    if not 0 <= error <= 100:
        raise BadRecord(f"has an error of {error}; error rates are percent")
    fingerprints = record.get("fingerprints") or {}
    protocol = {name: job[name] for name in _PROTOCOL if job.get(name) is not None}
    protocol |= {
        "steps": steps,
        "data": fingerprints.get("data", ""),
        "weights": fingerprints.get("model", ""),
    }
    values.setdefault("domains", dict(stored.get("by_domain") or {}))
    values["parts"] = _fitting(values.get("parts") or _even(values["domains"]), float(error))
    prototypes = record.get("prototypes")
    run = Run(
        id=str(record["id"]),
        file=file,
        method=str(job["method"]),
        overrides=canonical(job.get("overrides") or {}),
        setting=str(setting["name"]),
        setting_fields=canonical({k: v for k, v in setting.items() if k != "name"}),
        data=str(data["name"]),
        model=str(model["name"]),
        protocol=tuple((k, v if isinstance(v, str) else canonical(v)) for k, v in protocol.items()),
        seed=int(job["seed"]),
        error=float(error),
        metrics={k: v for k, v in metrics.items() if k != "error"},
        prototypes=prototypes if isinstance(prototypes, dict) else None,
        warnings=tuple(str(w) for w in record.get("warnings") or ()),
        skipped_steps=int(record.get("skipped_steps") or 0),
        seconds=record.get("seconds"),
        started=str(record.get("started") or ""),
        device=str((record.get("environment") or {}).get("device") or ""),
        batch_size=int(job.get("batch_size") or 0),
        images_per_domain=job.get("images_per_domain"),
        options=sys.intern(canonical(job["options"])) if isinstance(job.get("options"), dict) else "",
        family=str(data.get("family") or ""),
        source=_source(job, fingerprints),
        stream=_shards(data),
        **values,
    )
    return run, layout


def _from_curve(series: curves.Series) -> tuple[Layout, dict[str, Any]]:
    edges = curves.edges_for(series, aligned=True)
    even = curves.edges_for(series, aligned=False)
    layout = Layout(len(series), tuple(curves.visible_bands(series)), tuple(edges.tolist()))
    mark = hashlib.sha256(repr(layout).encode()).hexdigest()[:12]
    cycles = tuple(curves.cycle_errors(series))
    return layout, {
        "domains": curves.column_errors(series),
        "images": int(series.count.sum()),
        "cycles": cycles if len(cycles) > 1 else (),
        "visits": tuple(curves.visit_errors(series)),
        "curve": curves.rounded(curves.thinned(series, edges)),
        "uniform": None if np.array_equal(edges, even) else curves.rounded(curves.thinned(series, even)),
        "layout": mark,
        "profile": curves.shift_profile(series),
        "recovery": curves.recoveries(series),
    }


def _even(domains: Mapping[str, float]) -> tuple[tuple[str, float, float], ...]:
    return tuple((name, 1 / len(domains), error) for name, error in domains.items())


def _fitting(parts: tuple[tuple[str, float, float], ...], error: float) -> tuple[tuple[str, float, float], ...]:
    """The parts if they make up the score, else none."""
    return parts if parts and abs(sum(w * e for _, w, e in parts) - error) < _ROUNDING else ()


def _source(job: Mapping[str, Any], fingerprints: Mapping[str, Any]) -> str:
    """What tells one source of images from another: its fingerprint, or the last part of its name."""
    if "source" in fingerprints:
        return str(fingerprints["source"] or "")[:6]
    return _last(str(job.get("source") or ""))


def _shards(data: Mapping[str, Any]) -> str:
    """The folder of a data set `ccc:FOLDER`."""
    kind, _, path = str(data.get("spec") or "").partition(":")
    return (_last(path) or kind) if kind == "ccc" else ""


def _last(path: str) -> str:
    """The last part of a path or a spec, in the spelling of any system."""
    return next((part for part in reversed(re.split(r"[:/\\]", path)) if part), "")


def _cost(curve: Mapping[str, Any], series: curves.Series) -> dict[str, float]:
    """Median time of a batch from the curve, for records that store no cost."""
    seconds = [s for s in curve.get("seconds") or () if s is not None]
    if not seconds:
        return {}
    late = np.asarray(seconds[len(seconds) // 10 :])
    middle = float(np.median(late))
    return {
        "milliseconds_median": 1000 * middle,
        "images_per_second": float(np.median(series.count)) / middle,
    }


def _named(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"name": str(value)}


def _failure(record: Mapping[str, Any]) -> Failure:
    job = record["job"]
    words = [job["method"], *(_named(job[k])["name"] for k in ("setting", "data")), f"seed {job.get('seed')}"]
    return Failure(str(record["id"]), " · ".join(map(str, words)), str(record.get("reason") or "no reason given"))
