"""Runs put together: the same experiment under several methods, the same method under several seeds.

A `Group` is one experiment: setting with all its fields, data, network and protocol (batch size, images per domain,
severity, precision, weights). Runs are averaged over seeds only inside a group, never across different protocols.

Inside a group runs belong to one method if all its options are the same, whatever was typed to get them. Metrics,
memory layout and compilation do not change what is computed and tell no runs apart; of several runs with one seed the
newest counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slomofast.report import names
from slomofast.report.records import Run, canonical
from slomofast.report.reference import architecture, ccc_stream

_ABSENT = "absent"  # stands for an option that later records of the method have and these have not


@dataclass(frozen=True)
class Method:
    """A method with what differs from its defaults, as canonical JSON."""

    name: str
    changes: str = "{}"

    @property
    def title(self) -> str:
        """The printed name, followed by what differs."""
        changed = ", ".join(_change(k, v) for k, v in json.loads(self.changes).items())
        return names.method_title(self.name) + (f" ({changed})" if changed else "")

    @property
    def plain(self) -> bool:
        """Whether all options are the defaults."""
        return self.changes == "{}"

    @property
    def rank(self) -> tuple[tuple[int, str], bool, str]:
        """Sorting key."""
        return (names.method_rank(self.name), not self.plain, self.changes)


@dataclass(frozen=True)
class Cell:
    """One method in one experiment, over its seeds: one run for each, and older ones that repeat a seed."""

    method: Method
    runs: tuple[Run, ...]
    repeats: tuple[Run, ...] = ()

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that count, in order."""
        return tuple(run.seed for run in self.runs)

    @property
    def mean(self) -> float:
        """Mean error over seeds, percent."""
        return sum(run.error for run in self.runs) / len(self.runs)

    @property
    def deviation(self) -> float | None:
        """Sample deviation over seeds; None for a single one."""
        return deviation([run.error for run in self.runs])

    def domain(self, name: str) -> list[float]:
        """Errors of one column, one per run that has it."""
        return [run.domains[name] for run in self.runs if name in run.domains]


@dataclass
class Group:
    """One experiment and the methods that went through it."""

    setting: str
    setting_fields: str
    data: str
    model: str
    protocol: tuple[tuple[str, str], ...]
    cells: dict[Method, Cell] = field(default_factory=dict)
    variant: str = ""  # what tells it from other groups of the same setting, data and model
    stream: str = ""  # folder of the shards where the data are those of a CCC stream

    @property
    def title(self) -> str:
        """The experiment in a line."""
        parts = [names.setting_title(self.setting), names.data_title(self.data), self.model_title]
        return " · ".join(parts + ([self.variant] if self.variant else []))

    @property
    def model_title(self) -> str:
        """The network's usual spelling."""
        return names.MODELS.get(architecture(self.model), self.model)

    @property
    def rank(self) -> tuple[object, ...]:
        """Sorting key."""
        return (
            names.setting_rank(self.setting),
            names.data_rank(self.data),
            self.model,
            self.setting_fields,
            self.protocol,
        )

    @property
    def fields(self) -> dict[str, object]:
        """The setting's own options."""
        return dict(json.loads(self.setting_fields))

    @property
    def domains(self) -> list[str]:
        """Columns in the order in which the stream first shows them."""
        return list(dict.fromkeys(d for cell in self.cells.values() for run in cell.runs for d in run.domains))

    @property
    def cycles(self) -> int:
        """How many cycles every run tells apart; 0 or 1 where nothing returns."""
        return max((len(run.cycles) for cell in self.cells.values() for run in cell.runs), default=0)

    @property
    def comparable(self) -> bool:
        """Whether published numbers speak of the same stream: severity 5, all domains, the published cycles.

        Never for the setting `ccc`: its streams are made here, the published ones are shards.
        """
        facts = dict(self.protocol)
        usual = float(facts.get("severity", 5)) == 5 and "domains" not in facts
        wanted = {"cyclic": 2, "lifelong": 10}.get(self.setting)
        inner = self.fields.get("inner")
        plain = inner is None or (inner.get("name") if isinstance(inner, dict) else inner) == "continual"
        return usual and plain and self.setting != "ccc" and (wanted is None or self.cycles == wanted)

    @property
    def images_per_domain(self) -> int | None:
        """How many images each domain had; None: all of them."""
        value = dict(self.protocol).get("images_per_domain")
        return None if value is None else int(value)


def _change(name: str, value: object) -> str:
    return f"{name} {_ABSENT}" if value == _ABSENT else f"{name}={_short(value)}"


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def deviation(values: Sequence[float]) -> float | None:
    """Sample standard deviation, None for fewer than two values."""
    if len(values) < 2:
        return None
    middle = sum(values) / len(values)
    return math.sqrt(sum((v - middle) ** 2 for v in values) / (len(values) - 1))


