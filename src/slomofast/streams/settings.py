"""The settings: in which order a stream shows its domains, and what repeats."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from slomofast.core.errors import ConfigError
from slomofast.streams.options import option
from slomofast.streams.order import uniforms, walk
from slomofast.streams.ordering import across_groups, by_source_error
from slomofast.streams.schedule import Layout, Segment, Setting, register

GROUP_ORDER = ("noise", "blur", "weather", "digital", "distortion")

# Rows: from; columns: to; both in the order of GROUP_ORDER.
TRANSITIONS = (
    (0.50, 0.20, 0.20, 0.05, 0.05),
    (0.15, 0.50, 0.20, 0.10, 0.05),
    (0.10, 0.15, 0.60, 0.10, 0.05),
    (0.05, 0.05, 0.10, 0.70, 0.10),
    (0.20, 0.10, 0.10, 0.10, 0.50),
)


@register("continual")
@dataclass(frozen=True)
class Continual(Setting):
    """One domain after the other in catalogue order, never a reset."""

    def segments(self, layout: Layout) -> Iterator[Segment]:
        for domain in layout.catalog.domains:
            yield layout.visit(domain)


@register("mixed")
@dataclass(frozen=True)
class Mixed(Setting):
    """The images of all domains shuffled together, so that a batch mixes domains."""

    def segments(self, layout: Layout) -> Iterator[Segment]:
        everything = tuple(range(len(layout.catalog.domains)))
        if everything:
            yield Segment("mixed", everything, layout.severity, layout.images)


@register("gradual")
@dataclass(frozen=True)
class Gradual(Setting):
    """Every domain climbs from mild to severe and back before the next begins."""

    severities: tuple[float, ...] = option(
        (1.0, 2.0, 3.0, 4.0, 5.0, 4.0, 3.0, 2.0, 1.0), "strengths in order", kind="floats", low=0, high=5
    )

    def segments(self, layout: Layout) -> Iterator[Segment]:
        for domain in layout.catalog.domains:
            for place, severity in enumerate(self.severities):
                yield layout.visit(domain, severity, continues=place > 0)


@register("episodic")
@dataclass(frozen=True)
class Episodic(Setting):
    """A setting whose adapter is put back to its first state at every boundary."""

    inner: Setting = option(Continual(), "the setting to play", kind="setting")

    def segments(self, layout: Layout) -> Iterator[Segment]:
        for place, segment in enumerate(self.inner.segments(layout)):
            yield dataclasses.replace(segment, reset=place > 0 and not segment.continues)


@register("cross_group")
@dataclass(frozen=True)
class CrossGroup(Setting):
    """Neighbouring domains come from different groups: gaussian noise, defocus blur, snow, brightness ..."""

    def segments(self, layout: Layout) -> Iterator[Segment]:
        for domain in across_groups(layout.catalog):
            yield layout.visit(domain)


@register("easy2hard")
@dataclass(frozen=True)
class EasyToHard(Setting):
    """Domains sorted by the source model's error, lowest first."""

    needs = ("source_errors",)

    def segments(self, layout: Layout) -> Iterator[Segment]:
        for domain in by_source_error(layout.catalog, self.name):
            yield layout.visit(domain)


@register("hard2easy")
@dataclass(frozen=True)
class HardToEasy(Setting):
    """Domains sorted by the source model's error, highest first."""

    needs = ("source_errors",)

    def segments(self, layout: Layout) -> Iterator[Segment]:
        for domain in reversed(by_source_error(layout.catalog, self.name)):
            yield layout.visit(domain)


def _in_turn(layout: Layout, *settings: Setting) -> Iterator[Segment]:
    """One setting after the other; cycles count on, so that each part keeps its own figures."""
    passed = 0
    for setting in settings:
        highest = passed
        for place, segment in enumerate(setting.segments(layout)):
            cycle = passed + segment.cycle
            highest = max(highest, cycle)
            yield dataclasses.replace(segment, cycle=cycle, continues=segment.continues and place > 0)
        passed = highest + 1


@register("mixed_after_continual")
@dataclass(frozen=True)
class MixedAfterContinual(Setting):
    """`continual`, then `mixed`, without a reset; scored as 16 columns for 15 domains."""

    def segments(self, layout: Layout) -> Iterator[Segment]:
        return _in_turn(layout, Continual(), Mixed())


@register("continual_after_mixed")
@dataclass(frozen=True)
class ContinualAfterMixed(Setting):
    """`mixed`, then `continual`, without a reset; scored as 16 columns for 15 domains."""

    def segments(self, layout: Layout) -> Iterator[Segment]:
        return _in_turn(layout, Mixed(), Continual())


@register("cyclic")
@dataclass(frozen=True)
class Cyclic(Setting):
    """A setting played several times over without a reset; by default every group, twice."""

    inner: Setting = option(Continual(), "the setting to repeat", kind="setting")
    cycles: int = option(2, "how often", kind="int", low=1, high=10_000)

    def segments(self, layout: Layout) -> Iterator[Segment]:
        return _in_turn(layout, *[self.inner] * self.cycles)


