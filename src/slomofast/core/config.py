"""Options as frozen dataclasses: typed, ranged, checked when built, readable from text."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, Union

from slomofast.core.errors import ConfigError, unknown_name


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[Any, ...] | None = None,
) -> Any:
    """A dataclass field with a sentence and a range: `low <= value <= high`, `value > above`.

    `choices` on a tuple field restricts each of its items.
    """
    facts = {"help": help, "low": low, "high": high, "above": above, "choices": choices}
    return dataclasses.field(default=default, metadata=facts)


def other_default(base: type, name: str, default: Any) -> Any:
    """The option `name` of a base class with another default; its sentence and range stay.

    >>> @dataclass(frozen=True)
    ... class Base:
    ...     share: float = option(0.5, "share of the old", low=0.0)
    >>> other_default(Base, "share", 0.9).metadata["help"]
    'share of the old'
    """
    return dataclasses.field(default=default, metadata=base.__dataclass_fields__[name].metadata)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class AdapterConfig:
    """Base of every method's options. Subclasses add fields made with `option` and, if useful, `PRESETS`."""

    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for item in dataclasses.fields(self):
            value = _coerce(item.name, getattr(self, item.name), hints[item.name])
            object.__setattr__(self, item.name, value)
            _check_range(item.name, value, item.metadata)
        self.validate()

    def validate(self) -> None:
        """Refuse combinations of values that cannot work together; subclasses override."""

    @classmethod
    def build(cls, options: Mapping[str, Any], preset: str | None = None) -> Self:
        """Options by name over an optional preset; a wrong name gets the nearest right one.

        Several presets are joined by a plus, `imagenet+source_free`; a later one wins. A family (`cifar`, `cifar100`,
        `imagenet`) without a preset of its own means the defaults, with a hundred classes those of `cifar`.
        """
        known = [item.name for item in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                raise unknown_name(f"option of {cls.__name__}", name, known)
        values: dict[str, Any] = {}
        for name in preset.split("+") if preset is not None else ():
            values |= cls._preset(name)
        return cls(**{**values, **options})

    @classmethod
    def for_(cls, preset: str, **options: Any) -> Self:
        """The preset of a data family (`cifar`, `cifar100`, `imagenet`) or a named one, with changes."""
        return cls.build(options, preset)

    @classmethod
    def _preset(cls, name: str) -> Mapping[str, Any]:
        if name == "cifar100" and name not in cls.PRESETS:
            name = "cifar"
        if name not in cls.PRESETS and name not in FAMILIES:
            raise unknown_name(f"preset of {cls.__name__}", name, [*cls.PRESETS, *FAMILIES])
        return cls.PRESETS.get(name, {})

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> dict[str, Any]:
        """Typed values for options given as text (`lr=1e-3`), ready for `build`.

        >>> @dataclass(frozen=True)
        ... class Example(AdapterConfig):
        ...     lr: float = option(1e-3, "step size")
        >>> Example.parse({"lr": "0.01"})
        {'lr': 0.01}
        """
        hints = typing.get_type_hints(cls)
        known = [item.name for item in dataclasses.fields(cls)]
        for name in texts:
            if name not in known:
                raise unknown_name(f"option of {cls.__name__}", name, known)
        return {name: _from_text(name, text, hints[name]) for name, text in texts.items()}

    @classmethod
    def options(cls) -> list[dict[str, Any]]:
        """Name, type, default, help and range of each option, for tables and `--help`."""
        hints = typing.get_type_hints(cls)
        return [
            {
                "name": item.name,
                "type": _type_name(hints[item.name]),
                "default": item.default,
                **item.metadata,
            }
            for item in dataclasses.fields(cls)
        ]


FAMILIES = ("cifar", "cifar100", "imagenet")


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return " | ".join(str(choice) for choice in typing.get_args(hint))
    return getattr(hint, "__name__", str(hint)) if not typing.get_args(hint) else str(hint)


def _coerce(name: str, value: Any, hint: Any) -> Any:
    """The value as its declared type, or an error; an int is a fine float, a list a fine tuple."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _coerce_to_one(name, value, args)
    if origin is Literal:
        if value not in args:
            raise unknown_name(f"value of {name}", value, [str(arg) for arg in args])
        return value
    if origin in (tuple, Sequence):
        if isinstance(value, list | tuple):
            return tuple(_coerce(name, item, args[0]) for item in value)
        raise ConfigError(f"{name} must be a sequence, got {value!r} ({type(value).__name__})")
    if hint in (int, float) and hasattr(value, "__index__") and not isinstance(value, bool):
        return hint(value)
    if isinstance(hint, type) and (not isinstance(value, hint) or (hint is int and isinstance(value, bool))):
        raise ConfigError(f"{name} must be {hint.__name__}, got {value!r} ({type(value).__name__})")
    return value


def _coerce_to_one(name: str, value: Any, hints: Sequence[Any]) -> Any:
    """The value as the first of several types that it fits, or that one's error."""
    if value is None and types.NoneType in hints:
        return None
    first, *others = [hint for hint in hints if hint is not types.NoneType]
    try:
        return _coerce(name, value, first)
    except ConfigError:
        for hint in others:
            try:
                return _coerce(name, value, hint)
            except ConfigError:
                continue
        raise


def _check_range(name: str, value: Any, facts: Mapping[str, Any]) -> None:
    choices = facts.get("choices")
    if choices is not None:
        for item in value if isinstance(value, tuple) else (value,):
            if item not in choices:
                raise unknown_name(f"value of {name}", item, [str(choice) for choice in choices])
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high, above = facts.get("low"), facts.get("high"), facts.get("above")
        if value != value or value in (math.inf, -math.inf):
            raise ConfigError(f"{name} must be a finite number, got {value}")
        if low is not None and value < low:
            raise ConfigError(f"{name} must be at least {low:g}, got {value:g}")
        if high is not None and value > high:
            raise ConfigError(f"{name} must be at most {high:g}, got {value:g}")
        if above is not None and value <= above:
            raise ConfigError(f"{name} must be greater than {above:g}, got {value:g}")


def typed(call: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a function or a class as its annotations say; numbers and lists may be written as text.

    >>> def crop(size: int | None = None, mean: Sequence[float] = ()) -> None: ...
    >>> typed(crop, {"size": "32", "mean": "0.5,0.5"})
    {'size': 32, 'mean': (0.5, 0.5)}
    """
    target = call.func if isinstance(call, functools.partial) else call
    hints = typing.get_type_hints(target.__init__ if isinstance(target, type) else target)  # type: ignore[misc]
    return {name: _argument(name, value, hints[name]) for name, value in options.items()}


def _argument(name: str, value: Any, hint: Any) -> Any:
    written = isinstance(value, str) and str not in (hint, *typing.get_args(hint))
    return _coerce(name, _from_text(name, value, hint) if written else value, hint)


_WORDS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}


def _from_text(name: str, text: str, hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        if text.lower() in ("none", "null"):
            return None
        return _from_text(name, text, next(arg for arg in args if arg is not type(None)))
    if origin in (tuple, Sequence):
        return tuple(_from_text(name, part.strip(), args[0]) for part in text.split(",") if part.strip())
    if hint is bool:
        if text.lower() not in _WORDS:
            raise ConfigError(f"{name} must be true or false, got {text!r}")
        return _WORDS[text.lower()]
    if hint in (int, float):
        try:
            return hint(text)
        except ValueError:
            raise ConfigError(f"{name} must be a number ({hint.__name__}), got {text!r}") from None
    return text
