"""Draw how far other methods are from SloMo-Fast* in every setting: `python docs/draw_margins.py`, from measured rows.

One picture has every method on short streams, one seed; the other who ran on the longest streams, with intervals.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from slomofast.report.plots import GRID, INK, LINES, PAPER, QUIET, save

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
sys.path.insert(0, str(ROOT / "benchmarks"))
from accuracy import LABELS, NAMES, OURS, SHORT, above, half_width, longest, short_streams  # noqa: E402

MOST = 3.0  # points beyond which a colour stays the same, and a mark is left out
FAR = ("rotta", "petta", "source", "lame")  # ten points and more above: their numbers stand in the table
MARKS = dict(zip(("obao", "rmt", "tca", "slomo_fast", "santa", "roid"), "os^Dv<", strict=True))
COLOURS = dict(zip(MARKS, LINES, strict=False))


def draw_short() -> Path:
    """Every method in every setting as a map."""
    errors = short_streams()
    ours = errors.pop(OURS[0])
    methods = [method for method in errors if method not in FAR]
    gaps = np.array([[errors[m].get(s, np.nan) - ours[s] for s in SHORT] for m in methods])
    figure, axes = plt.subplots(figsize=(9.6, 0.29 * len(methods) + 1.3))
    axes.set_facecolor(GRID)  # where a method did not run
    axes.imshow(gaps, cmap="PuOr_r", vmin=-MOST, vmax=MOST, aspect="auto")
    for (row, column), gap in np.ndenumerate(gaps):
        if not np.isnan(gap):
            colour = PAPER if abs(gap) > 0.75 * MOST else INK
            weight = "bold" if gap < 0 else "normal"
            axes.text(column, row, f"{gap:+.1f}", ha="center", va="center", fontsize=7, color=colour, weight=weight)
    axes.set_xticks(range(len(SHORT)), list(SHORT.values()), rotation=35, ha="left", fontsize=8, color=INK)
    axes.set_yticks(range(len(methods)), methods, fontsize=8, color=INK)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("error in points above SloMo-Fast*, five batches of a domain; negative: ahead of it", color=QUIET)
    return save(figure, IMAGES / "every-setting.png", dpi=110)


def draw_longest() -> Path:
    """Of each setting the longest stream: who ran on it, with the 95 % interval of the paired difference."""
    places = longest()
    figure, axes = plt.subplots(figsize=(9.6, 0.33 * len(places) + 1.2))
    axes.axvline(0, color=INK, linewidth=1)
    for row, (_, _, methods) in enumerate(places.values()):
        gaps = {method: above(methods, method) for method in MARKS if method in methods}
        near = {method: found for method, found in gaps.items() if np.mean(found) < MOST}
        if row % 2:
            axes.axhspan(row - 0.5, row + 0.5, color=GRID, alpha=0.45, linewidth=0)
        for place, (method, found) in zip(np.linspace(-0.3, 0.3, len(near) + 2)[1:-1], near.items(), strict=True):
            width = float(half_width(found) or "nan")  # one seed has no interval
            gap, colour = float(np.mean(found)), COLOURS[method]
            axes.errorbar(gap, row + place, xerr=width, fmt=MARKS[method], color=colour, markersize=4.5, elinewidth=1)
    for method, mark in MARKS.items():
        axes.plot([], [], mark, color=COLOURS[method], markersize=4.5, label=NAMES.get(method, method.upper()))
    axes.set_yticks(range(len(places)), [LABELS.get(name, name) for name in places], fontsize=8, color=INK)
    axes.set_ylim(len(places) - 0.5, -0.5)
    axes.set_xlim(-0.75, MOST)
    axes.grid(axis="x", color=GRID)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=8, colors=INK)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("error in points above SloMo-Fast*, longest streams; left of the line: ahead of it", color=QUIET)
    axes.legend(frameon=False, fontsize=8, ncols=len(MARKS), loc="lower center", bbox_to_anchor=(0.45, 1.0))
    return save(figure, IMAGES / "longest-streams.png", dpi=110)


def main() -> None:
    """Write the pictures of docs/results.md."""
    print(draw_short())
    print(draw_longest())


if __name__ == "__main__":
    main()
