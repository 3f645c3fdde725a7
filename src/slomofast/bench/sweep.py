"""Many jobs from one readable file, run as often as it takes until every record exists."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import os
import re
import string
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from slomofast.bench.executors import InProcess, Listener, Silent
from slomofast.bench.job import Job, Resolved, unresolved_id
from slomofast.bench.outcome import failure, reason_for
from slomofast.bench.parts import check_options, resolve
from slomofast.bench.run import RunOptions, Stopped
from slomofast.bench.store import Record, Store
from slomofast.core.errors import ConfigError, unknown_name
from slomofast.core.registry import list_methods
from slomofast.streams import list_settings

_TOP = ("title", "about", "plugins", "paths", "defaults", "data", "grid")
_LISTS = {"methods": "method", "settings": "setting", "data": "data", "seeds": "seed"}
_JOB = {f.name for f in dataclasses.fields(Job)}
_SHARED = _JOB - {"method", "options", "setting", "setting_options", "data"}


@dataclass(frozen=True)
class Sweep:
    """A named list of jobs. `plugins` are modules to import first, for methods or data registered by hand.

    `missing` names methods of the file that this installation does not have and that were left out.
    """

    title: str
    about: str
    jobs: tuple[Job, ...]
    plugins: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class Executor(Protocol):
    """Something that runs jobs: see `executors` and `cluster`."""

    def run(self, jobs: list[Resolved], store: Store, options: RunOptions, listener: Listener) -> None:
        """Run all jobs and put their records into the store."""


# reading


def list_presets() -> list[str]:
    """Names of the sweeps that come with the package."""
    return sorted(Path(entry.name).stem for entry in _presets().iterdir() if entry.name.endswith(".toml"))


def preset_text(name: str) -> str:
    """The file of a preset, to read or to copy."""
    if name not in list_presets():
        raise unknown_name("preset", name, list_presets())
    return (_presets() / f"{name}.toml").read_text(encoding="utf-8")


def _presets() -> Any:
    return resources.files("slomofast.bench") / "presets"


def load_sweep(path: str | Path, paths: Mapping[str, str] | None = None, skip_unknown: bool = False) -> Sweep:
    """The jobs of a sweep file. `paths` replaces entries of its `[paths]` table."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        known = ", ".join(list_presets())
        raise ConfigError(f"no sweep file {path}; the presets are called with --preset: {known}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text in UTF-8 ({error.reason}); a sweep file is TOML") from None
    return parse_sweep(text, str(path), paths, skip_unknown)


def load_preset(name: str, paths: Mapping[str, str] | None = None) -> Sweep:
    """The jobs of a preset; methods that this installation does not have are left out (`Sweep.missing`)."""
    return parse_sweep(preset_text(name), f"preset {name}", paths, skip_unknown=True)


