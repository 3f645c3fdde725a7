"""The contract of a metric: declared state, update with a step, compute, merge."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from slomofast.core.errors import unknown_name
from slomofast.metrics.step import Step


class Metric(ABC):
    """A figure that is collected step by step.

    A subclass declares `state` (name -> first value) and writes `update` and `compute`; `reset` restores the
    state and `merge` adds the state of another part of the stream: numbers and tensors are added, lists
    joined, dictionaries merged key by key.
    """

    name: ClassVar[str] = ""
    unit: ClassVar[str] = ""
    higher_is_better: ClassVar[bool] = False
    state: ClassVar[Mapping[str, Any]] = {}

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything that was collected."""
        for name, value in self.state.items():
            setattr(self, name, copy.deepcopy(value))

    @abstractmethod
    def update(self, step: Step) -> None:
        """Take one step into account."""

    @abstractmethod
    def compute(self) -> Any:
        """The figure for everything so far; NaN (or an empty collection) before the first step."""

    def merge(self, other: Self) -> None:
        """Take over what another metric of the same kind collected on a later part of the stream."""
        if type(other) is not type(self):
            raise TypeError(f"cannot merge {type(other).__name__} into {type(self).__name__}")
        for name in self.state:
            setattr(self, name, _added(getattr(self, name), getattr(other, name)))

    def fresh(self) -> Self:
        """A new metric with the same arguments and nothing collected."""
        twin = copy.copy(self)
        twin.reset()
        return twin

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.compute()!r})"


def _added(mine: Any, other: Any) -> Any:
    if isinstance(mine, Metric):
        mine.merge(other)
        return mine
    if isinstance(mine, dict):
        both = dict(mine)
        for key, value in other.items():
            both[key] = _added(both[key], value) if key in both else copy.deepcopy(value)
        return both
    return mine + other


_METRICS: dict[str, type[Metric]] = {}


def register_metric(cls: type[Metric]) -> type[Metric]:
    """Class decorator that makes a metric known under its `name`."""
    _METRICS[cls.name] = cls
    return cls


def list_metrics() -> list[str]:
    """Names of the metrics that `make_metric` builds."""
    return sorted(_METRICS)


def make_metric(name: str, **options: Any) -> Metric:
    """A metric by its name."""
    if name not in _METRICS:
        raise unknown_name("metric", name, _METRICS)
    return _METRICS[name](**options)
