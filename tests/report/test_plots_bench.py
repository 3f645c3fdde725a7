"""Pictures of cost: panels by axis, lanes by kind."""

import math

import pytest

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex

from slomofast.bench.profile import CALLS, KINDS
from slomofast.report import plots_bench
from slomofast.report.plots import png


def row(axis, value, method="tent", mib=100.0):
    return {
        "axis": axis, "value": value, "method": method, "milliseconds": 2.0 * value, "forward_milliseconds": 1.0,
        "peak_mib": mib, "allocated_mib": mib / 2,
    }  # fmt: skip


def test_growth_has_a_panel_for_each_axis_with_time_above_memory():
    rows = [row(axis, value, m) for axis in plots_bench.PANELS for value in (10, 50, 500) for m in ("tent", "cotta")]
    figure = plots_bench.growth(rows, "cost")
    assert len(figure.axes) == 8
    assert [axes.get_title("left") for axes in figure.axes[::2]] == list(plots_bench.PANELS.values())
    time, memory = figure.axes[:2]
    assert list(time.get_lines()[0].get_ydata()) == [20.0, 100.0, 1000.0]
    assert list(memory.get_lines()[0].get_ydata()) == [100.0] * 3
    assert list(figure.axes[7].get_lines()[0].get_ydata()) == [50.0] * 3  # over a long run: what is allocated
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["tent", "cotta", "plain forward pass"]
    assert png(figure) == png(plots_bench.growth(rows, "cost"))


def test_growth_without_memory_or_an_axis_says_so():
    figure = plots_bench.growth([row("batch", 10, mib=math.nan), row("batch", 20, mib=math.nan)])
    assert len(figure.axes) == 4
    assert [text.get_text() for text in figure.axes[1].texts] == ["not measured"]
    with pytest.raises(ValueError, match="no rows"):
        plots_bench.growth([])


def test_lanes_are_coloured_by_kind_and_the_host_is_on_top():
    assert set(plots_bench.KIND_COLOURS) == {*KINDS, *CALLS}
    bars = {"host": [(0.0, 0.1, "launch"), (1.0, 2.0, "wait")], "device": [(0.2, 1.9, "normalisation")]}
    figure = plots_bench.lanes(bars, {"device": [(0.2, 1.9, "step 3")]}, "1 wait")
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["device", "host"]
    colours = {to_hex(bars.get_facecolor()[0]) for bars in axes.collections}
    assert colours == {plots_bench.KIND_COLOURS[kind] for kind in ("launch", "wait", "normalisation")}
    assert [text.get_text() for text in axes.texts] == ["step 3"]
    assert axes.get_title("left") == "1 wait" and axes.get_xlim() == (0.0, 2.0)


def test_bars_nearer_than_a_dot_become_one():
    merged = plots_bench._merged([(0.0, 1.0, "rest"), (1.05, 2.0, "rest"), (3.0, 3.0, "rest")], 0.1)
    assert merged == [(0.0, 2.0), (3.0, 0.1)]
