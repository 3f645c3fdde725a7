"""Options of settings: fields that know what they mean and which values they take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from slomofast.core.errors import ConfigError, unknown_name


def option(
    default: Any,
    help: str,
    *,
    kind: str,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field of a setting together with what it means and which values it takes."""
    meta = {"help": help, "kind": kind, "low": low, "high": high, "choices": choices}
    return field(default=default, metadata=meta)


def checked(what: str, value: Any, meta: Mapping[str, Any]) -> Any:
    """The value in its proper type, or an error naming it and what is allowed."""
    kind = meta["kind"]
    if kind.endswith("?"):
        if value is None:
            return None
        kind = kind[:-1]
    if kind == "bool":
        if isinstance(value, bool | np.bool_):
            return bool(value)
        raise ConfigError(f"{what} must be true or false, got {value!r}")
    if kind in ("int", "float"):
        return _number(what, value, kind, meta["low"], meta["high"])
    if kind == "str":
        if not isinstance(value, str):
            raise ConfigError(f"{what} must be text, got {value!r}")
        if meta["choices"] and value not in meta["choices"]:
            raise ConfigError(f"{what}: {unknown_name('choice', value, meta['choices'])}")
        return value
    if kind == "names":
        items = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else ()
        if not items or not all(isinstance(v, str) for v in items):
            raise ConfigError(f"{what} must be a list of names, got {value!r}")
        if len(set(items)) != len(items):
            raise ConfigError(f"{what} names something twice: {', '.join(items)}")
        return items
    if kind == "floats":
        if not isinstance(value, list | tuple) or not value:
            raise ConfigError(f"{what} must be a list of numbers, got {value!r}")
        return tuple(_number(what, v, "float", meta["low"], meta["high"]) for v in value)
    if kind == "matrix":
        if not isinstance(value, list | tuple) or not all(isinstance(row, list | tuple) for row in value):
            raise ConfigError(f"{what} must be a list of rows, got {value!r}")
        return tuple(tuple(_number(what, v, "float", meta["low"], meta["high"]) for v in row) for row in value)
    return value  # a kind the setting checks by itself


def _number(what: str, value: Any, kind: str, low: float | None, high: float | None) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    whole = isinstance(plain, int) and not isinstance(plain, bool)
    if kind == "int" and isinstance(plain, float) and plain.is_integer():
        plain, whole = int(plain), True
    if not whole and (kind == "int" or not isinstance(plain, float)):
        raise ConfigError(f"{what} must be a {'whole ' if kind == 'int' else ''}number, got {value!r}")
    if plain != plain or (low is not None and plain < low) or (high is not None and plain > high):
        bounds = f"at least {low:g}" if high is None else f"from {low:g} to {high:g}"
        raise ConfigError(f"{what} must be {bounds}, got {value!r}")
    return plain if kind == "int" else float(plain)


def whole(name: str, value: Any, low: int | None) -> int:
    """The value as an int, or an error; numpy's integers are welcome."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bool) or not isinstance(plain, int) or (low is not None and plain < low):
        raise ConfigError(f"{name} must be a whole number{'' if low is None else f' of at least {low}'}, got {value!r}")
    return plain


def within(name: str, value: Any, low: float, high: float) -> float:
    """The value as a float in a range, or an error."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bool) or not isinstance(plain, int | float) or not low <= plain <= high:
        raise ConfigError(f"{name} must be a number from {low:g} to {high:g}, got {value!r}")
    return float(plain)
