"""Reading `name=value` options and drawing what several commands show."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from slomofast.core.errors import ConfigError

PICTURES = (".png", ".svg", ".pdf", ".jpg")


def pairs(entries: Sequence[str], flag: str) -> dict[str, str]:
    """`["lr=1e-3"]` as `{"lr": "1e-3"}`; an entry without `=` is refused with an example."""
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{flag} {entry!r}: write name=value, for example {flag} lr=1e-3")
        found[name.strip().replace("-", "_")] = value.strip()
    return found


def values(entries: Sequence[str], flag: str) -> dict[str, Any]:
    """Like `pairs`, with numbers, true/false/null, lists and objects read as JSON and the rest as text.

    Numbers or names separated by commas are a list, too.

    >>> values(["severities=1,3", "groups=noise,blur", "weights=a,b.pt"], "--set")
    {'severities': [1, 3], 'groups': ['noise', 'blur'], 'weights': 'a,b.pt'}
    """
    return {name: _value(text) for name, text in pairs(entries, flag).items()}


def _value(text: str) -> Any:
    for written in (text, f"[{text}]"):
        try:
            return json.loads(written)
        except ValueError:
            continue
    names = [part.strip() for part in text.split(",")]
    return names if len(names) > 1 and all(name.isidentifier() for name in names) else text


def split_names(text: str | None) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def chosen_names(text: str | None, flag: str) -> tuple[str, ...] | None:
    """Names separated by commas, at least one; None where nothing was said."""
    if text is not None and not split_names(text):
        raise ConfigError(f"{flag} {text!r} names nothing; write names separated by commas, or leave it out")
    return split_names(text) or None


def known_device(name: str | None) -> str | None:
    """What `--device` calls: the name of a device that is there, or nothing where nothing was said."""
    from slomofast.bench.parts import pick_device

    return None if name is None else str(pick_device(name))


def writable_file(path: Path | None) -> Path | None:
    """What options that name a file to write call: one that could not be written is refused before the work."""
    if path is None:
        return None
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file in it")
    place = path if path.exists() else next(above for above in path.absolute().parents if above.exists())
    if not path.exists() and not place.is_dir():
        raise ConfigError(f"{path} cannot be written: {place} is a file; check the path")
    if not os.access(place, os.W_OK):
        raise ConfigError(f"{path} cannot be written: {place} is not yours to write to; name another file")
    return path


def picture_file(path: Path | None) -> Path | None:
    """What options that name a picture call: a file name whose ending says which kind."""
    if path is not None and path.suffix.lower() not in PICTURES:
        raise ConfigError(f"{path} does not end like a picture; try {as_png(path)}")
    return writable_file(path)


def as_png(path: Path) -> Path:
    """A file name like the given one that ends in `.png`.

    >>> as_png(Path("plots/growth.jpeg")).as_posix(), as_png(Path("")).as_posix()
    ('plots/growth.png', 'picture.png')
    """
    return path.with_suffix(".png") if path.name else path / "picture.png"


def known_precisions(text: str) -> tuple[str, ...]:
    """Precisions separated by commas; an unknown one is refused."""
    from slomofast.bench.job import PRECISIONS
    from slomofast.core.errors import unknown_name

    names = split_names(text)
    for name in names or [text]:
        if name not in PRECISIONS:
            raise unknown_name("precision", name, PRECISIONS)
    return names


def duration(text: str, flag: str) -> float:
    """Seconds of a time a person wrote.

    >>> duration("90s", "--for"), duration("25m", "--for"), duration("1h 30min", "--for")
    (90.0, 1500.0, 5400.0)
    """
    number = r"(\d+(?:\.\d+)?)\s*"
    found = re.fullmatch(rf"(?:{number}h)?\s*(?:{number}m(?:in)?)?\s*(?:{number}s)?", text.strip().lower())
    seconds = sum(float(n or 0) * unit for n, unit in zip(found.groups(), (3600, 60, 1), strict=True)) if found else 0
    if not seconds:
        raise ConfigError(f"{flag} {text!r} is no time; write for example {flag} 90s, {flag} 25m or {flag} 1h30m")
    return seconds


def short_time(seconds: float) -> str:
    """A duration for people: `42 s`, `3 min 20 s`, `5 h 12 min`; `?` when it is not known.

    >>> short_time(200), short_time(float("nan"))
    ('3 min 20 s', '?')
    """
    if not seconds >= 0:
        return "?"
    total = round(seconds)
    if total < 100:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60} s"
    return f"{total // 3600} h {total % 3600 // 60} min"


def domain_errors(curve: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """Error in percent by domain and cycle, from the curve of a record."""
    sums: dict[tuple[int, int], list[int]] = {}
    columns = zip(curve["domain"], curve["cycle"], curve["count"], curve["wrong"], curve["by_domain"], strict=True)
    for domain, cycle, count, wrong, mixture in columns:
        for d, n, w in mixture or [[domain, count, wrong]]:
            held = sums.setdefault((d, cycle), [0, 0])
            held[0] += n
            held[1] += w
    table: dict[str, dict[int, float]] = {}
    for (domain, cycle), (count, wrong) in sorted(sums.items()):
        table.setdefault(curve["domains"][domain], {})[cycle] = 100 * wrong / count
    return table


def error_table(record: Mapping[str, Any], title: str = "") -> Table:
    """Errors by domain, with a column for each cycle where there are several, and the mean below."""
    errors = domain_errors(record["curve"])
    cycles = sorted({cycle for row in errors.values() for cycle in row})
    overall = record["metrics"]["error"]
    several = 1 < len(cycles) <= 12
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    table.add_column("domain")
    for cycle in cycles if several else ():
        table.add_column(f"cycle {cycle + 1}", justify="right")
    table.add_column("all" if several else "error %", justify="right")
    by_domain = overall["by_domain"]
    for domain, row in errors.items():
        cells = [f"{row[c]:.1f}" if c in row else "" for c in cycles] if several else []
        table.add_row(escape(domain), *cells, f"{by_domain.get(domain, float('nan')):.1f}")
    table.add_section()
    by_cycle = _as_list(overall.get("by_cycle"), len(cycles))
    cells = [f"{value:.1f}" if value is not None else "" for value in by_cycle] if several else []
    table.add_row("[bold]mean", *cells, f"[bold]{overall['mean']:.2f}")
    return table


def _as_list(value: Any, length: int) -> list[Any]:
    """Figures by cycle, stored as a list or by number."""
    if isinstance(value, Mapping):
        return [value.get(str(cycle), value.get(cycle)) for cycle in range(length)]
    return list(value or [None] * length)
