"""Pictures of streams and records: functions from plain data to matplotlib figures, and one that saves them.

Every domain has the colour of its group's hue, the same in all pictures.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slomofast.core.colours import MIXED, domain_colours, group_colours
from slomofast.metrics.curve import Curve
from slomofast.metrics.summary import moving_error, summarise, visits_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, QUIET, GRID, PAPER = "#1f2933", "#697586", "#e4e7eb", "#ffffff"
LINES = ("#0b6e99", "#d1495b", "#2e933c", "#8f5ea8", "#e09f3e", "#3d405b", "#00a6a6", "#a44a3f")
DPI = 150


def save(figure: Figure, path: str | Path, dpi: int = DPI) -> Path:
    """Write a figure at 150 dots per inch unless told; the type follows the file's ending. Returns the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi, facecolor=PAPER, bbox_inches="tight", metadata=_undated(path))
    return path


def png(figure: Figure) -> bytes:
    """A figure as the bytes of a PNG file; equal figures give equal bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, facecolor=PAPER, bbox_inches="tight", metadata={"Software": None})
    return buffer.getvalue()


def timeline(
    segments: Sequence[Mapping[str, Any]],
    domains: Sequence[str],
    groups: Mapping[str, Sequence[str]] | None = None,
    title: str = "",
) -> Figure:
    """The stream as a bar: colour is the domain, height the severity; cycles and resets are marked.

    `segments` are rows of `Stream.table()` or of a record: start, steps, domain (position or name), severity,
    cycle, and optionally reset and pair. A pair of corruptions is drawn as one bar upon the other.
    """
    total = segments[-1]["start"] + segments[-1]["steps"]
    bars = _bars(segments, domains)
    shown = list(dict.fromkeys(name for name, *_ in bars))
    rows = -(-len(shown) // 5) if len(shown) <= 30 else 1
    figure, axes = _canvas(9.6, 1.55 + 0.2 * rows)
    colours = domain_colours([name for name in shown if name != "mixed"], groups) | {"mixed": MIXED}
    for kind in shown:
        mine = [bar for bar in bars if bar[0] == kind]
        _, starts, widths, bottoms, heights = zip(*mine, strict=True)
        axes.bar(
            starts,
            heights,
            width=widths,
            bottom=bottoms,
            align="edge",
            color=colours[kind],
            hatch="///" if kind == "mixed" else None,
            edgecolor=PAPER,
            linewidth=0.6 if len(segments) <= 160 else 0,
            label=kind.replace("_", " "),
        )
    top = max(5.0, max(bottom + height for *_, bottom, height in bars))
    _mark_cycles(axes, [(s["start"], s["cycle"]) for s in segments], 1.05 * top)
    for s in segments:
        if s.get("reset"):
            axes.plot(s["start"], 1.05 * top, marker="v", color=INK, markersize=5, clip_on=False)
    axes.set_xlim(0, total)
    axes.set_ylim(0, 1.04 * top)
    axes.set_yticks([0, 5])
    axes.set_ylabel("severity")
    axes.set_xlabel("batch" + ("   (▼ reset)" if any(s.get("reset") for s in segments) else ""))
    axes.grid(False)
    _title(axes, title, pad=16 if len({s["cycle"] for s in segments}) > 1 else 8)
    if len(shown) <= 30:
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.38), ncol=5, frameon=False, fontsize=7.5, handlelength=1
        )
    else:
        axes.text(0.5, -0.62, f"{len(shown)} domains", transform=axes.transAxes, ha="center", color=QUIET, fontsize=8)
    return figure


def error_over_time(records: Mapping[str, Any] | Sequence[Mapping[str, Any]], window: int | None = None) -> Figure:
    """Moving error of one or more records of the same stream, over bands of domains, with lines at cycles.

    `window` in batches; a fiftieth of the stream if None.
    """
    several = _as_list(records)
    figure, axes = _canvas(10, 4)
    curve = _curve(several[0])
    steps = len(curve)
    width = window or max(5, steps // 50)
    _bands(axes, curve)
    for place, record in enumerate(several):
        series = _curve(record)
        errors = moving_error(series, width)
        axes.plot(series["position"], errors, color=LINES[place % len(LINES)], lw=1.6, label=_label(record))
    axes.set_xlim(0, steps)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("batch")
    axes.set_ylabel(f"error, last {width} batches (%)")
    _mark_cycles(axes, list(zip(curve["position"], curve["cycle"], strict=True)), axes.get_ylim()[1])
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    _title(axes, "Error over time", pad=16)
    return figure


def error_by_cycle(records: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Figure:
    """Mean error of each cycle, a line per record: falling lines keep learning, rising ones break down."""
    figure, axes = _canvas(7, 4)
    for place, record in enumerate(_as_list(records)):
        by_cycle = summarise(_curve(record), ["error"])["error"]["by_cycle"]
        cycles = [int(c) + 1 for c in by_cycle]
        colour = LINES[place % len(LINES)]
        axes.plot(cycles, list(by_cycle.values()), marker="o", ms=5, lw=1.8, color=colour, label=_label(record))
        axes.set_xticks(cycles)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("cycle")
    axes.set_ylabel("error (%)")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    _title(axes, "Error by cycle")
    return figure


def adaptation_curves(records: Mapping[str, Any] | Sequence[Mapping[str, Any]], batches: int = 40) -> Figure:
    """Mean error of the 1st, 2nd, ... batch after a shift: solid at first visits, dashed at returns."""
    figure, axes = _canvas(7, 4)
    for place, record in enumerate(_as_list(records)):
        colour = LINES[place % len(LINES)]
        first, again = _after_shift(_curve(record), batches)
        if len(first):
            axes.plot(np.arange(1, len(first) + 1), first, color=colour, lw=1.8, label=f"{_label(record)}, first visit")
        if len(again):
            places = np.arange(1, len(again) + 1)
            axes.plot(places, again, color=colour, lw=1.6, ls=(0, (4, 2)), label=f"{_label(record)}, return")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=1)
    axes.set_xlabel("batches after the shift")
    axes.set_ylabel("error (%)")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    _title(axes, "Adaptation after a shift")
    return figure


def forgetting_heatmap(matrix: Mapping[str, Any], member: str = "output", title: str = "") -> Figure:
    """Accuracy on held-out images of each domain (columns) after each visit (rows); grey before the first visit."""
    values = np.array([[np.nan if v is None else v for v in row] for row in matrix["accuracy"][member]], dtype=float)
    figure, axes = _canvas(1.8 + 0.42 * values.shape[1], 1.8 + min(7.5, 0.26 * values.shape[0]))
    axes.set_facecolor("#f0f2f4")
    image = axes.imshow(values, aspect="auto", cmap="viridis", vmin=0, vmax=100, interpolation="nearest")
    axes.grid(False)
    names = [d.replace("_", " ") for d in matrix["domains"]]
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8)
    labels = [_visit_name(v, names) for v in matrix["visits"]]
    shown = range(0, len(labels), max(1, len(labels) // 30))
    axes.set_yticks(list(shown), [f"{k + 1}  {labels[k]}" for k in shown], fontsize=8)
    axes.set_ylabel("after visit")
    if values.size <= 300:
        for (row, column), value in np.ndenumerate(values):
            if not np.isnan(value):
                shade = INK if value > 65 else PAPER
                axes.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=6.5, color=shade)
    bar = figure.colorbar(image, ax=axes, pad=0.02, fraction=0.04)
    bar.set_label("accuracy (%)", color=QUIET)
    bar.outline.set_visible(False)
    _title(axes, title or f"Held-out accuracy, {member}")
    return figure


def forgetting_curves(matrix: Mapping[str, Any]) -> Figure:
    """Accuracy on the first domain's held-out images after every visit, a line per member."""
    from slomofast.metrics.forgetting import forgetting

    figure, axes = _canvas(7, 3.6)
    for place, (member, figures) in enumerate(forgetting(matrix).items()):
        line = figures["curve"]
        axes.plot(range(1, len(line) + 1), line, marker="o", ms=3.5, lw=1.6, color=LINES[place % 8], label=member)
    axes.set_xlabel("visits")
    axes.set_ylabel("accuracy on the first domain (%)")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    _title(axes, "What is left of the first domain")
    return figure


