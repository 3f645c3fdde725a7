"""Draw how far every method is from SloMo-Fast* in every setting: `python docs/draw_margins.py`, from measured rows."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from slomofast.report.plots import GRID, INK, PAPER, QUIET, save

ROOT = Path(__file__).parent.parent
MOST = 3.0  # points beyond which a colour stays the same
FAR = ("rotta", "petta", "source", "lame")  # ten points and more above: their numbers stand in the table


def main() -> None:
    """Write the picture of docs/results.md."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from accuracy import OURS, SHORT, short_streams

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
    print(save(figure, ROOT / "docs" / "images" / "every-setting.png", dpi=110))


if __name__ == "__main__":
    main()
