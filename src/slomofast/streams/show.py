"""Streams that print themselves: facts, a coloured bar of the domains over time, a legend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slomofast.core.colours import MIXED, domain_colours

if TYPE_CHECKING:
    from slomofast.streams.schedule import Segment
    from slomofast.streams.stream import Stream

_BAR = 76
_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def facts(stream: Stream) -> dict[str, str]:
    """What there is to say about a stream in a few words each."""
    images = sum(s.count for s in stream.segments)
    visits = stream.segments[-1].visit + 1
    cycles = len({s.cycle for s in stream.segments})
    return {
        "images": f"{images:,}",
        "batches": f"{stream.total:,} of {stream.batch_size}",
        "segments": f"{len(stream.segments):,}",
        "visits": f"{visits:,}",
        "cycles": f"{cycles:,}",
        "domains": str(len(stream.domains)),
        "resets": str(sum(s.reset for s in stream.segments)),
        "held out": f"{len(stream.held_out_index()):,} images of each domain",
        "seed": str(stream.seed),
        "fingerprint": stream.fingerprint,
    }


def shown(stream: Stream, segment: Segment) -> str:
    """The name a picture gives to a segment's domain: `mixed` for several, the stronger one of a pair."""
    if segment.pair:
        return max(segment.pair, key=lambda corruption: corruption[1])[0]
    return stream.domains[segment.domain] if segment.domain >= 0 else "mixed"


def cells(stream: Stream, width: int = _BAR) -> list[str]:
    """What is shown at `width` evenly spaced moments of the stream."""
    places = (min(stream.total - 1, int((k + 0.5) * stream.total / width)) for k in range(width))
    return [shown(stream, stream.locate(position)[0]) for position in places]


def as_text(stream: Stream) -> str:
    """The stream in plain text; each letter of the bar stands for a domain, `*` for several mixed."""
    names = list(dict.fromkeys(shown(stream, s) for s in stream.segments))
    letters = {name: _ALPHABET[k % len(_ALPHABET)] for k, name in enumerate(names)} | {"mixed": "*"}
    bar = "".join(letters[name] for name in cells(stream))
    legend = "  ".join(f"{letters[name]} {name}" for name in names)
    lines = [f"{stream.setting.name} over {stream.data.name}"]
    lines += [f"  {name}: {value}" for name, value in facts(stream).items()]
    return "\n".join([*lines, f"  [{bar}]", f"  {legend}"])


def as_rich(stream: Stream) -> Any:
    """The stream as a panel for a terminal."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    names = list(dict.fromkeys(shown(stream, s) for s in stream.segments))
    colours = domain_colours([n for n in names if n != "mixed"], stream.catalog.groups) | {"mixed": MIXED}
    bar = Text()
    for name in cells(stream):
        bar.append("▒" if name == "mixed" else "█", style=colours[name])
    cycles = _cycle_marks(stream)
    legend = Text()
    for name in names:
        legend.append("■ ", style=colours[name])
        legend.append(name.replace("_", "\u00a0") + "   ")
    table = Table.grid(padding=(0, 2))
    values = list(facts(stream).items())
    for row in range(0, len(values), 3):
        table.add_row(*(f"[dim]{name}[/] {value}" for name, value in values[row : row + 3]))
    parts: list[Any] = [table, Text(), bar, *([Text(cycles, style="dim")] if cycles else []), Text(), legend]
    return Panel(Group(*parts), title=f"[bold]{stream.setting.name}[/] over {stream.data.name}", expand=False)


def _cycle_marks(stream: Stream, width: int = _BAR) -> str:
    """A line of cycle numbers below the bar, each where its cycle begins; empty for a single cycle."""
    cycles = [stream.locate(int(k * stream.total / width))[0].cycle for k in range(width)]
    if len(set(cycles)) < 2:
        return ""
    marks = [" "] * width
    for k, cycle in enumerate(cycles):
        if k == 0 or cycle != cycles[k - 1]:
            for place, sign in enumerate(f"╵{cycle + 1}"):
                if k + place < width and marks[k + place] == " ":
                    marks[k + place] = sign
    return "".join(marks)
