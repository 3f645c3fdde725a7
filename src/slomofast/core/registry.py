"""Methods by name: those of this package, and those other packages add through an entry point."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, TypeVar

from slomofast.core.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from slomofast.core.adapter import Adapter

ENTRY_POINTS = "slomofast.methods"
NORMS = ("batch", "group", "layer", "none")


@dataclass(frozen=True)
class MethodInfo:
    """Facts about a method: what it is, what it trains, what it needs.

    Attributes:
        trains: what moves, in words ("norm layers", "all parameters", "nothing").
        norms: normalisation layers with which the method does something useful.
        needs_source: whether `fit_source` must see source images before the stream (with the default options).
        needs_features: whether the model must be split into features and head.
        batch_of_one: whether single images are a sensible input (they always run).
    """

    name: str
    title: str
    paper: str
    trains: str
    norms: tuple[str, ...]
    needs_source: bool
    needs_features: bool
    batch_of_one: bool
    returns: str
    adapter: type[Adapter]

    @property
    def options(self) -> list[dict[str, Any]]:
        """Name, type, default, range and meaning of every option."""
        return self.adapter.Config.options()

    @property
    def presets(self) -> tuple[str, ...]:
        """Names accepted as `preset=`."""
        return tuple(self.adapter.Config.PRESETS)


_methods: dict[str, MethodInfo] = {}
_discovered = False
AdapterType = TypeVar("AdapterType", bound="type[Adapter]")


def register(
    name: str,
    *,
    paper: str,
    trains: str,
    norms: tuple[str, ...] = ("batch", "group", "layer"),
    needs_source: bool = False,
    needs_features: bool = False,
    batch_of_one: bool = False,
    returns: str = "logits from before the update",
) -> Callable[[AdapterType], AdapterType]:
    """Class decorator that makes an adapter available under `name`, with the facts users ask for."""

    def add(cls: AdapterType) -> AdapterType:
        known = _methods.get(name)
        if known is not None and (known.adapter.__module__, known.adapter.__qualname__) != (
            cls.__module__,
            cls.__qualname__,
        ):
            raise ConfigError(f"method {name!r} is registered twice: {known.adapter.__module__} and {cls.__module__}")
        title = (inspect.getdoc(cls) or "").split("\n", 1)[0]
        cls.method = name
        _methods[name] = MethodInfo(
            name, title, paper, trains, norms, needs_source, needs_features, batch_of_one, returns, cls
        )
        return cls

    return add


def _discover() -> None:
    """Import the package's own methods and those of entry points; a broken plug-in warns and the rest loads."""
    global _discovered
    if _discovered:
        return
    package = importlib.import_module("slomofast.methods")
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"slomofast.methods.{module.name}")
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:
            warnings.warn(f"method plug-in {entry.name!r} ({entry.value}) could not be loaded: {error}", stacklevel=2)
    _discovered = True


def list_methods() -> list[str]:
    """Names of all methods, sorted."""
    _discover()
    return sorted(_methods)


def describe(name: str) -> MethodInfo:
    """Facts about one method; an unknown name gets the nearest match."""
    _discover()
    if name not in _methods:
        raise unknown_name("method", name, _methods)
    return _methods[name]
