"""What a setting is: segments laid out over a catalogue of domains, without a pixel."""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np

from slomofast.core.errors import ConfigError, unknown_name
from slomofast.data.catalog import Catalog
from slomofast.streams.options import checked


@dataclass(frozen=True)
class Segment:
    """A stretch of the stream whose images come from the same place: one column of a results table.

    A batch never crosses a segment. The images themselves are not listed here; `Stream` computes them when it
    gets there, so a segment costs the same whether it holds ten images or a million.

    Attributes:
        name: what a table calls it, such as `fog`, `fog@3` or `mixed`.
        domains: positions in the stream's domains; more than one means their images are shuffled together.
        severity: strength of the corruption; the mean of the two where `pair` is given.
        images: images of each domain.
        cycle: which repetition of the setting's pattern this belongs to, from 0.
        visit: running number of the stay at a domain, from 0; a visit may have several segments.
        reset: the adapter goes back to its first state before this segment.
        number: place in the stream, from 0.
        shuffle: 0 for the run's one permutation, another number for a permutation of its own.
        continues: belongs to the same visit as the segment before it.
        delta: label bursts as Dirichlet(delta), or None for labels in random order.
        slots: stretches that the bursts are dealt to; 0 means one per class.
        pair: two corruptions with their severities, applied one after the other.
    """

    name: str
    domains: tuple[int, ...]
    severity: float
    images: int
    cycle: int = 0
    visit: int = 0
    reset: bool = False
    number: int = 0
    shuffle: int = 0
    continues: bool = False
    delta: float | None = None
    slots: int = 0
    pair: tuple[tuple[str, float], tuple[str, float]] | None = None

    @property
    def count(self) -> int:
        """Images in the segment, all domains together."""
        return self.images * len(self.domains)

    @property
    def domain(self) -> int:
        """Position of the domain, or -1 where several are mixed."""
        return self.domains[0] if len(self.domains) == 1 else -1


@dataclass(frozen=True)
class Layout:
    """What a setting may look at while it lays out a stream."""

    catalog: Catalog
    images: int
    severity: float = 5.0
    seed: int = 0
    matrices: Mapping[str, np.ndarray] | None = None
    pairs: bool = False
    available: int = 0

    def position(self, domain: str) -> int:
        """Where a domain stands in the catalogue."""
        try:
            return self.catalog.domains.index(domain)
        except ValueError:
            raise unknown_name("domain", domain, self.catalog.domains) from None

    def visit(self, domain: str, severity: float | None = None, **changes: Any) -> Segment:
        """A segment of one domain; a severity other than the run's shows in its name."""
        level = self.severity if severity is None else float(severity)
        name = domain if severity is None else f"{domain}@{level:g}"
        return Segment(name, (self.position(domain),), level, self.images, **changes)

    def group(self, name: str, setting: str) -> tuple[str, ...]:
        """Domains of a group in catalogue order; an error where it has none."""
        if name not in self.catalog.groups:
            raise ConfigError(
                f"{setting}: {unknown_name('group', name, self.catalog.groups)}"
                if self.catalog.groups
                else f"{setting} needs groups of domains, and this data set has none; use 'cyclic' instead"
            )
        found = set(self.catalog.groups[name])
        members = tuple(d for d in self.catalog.domains if d in found)
        if not members:
            raise ConfigError(f"{setting}: group {name!r} has no domain in this stream; add one or leave the group out")
        return members


