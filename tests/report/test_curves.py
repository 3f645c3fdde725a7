"""Figures of a curve against numbers worked out by hand."""

from __future__ import annotations

import made_up
import numpy as np
import pytest

from slomofast.metrics import Curve, summarise
from slomofast.report import curves
from slomofast.report.curves import Band, Series

GROUPS = {"noise": ["a", "b"], "blur": ["c"]}


def series(domain, wrong, cycle=None, count=10, segment=None, parts=None, domains=("a", "b", "c")) -> Series:
    curve = {"domain": domain, "wrong": wrong, "count": [count] * len(domain), "cycle": cycle or [0] * len(domain)}
    curve |= {"domains": list(domains), "groups": GROUPS, "by_domain": parts}
    return Series.of(curve | ({"segment": segment} if segment else {}))


def test_bands_join_consecutive_batches_of_a_domain_and_break_at_a_cycle() -> None:
    found = series([0, 0, 1, 1, 1], [0] * 5, cycle=[3, 3, 3, 4, 4]).bands
    assert found == [Band("a", 0, 2, 0), Band("b", 2, 3, 0), Band("b", 3, 5, 1)]


def test_too_many_bands_become_groups_then_cycles_then_none() -> None:
    stream = series([0, 1, 2] * 4, [0] * 12, cycle=[0] * 3 + [1] * 3 + [2] * 3 + [3] * 3)
    assert [b.name for b in curves.visible_bands(stream, limit=12)] == ["a", "b", "c"] * 4
    assert [b.name for b in curves.visible_bands(stream, limit=8)] == ["noise", "blur"] * 4
    assert [(b.name, b.start, b.stop) for b in curves.visible_bands(stream, limit=4)][-1] == ("cycle 4", 9, 12)
    assert curves.visible_bands(stream, limit=2) == []


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("steps", [1, 199, 200, 201, 1000, 7501])
def test_thinning_keeps_at_most_the_limit_and_every_answer(steps: int, aligned: bool) -> None:
    rng = np.random.default_rng(0)
    domain = np.repeat(np.arange(15) % 3, -(-steps // 15))[:steps].tolist()
    stream = series(domain, rng.integers(0, 10, steps).tolist())
    edges = curves.edges_for(stream, aligned)
    assert edges[0] == 0 and edges[-1] == steps and (np.diff(edges) > 0).all()
    assert len(edges) - 1 <= curves.MAX_POINTS
    means = curves.thinned(stream, edges)
    assert (means * np.diff(edges)).sum() / steps == pytest.approx(stream.error())
    if aligned:
        assert {b.start for b in stream.bands} <= set(edges.tolist())


def test_columns_are_domains_in_order_of_appearance() -> None:
    assert curves.column_errors(series([2, 2, 0], [1, 3, 5])) == {"c": 20.0, "a": 50.0}


def test_a_mixed_phase_beside_pure_ones_is_a_column() -> None:
    stream = series([0, 1, -1], [1, 2, 4], parts=[None, None, [[0, 5, 1], [1, 5, 3]]])
    assert curves.column_errors(stream) == {"a": 10.0, "b": 20.0, "mixed": 40.0}


def test_a_purely_mixed_stream_is_taken_apart_by_domain() -> None:
    stream = series([-1, -1], [4, 3], parts=[[[0, 5, 1], [1, 5, 3]], [[0, 5, 3], [2, 5, 0]]])
    assert curves.column_errors(stream) == {"a": 40.0, "b": 60.0, "c": 0.0}


def test_batches_of_one_in_a_mixed_segment_do_not_count_as_shifts() -> None:
    stream = series([0, 1, 0, 2], [1, 0, 1, 0], count=1, segment=[0, 0, 0, 0])
    assert [b.name for b in stream.bands] == ["mixed"]
    assert curves.column_errors(stream) == {"a": 100.0, "b": 0.0, "c": 0.0}


def test_cycles_average_domains_not_groups() -> None:
    stream = series([0, 1, 2, 0, 1, 2], [1, 3, 8, 0, 0, 3], cycle=[0, 0, 0, 1, 1, 1])
    first, second = curves.cycle_errors(stream)
    assert first == pytest.approx({"noise": 20.0, "blur": 80.0, "mean": 40.0})
    assert second == pytest.approx({"noise": 0.0, "blur": 30.0, "mean": 10.0})


def test_after_a_shift_first_visits_and_returns_are_apart() -> None:
    stream = series([0, 0, 1, 0, 0], [8, 4, 6, 2, 0])
    assert curves.shift_profile(stream) == {"first": [70.0, 40.0], "return": [20.0, 0.0]}


def test_recovery_compares_a_return_with_the_end_of_the_visit_before() -> None:
    stream = series([0, 0, 1, 0, 0], [8, 4, 6, 2, 0])
    assert curves.recoveries(stream, window=1) == {"a": -20.0}
    assert curves.recoveries(stream, window=5) == {"a": 10.0 - 60.0}
    assert curves.recoveries(series([0, 1, 2], [1, 1, 1])) == {}


def test_visits_are_counted_by_domain() -> None:
    assert curves.visit_errors(series([0, 1, 0], [1, 2, 3])) == [("a", 0, 10.0), ("b", 0, 20.0), ("a", 1, 30.0)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"wrong": [1]}, "differ in length"),
        ({"wrong": [11, 0]}, "more wrong answers than images"),
        ({"domain": [0, 7]}, "domain 7"),
        ({"domain": [], "wrong": [], "count": [], "cycle": []}, "empty"),
    ],
)
def test_columns_that_cannot_be_right_are_refused(change: dict, words: str) -> None:
    curve = {"domain": [0, 1], "wrong": [1, 0], "count": [10, 10], "cycle": [0, 0], "domains": ["a", "b"]}
    with pytest.raises(ValueError, match=words):
        Series.of(curve | change)


@pytest.mark.parametrize("setting", made_up.SETTINGS)
def test_the_parts_of_a_score_make_it_up(setting: str) -> None:
    curve = made_up.make_record("tent", setting, seed=1)["curve"]
    curve["count"] = [count + 7 * place for place, count in enumerate(curve["count"])]  # visits of unlike length
    curve["by_domain"] = [
        p and [[d, n + 7 * place * (k == 0), w] for k, (d, n, w) in enumerate(p)]
        for place, p in enumerate(curve["by_domain"])
    ]
    parts = curves.score_parts(Series.of(curve), curve)
    assert sum(weight for _, weight, _ in parts) == pytest.approx(1.0)
    wanted = summarise(Curve.from_dict(curve), ["error"])["error"]["mean"]
    assert sum(weight * error for _, weight, error in parts) == pytest.approx(wanted)
    assert {name for name, *_ in parts} == curves.column_errors(Series.of(curve)).keys()


def test_a_curve_without_segments_has_no_parts() -> None:
    curve = {"domain": [0], "wrong": [1], "count": [2], "domains": ["a"]}
    assert curves.score_parts(Series.of(curve), curve) == ()