def methods_of(runs: Iterable[Run]) -> dict[str, Method]:
    """The method of every run, by the run's id.

    Runs with the same resolved options have the same method. An option counts as the default if the newest run that
    did not set it has that value; defaults are those of a data family and, where one was asked for, of a preset. Of
    several ways to say how options differ from them the shortest is taken.
    """
    runs = list(runs)
    newest: dict[tuple[str, str, str, str], tuple[str, str]] = {}
    for run in runs:
        kind = (run.method, run.family, run.options, run.overrides)
        newest[kind] = max(newest.get(kind, ("", "")), _age(run))
    asked = {kind: dict(json.loads(kind[3])) for kind in newest}
    options = {kind: dict(json.loads(kind[2])) if kind[2] else None for kind in newest}
    defaults: dict[tuple[str, str, str], dict[str, Any]] = {}
    for kind in sorted(newest, key=lambda k: newest[k], reverse=True):
        held = defaults.setdefault(_family(kind, asked[kind]), {})
        for name, value in (options[kind] or {}).items():
            if name not in asked[kind]:
                held.setdefault(name, value)
    changes: dict[tuple[str, str, str], str] = {}
    for kind in newest:
        chosen = options[kind]
        if chosen is None:
            continue
        usual = defaults[_family(kind, asked[kind])]
        found = {name: value for name, value in chosen.items() if name not in usual or usual[name] != value}
        found |= {name: _ABSENT for name in usual if name not in chosen}
        found |= {"preset": asked[kind]["preset"]} if "preset" in asked[kind] else {}
        text = canonical(found)
        known = changes.get(kind[:3])
        changes[kind[:3]] = text if known is None else min(known, text, key=lambda t: (len(json.loads(t)), t))
    return {r.id: Method(r.method, changes.get((r.method, r.family, r.options), r.overrides)) for r in runs}


def _family(kind: tuple[str, str, str, str], asked: Mapping[str, Any]) -> tuple[str, str, str]:
    """What the defaults of a run depend on: method, data family, preset."""
    return kind[0], kind[1], str(asked.get("preset") or "")


def _age(run: Run) -> tuple[str, str]:
    return run.started, run.id


def _by_source(members: Mapping[Method, Sequence[Run]]) -> dict[Method, list[Run]]:
    """The same runs with those apart that learnt from other source images than the newest."""
    found: dict[Method, list[Run]] = {}
    for method, runs in members.items():
        usual = max(runs, key=_age).source
        for run in runs:
            extra = {} if run.source == usual else {"source": run.source or "the stream's own"}
            changed = canonical(json.loads(method.changes) | extra)
            found.setdefault(Method(method.name, changed), []).append(run)
    return found


def _cell(method: Method, runs: Sequence[Run]) -> Cell:
    """Runs by seed; of several with one seed the newest counts."""
    newest: dict[int, Run] = {}
    for run in sorted(runs, key=_age):
        newest[run.seed] = run
    counted = tuple(newest[seed] for seed in sorted(newest))
    kept = {run.id for run in counted}
    return Cell(method, counted, tuple(sorted((r for r in runs if r.id not in kept), key=lambda r: (r.seed, r.id))))


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """All experiments in the order of the paper's tables, each with its methods in reading order."""
    runs = list(runs)
    methods = methods_of(runs)
    groups: dict[tuple[object, ...], Group] = {}
    members: dict[tuple[object, ...], dict[Method, list[Run]]] = {}
    for run in runs:
        key: tuple[object, ...] = (run.setting, run.setting_fields, run.data, run.model, run.protocol)
        if key not in groups:
            groups[key] = Group(run.setting, run.setting_fields, run.data, run.model, run.protocol)
        groups[key].stream = groups[key].stream or run.stream
        members.setdefault(key, {}).setdefault(methods[run.id], []).append(run)
    for key, group in groups.items():
        found = _by_source(members[key])
        for method in sorted(found, key=lambda m: m.rank):
            group.cells[method] = _cell(method, found[method])
    ordered_groups = sorted(groups.values(), key=lambda g: g.rank)
    _tell_apart(ordered_groups)
    return ordered_groups


def all_methods(groups: Iterable[Group]) -> list[Method]:
    """Every method of these groups in reading order."""
    return sorted({method for group in groups for method in group.cells}, key=lambda m: m.rank)


_WORDS = {
    "images_per_domain": "{} images per domain",
    "batch_size": "batch {}",
    "severity": "severity {}",
    "steps": "{} batches",
    "held_out": "held out {}",
    "data": "data {:.6}",
    "stream": "{}",
    "weights": "weights {:.6}",
}


def _tell_apart(groups: list[Group]) -> None:
    """Name what differs between groups that share setting, data and model."""
    alike: dict[tuple[str, str, str], list[Group]] = {}
    for group in groups:
        alike.setdefault((group.setting, group.data, group.model), []).append(group)
    for family in alike.values():
        if len(family) == 1:
            continue
        facts = [_facts(group) for group in family]
        keys = dict.fromkeys(k for f in facts for k in f)
        # Number of batches follows from the others; it is named only when nothing else differs.
        varying = [k for k in keys if len({f.get(k) for f in facts}) > 1]
        varying = [k for k in varying if k != "steps"] or varying
        if len({f.get("stream") for f in facts}) == len({f.get("data") for f in facts}) > 1:
            varying.remove("data")  # shards are told apart by the name of their stream
        for group, fact in zip(family, facts, strict=True):
            words = [
                _WORDS.get(k, k + " {}").format(fact.get(k, "all" if k == "images_per_domain" else "default"))
                for k in varying
            ]
            group.variant = ", ".join(words)


def _facts(group: Group) -> Mapping[str, str]:
    own = {k: v if isinstance(v, str) else json.dumps(v) for k, v in group.fields.items()}
    return own | dict(group.protocol) | ({"stream": stream_title(group.stream)} if group.stream else {})


def stream_title(folder: str) -> str:
    """A CCC stream in words; the name of its folder where that is not a published one.

    >>> stream_title("baseline_20_transition+speed_1000_seed_44"), stream_title("mine")
    ('medium, speed 1000, seed 44', 'mine')
    """
    known = ccc_stream(folder)
    return f"{known[0]}, speed {known[1]}, seed {known[2]}" if known else folder