@register("cyclic_group")
@dataclass(frozen=True)
class CyclicGroup(Setting):
    """One group repeated several times, then the next group repeated, and so on."""

    cycles: int = option(2, "how often each group is played", kind="int", low=1, high=10_000)
    groups: tuple[str, ...] | None = option(None, "groups in order; all of the data set's if unset", kind="names?")
    reset_between_groups: bool = option(False, "reset the adapter where a new group begins", kind="bool")

    def segments(self, layout: Layout) -> Iterator[Segment]:
        names = self.groups or tuple(g for g, members in layout.catalog.groups.items() if members)
        if not names:
            raise ConfigError(f"{self.name} needs groups of domains, and this stream has none; use 'cyclic' instead")
        for place, name in enumerate(names):
            members = layout.group(name, self.name)
            for cycle in range(self.cycles):
                for order, domain in enumerate(members):
                    first = place > 0 and cycle == 0 and order == 0
                    yield layout.visit(domain, cycle=cycle, reset=self.reset_between_groups and first)


@register("cycle_length")
@dataclass(frozen=True)
class CycleLength(Setting):
    """The first few domains of the `cross_group` order, repeated until a number of visits is reached."""

    length: int = option(5, "domains in a cycle (3, 5, 10, 15 in the paper)", kind="int", low=1)
    visits: int = option(30, "domain visits in all", kind="int", low=1, high=100_000)

    def segments(self, layout: Layout) -> Iterator[Segment]:
        order = across_groups(layout.catalog)
        if self.length > len(order):
            raise ConfigError(f"{self.name}: length {self.length} is more than the {len(order)} domains of this stream")
        for visit in range(self.visits):
            yield layout.visit(order[visit % self.length], cycle=visit // self.length)


@register("lifelong")
@dataclass(frozen=True)
class Lifelong(Cyclic):
    """`cyclic` for ten cycles: 7,500 steps of 200 images over 15 domains of 10,000, never a reset."""

    cycles: int = option(10, "how often", kind="int", low=1, high=10_000)


@register("stochastic")
@dataclass(frozen=True)
class Stochastic(Setting):
    """A Markov chain wanders over the groups; each visit shows one domain of the group, drawn uniformly."""

    visits: int = option(30, "domain visits in all", kind="int", low=1, high=100_000)
    groups: tuple[str, ...] = option(GROUP_ORDER, "states of the chain", kind="names")
    transitions: tuple[tuple[float, ...], ...] = option(
        TRANSITIONS, "row i: probabilities of the next group after group i", kind="matrix", low=0, high=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        states = len(self.groups)
        if len(self.transitions) != states or any(len(row) != states for row in self.transitions):
            shape = f"{len(self.transitions)} rows of {sorted({len(row) for row in self.transitions})}"
            raise ConfigError(f"{self.name}: transitions must be {states} x {states} for {states} groups, got {shape}")
        for name, row in zip(self.groups, self.transitions, strict=True):
            if abs(sum(row) - 1) > 1e-6:
                raise ConfigError(f"{self.name}: the row of {name!r} must add up to 1, got {sum(row):g}")

    def chain(self, seed: int) -> list[int]:
        """States visited by the run with this seed, one per visit."""
        start, *draws = uniforms(self.visits, seed, 1)
        return walk(np.array(self.transitions), self.visits, int(start * len(self.groups)), draws)

    def segments(self, layout: Layout) -> Iterator[Segment]:
        members = [layout.group(name, self.name) for name in self.groups]
        picks = uniforms(self.visits, layout.seed, 2)
        for state, pick in zip(self.chain(layout.seed), picks, strict=True):
            yield layout.visit(members[state][int(pick * len(members[state]))])


@register("correlated")
@dataclass(frozen=True)
class Correlated(Setting):
    """Any setting with labels in bursts: a segment's classes are dealt to stretches by Dirichlet(delta)."""

    inner: Setting = option(Continual(), "the setting to play", kind="setting")
    delta: float = option(0.1, "concentration; the smaller, the longer the bursts", kind="float", low=1e-3, high=1e3)
    slots: int = option(0, "stretches in a segment; 0 means one per class", kind="int", low=0, high=100_000)

    def segments(self, layout: Layout) -> Iterator[Segment]:
        if layout.catalog.labels is None:
            raise ConfigError(f"{self.name} needs the labels of the images, and this catalogue does not give them")
        for segment in self.inner.segments(layout):
            yield dataclasses.replace(segment, delta=self.delta, slots=self.slots)


@register("then")
@dataclass(frozen=True)
class Then(Setting):
    """One setting followed by another, without a reset in between."""

    combinator = True
    first: Setting = option(Continual(), "what comes first", kind="setting")
    second: Setting = option(Mixed(), "what follows", kind="setting")

    def segments(self, layout: Layout) -> Iterator[Segment]:
        return _in_turn(layout, self.first, self.second)