def parse_sweep(
    text: str, name: str = "sweep", paths: Mapping[str, str] | None = None, skip_unknown: bool = False
) -> Sweep:
    """The jobs that a sweep file describes, each once, in the order of the file.

    Every `[[grid]]` is the product of its methods, settings, data and seeds. `skip_unknown` leaves out methods
    that this installation does not have instead of refusing the file.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not valid TOML: {error}") from None
    _known(f"entry of {name}", content, _TOP)
    plugins = tuple(content.get("plugins", ()))
    for module in plugins:
        _import(module, name)
    own_places = _table(content.get("paths", {}), "paths", name)
    places = {**own_places, **(paths or {})}
    for given in paths or {}:
        if given not in own_places:
            raise unknown_name(f"path of {name}", given, own_places)
    defaults = _table(content.get("defaults", {}), "defaults", name)
    _known(f"default of {name}", defaults, _SHARED | set(_LISTS))
    data_tables = _table(content.get("data", {}), "data.NAME", name)
    for place, table in data_tables.items():
        _known(f"data entry of {name}", _table(table, f"data.{place}", name), _SHARED | {"spec"})
        if "spec" not in table:
            raise ConfigError(f'{name}: [data.{place}] has no spec; add one, for example spec = "pack:images.npz"')
    grids = content.get("grid", [])
    if not grids or not isinstance(grids, list):
        raise ConfigError(f"{name} has no [[grid]] (in double brackets); add one with methods and settings")
    jobs: dict[str, Job] = {}
    missing: dict[str, None] = {}
    for number, grid in enumerate(grids, 1):
        where = f"{name}, grid {number}"
        _known(f"entry of {where}", _table(grid, "[grid]", name), _SHARED | set(_LISTS))
        for job in _expand({**defaults, **grid}, data_tables, places, where, missing if skip_unknown else None):
            jobs.setdefault(unresolved_id(job), job)
    about = content.get("about", "").strip()
    return Sweep(content.get("title", name), about, tuple(jobs.values()), plugins, tuple(missing))


def _expand(
    grid: Mapping[str, Any],
    tables: Mapping[str, Mapping[str, Any]],
    places: Mapping[str, str],
    where: str,
    missing: dict[str, None] | None,
) -> Iterable[Job]:
    axes = {key: _as_list(grid.get(key, default)) for key, default in _AXES.items()}
    if not axes["methods"]:
        raise ConfigError(f'{where} names no methods; add methods = ["source", "slomo_fast"]')
    for axis in ("settings", "data", "seeds"):
        if not axes[axis]:
            raise ConfigError(f"{where}: {axis} is an empty list, so that nothing would run; leave it out or fill it")
    methods = _named(axes["methods"], "method", list_methods(), missing)
    settings = _named(axes["settings"], "setting", list_settings(True), None)
    common = {k: v for k, v in grid.items() if k in _SHARED}
    for data, (setting, setting_options), (method, options), seed in itertools.product(
        axes["data"], settings, methods, axes["seeds"]
    ):
        if not isinstance(data, str):
            raise ConfigError(f"{where}: data names a data set or a [data.NAME] table, got {data!r}")
        table = dict(tables.get(data, {"spec": data}))
        fields: dict[str, Any] = {"data": table.pop("spec", data), **common, **table}
        fields = {k: _fill(v, places, where) for k, v in fields.items()}
        job = Job(
            method=method,
            options=_fill(options, places, where),
            setting=setting,
            setting_options=_fill(setting_options, places, where),
            seed=seed,
            **fields,
        )
        try:
            check_options(job)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        yield job


_AXES: dict[str, Any] = {"methods": (), "settings": ("continual",), "data": ("glyphs",), "seeds": (0,)}


def _import(module: str, name: str) -> None:
    """Import a plugin of a sweep file; one that lies in the folder one stands in is found, too."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        importlib.import_module(module)
    except Exception as error:  # a user's module may fail in any way
        raise ConfigError(
            f"{name}: plugin {module!r} cannot be imported ({type(error).__name__}: {error}); install it, or start "
            "where its file lies"
        ) from error


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _named(
    entries: list[Any], kind: str, known: Iterable[str], missing: dict[str, None] | None
) -> list[tuple[str, dict[str, Any]]]:
    """`"tent"` and `{name = "tent", lr = 1e-3}` as (name, options).

    Unknown names go to `missing`, or are refused where it is None.
    """
    known, found = list(known), []
    for entry in entries:
        options = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
        name = options.pop("name", None)
        if name in known:
            found.append((name, options))
        elif missing is None:
            raise unknown_name(kind, name, known)
        else:
            missing[str(name)] = None
    return found


def _fill(value: Any, places: Mapping[str, str], where: str) -> Any:
    """`${name}` replaced by the entry of `[paths]`, or by the environment variable of that name, at every depth."""
    if isinstance(value, list):
        return [_fill(item, places, where) for item in value]
    if isinstance(value, Mapping):
        return {key: _fill(item, places, where) for key, item in value.items()}
    if not isinstance(value, str) or "$" not in value:
        return value
    try:
        return os.path.expanduser(string.Template(value).substitute({**os.environ, **places}))
    except KeyError as error:
        raise ConfigError(
            f"{where}: ${{{error.args[0]}}} in {value!r} is neither in [paths] nor an environment variable"
        ) from None
    except ValueError:
        raise ConfigError(
            f"{where}: {value!r} has a $ that begins no name; write ${{name}} for an entry of [paths], $$ for a plain $"
        ) from None