@dataclass(frozen=True)
class Setting(ABC):
    """Turns a catalogue of domains into segments. Subclasses are frozen dataclasses; fields are options."""

    name: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()  # facts about the source model: "source_errors", "matrices"
    rule: ClassVar[str] = "segments"  # how the score averages: over "segments" or over "samples"
    combinator: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for spec in dataclasses.fields(self):
            what, value = f"{self.name}: {spec.name}", getattr(self, spec.name)
            if spec.metadata["kind"] == "setting":
                if not isinstance(value, str | Mapping | Setting):
                    raise ConfigError(f"{what} must be a setting, its name or its dictionary, got {value!r}")
                value = make_setting(value)
            object.__setattr__(self, spec.name, checked(what, value, spec.metadata))

    @abstractmethod
    def segments(self, layout: Layout) -> Iterator[Segment]:
        """Lay out the stream; numbers and visits are filled in by `lay_out`."""

    def parts(self) -> tuple[Setting, ...]:
        """The settings inside this one."""
        values = (getattr(self, spec.name) for spec in dataclasses.fields(self))
        return tuple(v for v in values if isinstance(v, Setting))

    def requirements(self) -> tuple[str, ...]:
        """Facts about the source model that this setting, or one inside it, cannot do without."""
        found = dict.fromkeys(self.needs)
        for part in self.parts():
            found.update(dict.fromkeys(part.requirements()))
        return tuple(found)

    def score_rule(self) -> str:
        """`segments` when the score is the mean of the segments' errors, `samples` when over all images."""
        rules = {part.score_rule() for part in self.parts()}
        return "samples" if "samples" in rules or self.rule == "samples" else "segments"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, with the registered name under `name`; `from_dict` reads it back."""
        plain = {spec.name: _plain(getattr(self, spec.name)) for spec in dataclasses.fields(self)}
        return {"name": self.name, **plain}


S = TypeVar("S", bound=type[Setting])
_ORDER = (
    *("continual", "mixed", "gradual", "episodic", "cross_group", "easy2hard", "hard2easy"),
    *("mixed_after_continual", "continual_after_mixed", "ccc", "cyclic", "cyclic_group", "cycle_length"),
    *("lifelong", "stochastic", "correlated", "then"),
)
_FACTS = ("help", "low", "high", "choices")
_SETTINGS: dict[str, type[Setting]] = {}


def register(name: str) -> Any:
    """Class decorator that makes a setting known under a name."""

    def add(cls: S) -> S:
        if name in _SETTINGS:
            raise ConfigError(f"two settings are called {name!r}")
        cls.name = name
        _SETTINGS[name] = cls
        return cls

    return add


@dataclass(frozen=True)
class SettingInfo:
    """Facts about a setting: what `slomofast settings` prints."""

    name: str
    summary: str
    text: str
    options: tuple[dict[str, Any], ...]
    needs: tuple[str, ...]
    combinator: bool


def list_settings(combinators: bool = False) -> list[str]:
    """Names of the settings; with `combinators` also those that only combine others."""
    names = [name for name, cls in _SETTINGS.items() if combinators or not cls.combinator]
    return sorted(names, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))


def setting_class(name: str) -> type[Setting]:
    """The class registered under a name."""
    if name not in _SETTINGS:
        raise unknown_name("setting", name, _SETTINGS)
    return _SETTINGS[name]


def describe_setting(name: str) -> SettingInfo:
    """What a setting is and which options it takes."""
    cls = setting_class(name)
    text = " ".join((cls.__doc__ or "").split())
    options = tuple(
        {"name": f.name, "default": _plain(f.default), **{k: f.metadata[k] for k in _FACTS}}
        for f in dataclasses.fields(cls)
    )
    summary = (cls.__doc__ or "").strip().splitlines()[0]
    return SettingInfo(name, summary, text, options, cls().requirements(), cls.combinator)


def make_setting(name: str | Mapping[str, Any] | Setting, **options: Any) -> Setting:
    """Build a setting from its name and options, which may be plain JSON.

    Settings inside a setting are given as settings, as names, as dictionaries or as JSON text:

    >>> make_setting("cyclic", inner="mixed", cycles=3).to_dict()
    {'name': 'cyclic', 'inner': {'name': 'mixed'}, 'cycles': 3}
    """
    if isinstance(name, Setting):
        return dataclasses.replace(name, **options) if options else name
    if isinstance(name, Mapping):
        return from_dict({**name, **options})
    if name.lstrip().startswith("{"):
        return from_dict({**_json_object(name), **options})
    cls = setting_class(name)
    known = {f.name for f in dataclasses.fields(cls)}
    for key in options:
        if key not in known:
            if not known:
                raise ConfigError(f"setting {name!r} takes no options, got {key!r}")
            raise ConfigError(f"setting {name!r}: {unknown_name('option', key, known)}")
    return cls(**options)


def from_dict(plain: Mapping[str, Any]) -> Setting:
    """The setting that `to_dict` wrote."""
    if not isinstance(plain.get("name"), str):
        raise ConfigError(f"a setting needs a 'name', got {dict(plain)!r}")
    return make_setting(plain["name"], **{k: v for k, v in plain.items() if k != "name"})


def lay_out(setting: Setting, layout: Layout) -> tuple[Segment, ...]:
    """All segments of a setting, numbered."""
    done: list[Segment] = []
    visit = -1
    for number, segment in enumerate(setting.segments(layout)):
        visit += not (segment.continues and number)
        done.append(dataclasses.replace(segment, number=number, visit=visit))
    if not done:
        raise ConfigError(f"{setting.name}: no segments; the data set has no domains")
    return tuple(done)


def part_of(catalog: Catalog, domains: Sequence[str] | None) -> Catalog:
    """The catalogue cut to some domains, in their order."""
    if domains is None:
        return catalog
    chosen = (domains,) if isinstance(domains, str) else tuple(domains)
    for name in chosen:
        if name not in catalog.domains:
            raise unknown_name("domain", name, catalog.domains)
    if not chosen or len(set(chosen)) != len(chosen):
        raise ConfigError(f"domains must name each domain once and at least one, got {list(chosen)}")
    groups = {g: tuple(d for d in members if d in chosen) for g, members in catalog.groups.items()}
    return Catalog(chosen, catalog.size, groups, catalog.labels, catalog.source_errors)


def _json_object(text: str) -> dict[str, Any]:
    try:
        plain = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"a setting written as JSON must parse: {error} in {text!r}") from None
    if not isinstance(plain, dict):
        raise ConfigError(f"a setting written as JSON must be an object, got {text!r}")
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Setting):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    return value
