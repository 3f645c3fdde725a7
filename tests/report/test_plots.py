"""Pictures: each shows what it is given, in the colours of the domains, and comes out the same every time."""

import pytest

pytest.importorskip("matplotlib")

import torch
from matplotlib.colors import to_hex

from slomofast.core.colours import domain_colours, group_colours
from slomofast.metrics import Curve, Step
from slomofast.report import plots

DOMAINS = ("fog", "snow", "frost")
GROUPS = {"haze": ("fog",), "cold": ("snow", "frost")}


def record(method="tent", cycles=2, batches=4):
    """Each visit starts with half of the images wrong and ends with none."""
    curve = Curve(DOMAINS, GROUPS)
    for k in range(cycles * 3 * batches):
        visit, place = divmod(k, batches)
        target = torch.zeros(8).long()
        logits = torch.eye(3)[torch.tensor([1] * (4 - place) + [0] * (4 + place))]
        domain = torch.full((8,), visit % 3)
        curve.update(Step(logits, target, domain, torch.full((8,), 5.0), k, visit, visit // 3, visit, 0.01))
    return {"job": {"method": method}, "curve": curve.to_dict()}


def segments(cycles=2):
    return [
        {"start": 4 * k, "steps": 4, "domain": k % 3, "severity": 5.0, "cycle": k // 3, "reset": k == 3}
        for k in range(3 * cycles)
    ]


MATRIX = {
    "domains": list(DOMAINS),
    "visits": [[0], [1], [2]],
    "cycles": [0, 0, 0],
    "accuracy": {
        "output": [[80.0, None, None], [70.0, 90.0, None], [60.0, 85.0, 75.0]],
        "slow": [[80.0, None, None]] * 3,
    },
}


def texts(axes):
    return [t.get_text() for t in axes.texts]


def test_a_timeline_has_a_bar_for_every_segment_in_its_colour():
    axes = plots.timeline(segments(), DOMAINS, GROUPS, "title").axes[0]
    bars = [bar for container in axes.containers for bar in container]
    assert sorted(bar.get_x() for bar in bars) == [0, 4, 8, 12, 16, 20]
    colours = domain_colours(DOMAINS, GROUPS)
    assert {to_hex(c[0].get_facecolor()) for c in axes.containers} == set(colours.values())
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["fog", "snow", "frost"]
    assert axes.get_xlim() == (0, 24) and "1" in texts(axes) and "2" in texts(axes)
    assert "reset" in axes.get_xlabel()


def test_pairs_stand_on_each_other():
    pair = [{"start": 0, "steps": 2, "domain": 0, "severity": 2.0, "cycle": 0, "pair": [["fog", 1.0], ["snow", 3.0]]}]
    axes = plots.timeline(pair, ["fog+snow"], GROUPS).axes[0]
    shapes = {(b.get_y(), b.get_height()) for container in axes.containers for b in container}
    assert shapes == {(0, 1), (1, 3)}


def test_error_over_time_draws_the_moving_error():
    axes = plots.error_over_time([record("tent"), record("source")], window=4).axes[0]
    lines = [line for line in axes.get_lines() if len(line.get_xdata()) == 24]
    assert len(lines) == 2
    assert lines[0].get_ydata()[3] == pytest.approx(100 * (4 + 3 + 2 + 1) / 32)
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["tent", "source"]


def test_errors_by_cycle():
    line = plots.error_by_cycle(record()).axes[0].get_lines()[0]
    assert list(line.get_xdata()) == [1, 2]
    assert list(line.get_ydata()) == pytest.approx([31.25, 31.25])


def test_adaptation_curves_tell_first_visits_from_returns():
    lines = plots.adaptation_curves(record(), batches=3).axes[0].get_lines()
    assert [line.get_label() for line in lines] == ["tent, first visit", "tent, return"]
    assert list(lines[0].get_ydata()) == [50, 37.5, 25]
    alone = plots.adaptation_curves(record(cycles=1)).axes[0].get_lines()
    assert len(alone) == 1


def test_forgetting_pictures():
    axes = plots.forgetting_heatmap(MATRIX).axes[0]
    assert texts(axes) == ["80", "70", "90", "60", "85", "75"]
    assert [t.get_text() for t in axes.get_xticklabels()] == list(DOMAINS)
    lines = plots.forgetting_curves(MATRIX).axes[0].get_lines()
    assert list(lines[0].get_ydata()) == [80, 70, 60]
    assert list(lines[1].get_ydata()) == [80, 80, 80]


def test_reliability_shows_accuracy_per_bin():
    axes = plots.reliability(record()["curve"]).axes[0]
    bars = [bar for container in axes.containers for bar in container]
    assert len(bars) == 1 and bars[0].get_height() == pytest.approx(100 - 31.25)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plots.timeline(segments(), DOMAINS, GROUPS),
        lambda: plots.error_over_time(record()),
        lambda: plots.forgetting_heatmap(MATRIX),
    ],
)
def test_equal_input_gives_equal_bytes(draw, tmp_path):
    first = plots.png(draw())
    assert first == plots.png(draw()) and first.startswith(b"\x89PNG")
    path = plots.save(draw(), tmp_path / "new" / "picture.png")
    assert path.stat().st_size > 1000


def test_nothing_to_draw_is_an_error():
    with pytest.raises(ValueError, match="no records"):
        plots.error_over_time([])


def test_colours_do_not_depend_on_what_else_is_shown():
    everything, one = domain_colours(DOMAINS, GROUPS), domain_colours(["frost"], GROUPS)
    assert one["frost"] == everything["frost"]
    assert len(set(everything.values())) == 3
    assert len(set(group_colours(GROUPS).values())) == 2
    loose = domain_colours(["a", "b", "c"])
    assert len(set(loose.values())) == 3 and all(len(c) == 7 for c in loose.values())
