"""Pictures of what a step costs: how the cost grows, and what host and device do meanwhile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slomofast.core.errors import DataError
from slomofast.report.plots import INK, LINES, QUIET, _figure, _styled, _title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {"batch": "Batch size", "classes": "Classes", "queue": "Queue size", "steps": "Steps of one run"}
ROWS = {"milliseconds": "ms per step", "memory": "MiB on the device"}
WAIT_COLOUR = "#d1495b"
KIND_COLOURS = {
    "convolution forward": "#0b6e99",
    "convolution backward": "#5fb0d3",
    "normalisation": "#e09f3e",
    "activation, elementwise": "#2e933c",
    "losses, queues, copies": "#d6699e",
    "optimiser, EMA, restoration": "#8f5ea8",
    "augmentation": "#a44a3f",
    "rest": "#9aa5b1",
    "launch": "#3d405b",
    "wait": WAIT_COLOUR,
    "other call": "#c3cad3",
}
"""One colour for each kind of work; red is kept for a host that waits."""


def growth(rows: Sequence[Mapping[str, Any]], title: str = "") -> Figure:
    """Four small panels, one for each axis: milliseconds above, device memory below, a plain forward pass dashed.

    `rows` hold axis, value, method, milliseconds, forward_milliseconds, peak_mib, allocated_mib. Over a long run the
    memory is what is allocated at the end of each window, elsewhere the peak. Memory is left out where none is known.
    """
    if not rows:
        raise DataError("nothing to draw: the table has no rows; measure first, without --draw-only")
    methods = list(dict.fromkeys(str(row["method"]) for row in rows))
    kept = list(ROWS) if any(math.isfinite(_figure_of(row, "memory")) for row in rows) else ["milliseconds"]
    figure = _figure(11, 1.2 + 1.9 * len(kept))
    grid = figure.add_gridspec(len(kept), len(PANELS), hspace=0.16, wspace=0.34)
    for column, (axis, name) in enumerate(PANELS.items()):
        mine = [row for row in rows if row["axis"] == axis]
        for line, what in enumerate(kept):
            axes = _styled(figure.add_subplot(grid[line, column]))
            _lines(axes, mine, methods, what)
            if line == 0:
                _title(axes, name)
            if column == 0:
                axes.set_ylabel(ROWS[what])
            axes.tick_params(labelbottom=line == len(kept) - 1)
    handles, labels = _legend(figure)
    figure.legend(
        handles, labels, frameon=False, ncol=len(labels), loc="upper center", bbox_to_anchor=(0.5, 0.04), fontsize=8.5
    )
    if title:
        figure.suptitle(title, x=0.125, y=1.02, ha="left", color=INK, fontsize=11)
    return figure


def _lines(axes: Axes, rows: Sequence[Mapping[str, Any]], methods: Sequence[str], what: str) -> None:
    """The curves of one axis; one tick for each value that was measured, or a few over a long run."""
    if not rows:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=QUIET, fontsize=8.5)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    long_run = rows[0]["axis"] == "steps"
    marker: dict[str, Any] = {} if long_run else {"marker": "o", "ms": 4}
    for place, method in enumerate(methods):
        mine = sorted((row for row in rows if row["method"] == method), key=lambda row: row["value"])
        values = [row["value"] for row in mine]
        colour = LINES[place % len(LINES)]
        axes.plot(values, [_figure_of(row, what) for row in mine], color=colour, lw=1.6, label=method, **marker)
        if what == "milliseconds" and place == 0:
            plain = [row["forward_milliseconds"] for row in mine]
            axes.plot(values, plain, color=QUIET, lw=1.2, ls=(0, (4, 2)), label="plain forward pass")
    heights = [_figure_of(row, what) for row in rows]
    axes.set_ylim(0, 1.15 * max((height for height in heights if height > 0), default=1.0))
    if not long_run:
        ticks = sorted({row["value"] for row in rows})
        logarithmic = ticks[-1] >= 20 * ticks[0]
        if logarithmic:
            axes.set_xscale("log")
        near = 0 if logarithmic else 0.1 * ticks[-1]  # labels that would touch the next one are left out
        labels = [
            "" if after - tick < near else f"{tick:g}"
            for tick, after in zip(ticks, [*ticks[1:], math.inf], strict=True)
        ]
        axes.set_xticks(ticks, labels)
        axes.set_xticks([], minor=True)
    else:
        axes.set_xlim(left=0)
        axes.locator_params(axis="x", nbins=4)


def _figure_of(row: Mapping[str, Any], what: str) -> float:
    if what == "milliseconds":
        return float(row["milliseconds"])
    return float(row["allocated_mib" if row["axis"] == "steps" else "peak_mib"])


def _legend(figure: Figure) -> tuple[list[Any], list[str]]:
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    # the yardstick last, however early it was drawn
    labels = sorted(found, key=lambda label: label == "plain forward pass")
    return [found[label] for label in labels], labels


def lanes(
    lanes: Mapping[str, Sequence[tuple[float, float, str]]],
    marks: Mapping[str, Sequence[tuple[float, float, str]]] | None = None,
    title: str = "",
) -> Figure:
    """What went on when: a lane of coloured bars for the host, one for the device; a wait of the host is red.

    `lanes` maps a name to (start, end, kind) in milliseconds; `marks` gives stretches of a lane a name.
    """
    from matplotlib.patches import Patch

    figure = _figure(11, 1.3 + 0.85 * len(lanes))
    axes = _styled(figure.add_subplot())
    width = max((end for bars in lanes.values() for _, end, _ in bars), default=1.0)
    names = list(lanes)[::-1]  # the first lane on top
    for height, name in enumerate(names):
        for kind in KIND_COLOURS:
            bars = _merged([bar for bar in lanes[name] if bar[2] == kind], width / 3000)
            if bars:
                axes.broken_barh(bars, (height - 0.3, 0.6), color=KIND_COLOURS[kind], lw=0)
        for start, end, label in (marks or {}).get(name, ()):
            axes.plot([start, end], [height + 0.4] * 2, color=INK, lw=0.8, marker="|", ms=5, clip_on=False)
            place = ((start + end) / 2, height + 0.42)
            axes.annotate(label, place, ha="center", va="bottom", color=QUIET, fontsize=7.5)
    axes.set_xlim(0, width)
    axes.set_ylim(-0.4, len(names) - 0.3)
    axes.set_yticks(range(len(names)), names)
    axes.grid(False)
    axes.set_xlabel("milliseconds")
    _title(axes, title)
    shown = [kind for kind in KIND_COLOURS if any(bar[2] == kind for bars in lanes.values() for bar in bars)]
    patches = [Patch(color=KIND_COLOURS[kind], label=kind) for kind in shown]
    figure.legend(
        handles=patches,
        frameon=False,
        ncol=5,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        fontsize=8,
        handlelength=1,
    )
    figure.subplots_adjust(bottom=0.26)
    return figure


def _merged(bars: Sequence[tuple[float, float, str]], gap: float) -> list[tuple[float, float]]:
    """Bars as (start, width); those closer than a dot of the picture become one, and none is thinner than a dot."""
    found: list[list[float]] = []
    for start, end, _ in sorted(bars):
        if found and start - found[-1][1] <= gap:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return [(start, max(end - start, gap)) for start, end in found]