def _table(value: Any, name: str, where: str) -> Mapping[str, Any]:
    """A table of a sweep file, or an error that says how one is written."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: [{name}] is a table, got {value!r}; write [{name}] and its entries below")
    return value


def _known(kind: str, given: Iterable[str], known: Iterable[str]) -> None:
    for key in given:
        if key not in set(known):
            raise unknown_name(kind, key, known)


# running


@dataclass
class Plan:
    """What a sweep will do: jobs to run, ids that exist, failures of earlier, jobs that cannot be completed."""

    todo: list[Resolved] = field(default_factory=list)
    done: list[Resolved] = field(default_factory=list)
    failed_before: list[Resolved] = field(default_factory=list)
    broken: list[tuple[Job, str]] = field(default_factory=list)


@dataclass
class Summary:
    """How a sweep went. `ok` means that nothing failed; `left` counts jobs without a record, because time was up."""

    ran: int = 0
    skipped: int = 0
    left: int = 0
    failed: list[tuple[str, str, str]] = field(default_factory=list)  # (id, title, reason)
    damaged: list[Path] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failed


def make_plan(
    sweep: Sweep, store: Store, retry_failed: bool = False, on_job: Callable[[int], None] | None = None
) -> Plan:
    """Complete every job and sort it by what the store already knows; `on_job` hears how many are looked at."""
    plan, seen = Plan(), set[str]()
    store.rows()
    for number, job in enumerate(sweep.jobs, 1):
        try:
            resolved = resolve(job)
        except Exception as error:  # a missing file must not stop the jobs that can run
            plan.broken.append((job, reason_for(error)))
            continue
        finally:
            if on_job is not None:
                on_job(number)
        if resolved.id in seen:
            continue
        seen.add(resolved.id)
        if unresolved_id(job) in store:
            store.discard(unresolved_id(job))
        row = store.row(resolved.id)
        if row is None or (row.status != "done" and retry_failed):
            plan.todo.append(resolved)
        else:
            (plan.done if row.status == "done" else plan.failed_before).append(resolved)
    return plan


def run_sweep(
    sweep: Sweep,
    store: Store,
    executor: Executor | None = None,
    options: RunOptions | None = None,
    listener: Listener | None = None,
    *,
    plan: Plan | None = None,
    retry_failed: bool = False,
) -> Summary:
    """Run what is missing and say how it went; nothing a job does ends the sweep."""
    store.check_writable()
    plan = plan or make_plan(sweep, store, retry_failed)
    listener = listener or Silent()
    summary = Summary(skipped=len(plan.done))
    for job, reason in plan.broken:
        record = broken_record(job, reason)
        store.put(record)
        listener.finished(record)
        summary.failed.append((record["id"], job.title, reason))
    for resolved in plan.failed_before:
        row = store.row(resolved.id)
        summary.failed.append((resolved.id, resolved.job.title, f"{row.reason if row else ''} (in an earlier run)"))
    titles = {resolved.id: resolved.job.title for resolved in plan.todo}
    counting = _Counting(listener, summary, titles)
    if plan.todo:
        (executor or InProcess()).run(plan.todo, store, options or RunOptions(), counting)
        summary.left = len(plan.todo) - counting.heard
    summary.damaged = list(store.damaged)
    return summary


def broken_record(job: Job, reason: str) -> Record:
    """The record of a job whose data, weights or options could not be completed."""
    options = dict(job.options)
    resolved = Resolved(
        job=job,
        id=unresolved_id(job),
        options=options,
        setting={"name": job.setting, **job.setting_options},
        data={"spec": job.data, "name": re.split(r"[:/]", job.data)[0], "size": job.images_per_domain or 1},
        model={"name": job.model, "weights": [Path(w).name for w in job.weights]},
        fingerprints={},
    )
    return failure(resolved, reason)


@dataclass
class _Counting:
    """Passes news on and keeps the summary."""

    listener: Listener
    summary: Summary
    titles: Mapping[str, str]
    heard: int = 0

    def started(self, id: str, worker: str) -> None:
        self.listener.started(id, worker)

    def progressed(self, progress: Any) -> None:
        self.listener.progressed(progress)

    def stopped(self, job: Stopped) -> None:
        self.listener.stopped(job)

    def finished(self, record: Record) -> None:
        self.heard += 1
        if record["status"] == "done":
            self.summary.ran += 1
        else:
            self.summary.failed.append((record["id"], self.titles[record["id"]], record["reason"]))
        self.listener.finished(record)
