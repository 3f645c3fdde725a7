"""Runs put together: the same experiment under several methods, the same method under several seeds.

A `Group` is one experiment: setting with all its fields, data, network and protocol (batch size, images per domain,
severity, precision, weights). Runs are averaged over seeds only inside a group, never across different protocols.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slomofast.report import names
from slomofast.report.records import Run
from slomofast.report.reference import architecture


@dataclass(frozen=True)
class Method:
    """A method with the options that were changed from its defaults."""

    name: str
    overrides: str = "{}"

    @property
    def title(self) -> str:
        """The printed name, followed by what was changed."""
        changed = ", ".join(f"{k}={_short(v)}" for k, v in json.loads(self.overrides).items())
        return names.method_title(self.name) + (f" ({changed})" if changed else "")

    @property
    def plain(self) -> bool:
        """Whether all options are the defaults."""
        return self.overrides == "{}"

    @property
    def rank(self) -> tuple[tuple[int, str], bool, str]:
        """Sorting key."""
        return (names.method_rank(self.name), not self.plain, self.overrides)


@dataclass(frozen=True)
class Cell:
    """One method in one experiment, over its seeds."""

    method: Method
    runs: tuple[Run, ...]

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
        """Whether published numbers speak of the same stream: severity 5, all domains, the published cycles."""
        facts = dict(self.protocol)
        usual = float(facts.get("severity", 5)) == 5 and "domains" not in facts
        wanted = {"cyclic": 2, "lifelong": 10}.get(self.setting)
        inner = self.fields.get("inner")
        plain = inner is None or (inner.get("name") if isinstance(inner, dict) else inner) == "continual"
        return usual and plain and (wanted is None or self.cycles == wanted)

    @property
    def images_per_domain(self) -> int | None:
        """How many images each domain had; None: all of them."""
        value = dict(self.protocol).get("images_per_domain")
        return None if value is None else int(value)


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def deviation(values: Sequence[float]) -> float | None:
    """Sample standard deviation, None for fewer than two values."""
    if len(values) < 2:
        return None
    middle = sum(values) / len(values)
    return math.sqrt(sum((v - middle) ** 2 for v in values) / (len(values) - 1))


def group_runs(runs: Iterable[Run]) -> list[Group]:
    """All experiments in the order of the paper's tables, each with its methods in reading order."""
    groups: dict[tuple[object, ...], Group] = {}
    members: dict[tuple[object, ...], dict[Method, list[Run]]] = {}
    for run in runs:
        key: tuple[object, ...] = (run.setting, run.setting_fields, run.data, run.model, run.protocol)
        if key not in groups:
            groups[key] = Group(run.setting, run.setting_fields, run.data, run.model, run.protocol)
        members.setdefault(key, {}).setdefault(Method(run.method, run.overrides), []).append(run)
    for key, group in groups.items():
        for method in sorted(members[key], key=lambda m: m.rank):
            ordered = sorted(members[key][method], key=lambda run: (run.seed, run.id))
            group.cells[method] = Cell(method, tuple(ordered))
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
        for group, fact in zip(family, facts, strict=True):
            words = [
                _WORDS.get(k, k + " {}").format(fact.get(k, "all" if k == "images_per_domain" else "default"))
                for k in varying
            ]
            group.variant = ", ".join(words)


def _facts(group: Group) -> Mapping[str, str]:
    own = {k: v if isinstance(v, str) else json.dumps(v) for k, v in group.fields.items()}
    return own | dict(group.protocol)
