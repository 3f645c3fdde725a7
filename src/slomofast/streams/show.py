"""Streams that print themselves: facts, a coloured bar of the domains over time, a legend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slomofast.core.colours import MIXED, domain_colours

if TYPE_CHECKING:
    from slomofast.streams.stream import Stream

_BAR = 96
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


def cells(stream: Stream, width: int = _BAR) -> list[int]:
    """The domain shown at `width` evenly spaced moments of the stream; -1 where domains are mixed."""
    places = (min(stream.total - 1, int((k + 0.5) * stream.total / width)) for k in range(width))
    return [stream.locate(position)[0].domain for position in places]


def as_text(stream: Stream) -> str:
    """The stream in plain text; each letter of the bar stands for a domain, `*` for several mixed."""
    letters = {d: _ALPHABET[d % len(_ALPHABET)] for d in range(len(stream.domains))} | {-1: "*"}
    shown = cells(stream)
    bar = "".join(letters[d] for d in shown)
    legend = "  ".join(f"{letters[d]} {stream.domains[d]}" for d in dict.fromkeys(shown) if d >= 0)
    lines = [f"{stream.setting.name} over {stream.data.name}"]
    lines += [f"  {name}: {value}" for name, value in facts(stream).items()]
    return "\n".join([*lines, f"  [{bar}]", f"  {legend or '* all domains mixed'}"])


def as_rich(stream: Stream) -> Any:
    """The stream as a panel for a terminal."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    colours = domain_colours(stream.domains, stream.groups)
    shade = {d: colours[name] for d, name in enumerate(stream.domains)} | {-1: MIXED}
    shown = cells(stream)
    bar = Text()
    for domain in shown:
        bar.append("█" if domain >= 0 else "▒", style=shade[domain])
    cycles = _cycle_marks(stream)
    legend = Text()
    for domain in dict.fromkeys(s.domain for s in stream.segments):
        name = stream.domains[domain] if domain >= 0 else "mixed"
        legend.append("■ ", style=shade[domain])
        legend.append(name.replace("_", " ") + "   ")
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
