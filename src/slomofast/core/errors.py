"""Errors that say which value was wrong and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SlomofastError(Exception):
    """Base of every error the library raises on purpose; the command line prints it without a traceback."""


class ConfigError(SlomofastError, ValueError):
    """An option, a name or a combination of them that cannot work."""


class InputError(SlomofastError, ValueError):
    """A batch that an adapter must not learn from (wrong shape, type, range, NaN)."""


class DataError(SlomofastError, ValueError):
    """Files that are missing, damaged or not in the layout they claim."""


class CheckpointError(SlomofastError, RuntimeError):
    """A checkpoint that is truncated, of another version, or made for another model."""


class ModelError(SlomofastError, ValueError):
    """A network the library cannot work with as it is."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> ConfigError:
    """Build the error for a name nobody registered, with the nearest match and the whole choice.

    >>> str(unknown_name("method", "tnet", ["tent", "source"]))
    "unknown method 'tnet'; did you mean 'tent'? Known: source, tent"
    """
    choices = sorted(known)
    near = difflib.get_close_matches(str(name), choices, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else "."
    return ConfigError(f"unknown {kind} {str(name)!r}{hint} Known: {', '.join(choices)}")