def reliability(curve: Curve | Mapping[str, Any], title: str = "") -> Figure:
    """Accuracy against confidence in 15 bins; bars on the diagonal mean well calibrated."""
    figures = summarise(_curve({"curve": curve}), ["calibration"])["calibration"]
    count, _, correct = np.asarray(figures["bins"])
    figure, axes = _canvas(4.6, 4.2)
    used = count > 0
    edges = np.arange(len(count)) / len(count)
    accuracy = 100 * correct[used] / count[used]
    axes.bar(100 * edges[used], accuracy, width=100 / len(count), align="edge", color=LINES[0], edgecolor=PAPER)
    axes.plot([0, 100], [0, 100], color=QUIET, lw=1, ls="--")
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    axes.set_xlabel("confidence (%)")
    axes.set_ylabel("accuracy (%)")
    _title(axes, title or f"Calibration, error {figures['ece']:.1f} %")
    return figure


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    figure = _figure(width, height)
    return figure, _styled(figure.add_subplot())


def _figure(width: float, height: float) -> Figure:
    # No pyplot: figures made here belong to their caller alone and need no display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor=PAPER)
    FigureCanvasAgg(figure)
    return figure


def _styled(axes: Axes) -> Axes:
    axes.set_facecolor(PAPER)
    axes.set_axisbelow(True)
    axes.grid(True, axis="y", color=GRID, lw=0.8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#c3cad3")
    axes.tick_params(colors=QUIET, labelsize=8.5)
    axes.xaxis.label.set_color(QUIET)
    axes.yaxis.label.set_color(QUIET)
    return axes


def _title(axes: Axes, text: str, pad: float = 8) -> None:
    if text:
        axes.set_title(text, loc="left", color=INK, fontsize=11, fontweight="bold", pad=pad)


def _bands(axes: Axes, curve: Curve) -> None:
    """Soft background bands, one per visit, in the domain's colour; the group's where there are many."""
    colours = domain_colours(curve.domains, curve.groups)
    place = 0
    for visit in visits_of(curve):
        steps = len(visit["batches"])
        colour = MIXED if visit["domain"] < 0 else colours[curve.domains[visit["domain"]]]
        axes.axvspan(place, place + steps, color=colour, alpha=0.16, lw=0)
        place += steps
    if curve.groups:
        from matplotlib.patches import Patch

        hues = group_colours(curve.groups)
        patches = [Patch(color=hues[g], alpha=0.35, label=g) for g in curve.groups]
        axes.figure.legend(
            handles=patches,
            frameon=False,
            ncol=len(patches),
            loc="upper center",
            bbox_to_anchor=(0.5, 0.02),
            fontsize=8,
            labelcolor=QUIET,
        )


def _mark_cycles(axes: Axes, places: Sequence[tuple[int, int]], height: float) -> None:
    """A thin line and a number where a cycle begins; nothing where there is one cycle or far too many."""
    starts: list[tuple[int, int]] = []
    for start, cycle in places:
        if not starts or cycle != starts[-1][1]:
            starts.append((start, cycle))
    if not 1 < len(starts) <= 40:
        return
    for start, cycle in starts:
        axes.axvline(start, color=INK, lw=0.9, alpha=0.55)
        axes.annotate(
            f"{cycle + 1}",
            (start, height),
            xytext=(2, 2),
            textcoords="offset points",
            fontsize=7.5,
            color=QUIET,
            annotation_clip=False,
        )


def _after_shift(curve: Curve, batches: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean error of the n-th batch of a visit, for first visits and for returns."""
    sums = np.zeros((2, 2, batches))
    seen: set[int] = set()
    for visit in visits_of(curve):
        kind = int(visit["domain"] in seen and visit["domain"] >= 0)
        seen.add(visit["domain"])
        rows = np.asarray(visit["batches"][:batches], dtype=float)
        sums[kind, :, : len(rows)] += rows.T
    found = []
    for count, wrong in sums:
        used = count > 0
        found.append(100 * wrong[used] / count[used])
    return found[0], found[1]


def _curve(record: Mapping[str, Any]) -> Curve:
    curve = record.get("curve", record)
    return curve if isinstance(curve, Curve) else Curve.from_dict(curve)


def _as_list(records: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    several = [records] if isinstance(records, Mapping) else list(records)
    if not several:
        raise ValueError("nothing to draw: no records were given")
    return several


def _label(record: Mapping[str, Any]) -> str:
    return str(record.get("label") or record.get("job", {}).get("method") or "run")


def _domain_name(domain: Any, domains: Sequence[str]) -> str:
    if isinstance(domain, str):
        return domain
    return "mixed" if domain is None or domain < 0 else domains[domain]


def _bars(segments: Sequence[Mapping[str, Any]], domains: Sequence[str]) -> list[tuple[str, int, int, float, float]]:
    """(domain, start, width, bottom, height) of everything a timeline shows."""
    found: list[tuple[str, int, int, float, float]] = []
    for s in segments:
        if s.get("pair"):
            (first, one), (second, other) = s["pair"]
            found.append((first, s["start"], s["steps"], 0.0, one))
            found.append((second, s["start"], s["steps"], one, other))
            continue
        name = _domain_name(s["domain"], domains)
        found.append((name, s["start"], s["steps"], 0.0, 5.0 if name == "mixed" else max(0.25, s["severity"])))
    return found


def _visit_name(visit: Any, names: Sequence[str]) -> str:
    places = visit if isinstance(visit, list | tuple) else [visit]
    return names[places[0]] if len(places) == 1 else "mixed"


def _undated(path: Path) -> dict[str, None]:
    return {"Software": None} if path.suffix.lower() == ".png" else {}
