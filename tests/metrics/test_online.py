"""Metrics collected step by step: the contract, and agreement with the figures computed from the curve."""

import copy
import math
import pickle
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as some
from made_steps import DOMAINS, GROUPS, noise, step

from slomofast.core.errors import ConfigError
from slomofast.metrics import (
    AdaptationRate,
    ByCycle,
    ByDomain,
    ByGroup,
    CalibrationError,
    Curve,
    ErrorRate,
    OverTime,
    Recovery,
    StepTime,
    list_metrics,
    make_metric,
    summarise,
)
from slomofast.metrics.functional import adaptation_rate, moving_average

WRAPPED = {
    "by_domain": lambda: ByDomain(ErrorRate(), DOMAINS),
    "by_group": lambda: ByGroup(CalibrationError(), GROUPS, DOMAINS),
    "by_cycle": lambda: ByCycle(ErrorRate()),
    "over_time": lambda: OverTime(ErrorRate(), window=7),
    "by_cycle_and_domain": lambda: ByCycle(ByDomain(ErrorRate())),
}
ALL = {name: (lambda name=name: make_metric(name)) for name in list_metrics()} | WRAPPED


def fill(metric, steps):
    for one in steps:
        metric.update(one)
    return metric


def close(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    return one == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_merged_parts_equal_the_whole(name):
    steps = noise(0, 40)
    for cut in (0, 13, 40):
        left, right = fill(ALL[name](), steps[:cut]), fill(ALL[name](), steps[cut:])
        left.merge(right)
        assert close(left.compute(), fill(ALL[name](), steps).compute()), cut


@pytest.mark.parametrize("name", ALL)
def test_reset_forgets_and_copies_are_apart(name):
    metric = ALL[name]()
    empty = copy.deepcopy(metric.compute())
    twin = metric.fresh()
    fill(metric, noise(0, 40))
    value = metric.compute()
    assert not close(value, empty)
    assert str(twin.compute()) == str(empty)
    assert close(pickle.loads(pickle.dumps(metric)).compute(), value)
    metric.reset()
    assert str(metric.compute()) == str(empty)
    assert close(fill(metric, noise(0, 40)).compute(), value)


@pytest.mark.parametrize("name", list_metrics())
def test_metrics_state_their_facts(name):
    metric = make_metric(name)
    assert metric.unit and isinstance(metric.higher_is_better, bool) and type(metric).__doc__
    assert metric.name == name


def test_metrics_agree_with_the_curve():
    steps = noise(5, 60)
    curve = fill(Curve(DOMAINS, GROUPS), steps)
    figures = summarise(curve)
    assert fill(ErrorRate(), steps).compute() == pytest.approx(figures["error"]["samples"])
    assert close(fill(ByDomain(ErrorRate(), DOMAINS), steps).compute(), figures["error"]["by_domain"])
    assert fill(make_metric("nll"), steps).compute() == pytest.approx(figures["calibration"]["nll"], rel=1e-6)
    assert fill(CalibrationError(), steps).compute() == pytest.approx(figures["calibration"]["ece"])
    assert fill(AdaptationRate(), steps).compute() == pytest.approx(figures["adaptation"]["rate"])
    assert fill(Recovery(), steps).compute() == pytest.approx(figures["recovery"]["mean"])
    assert fill(StepTime(), steps).compute() == pytest.approx(1000 * np.median([s.seconds for s in steps][3:]))
    assert fill(make_metric("peak_memory"), steps).compute() == 5900 == curve.peak_bytes


def test_wrappers_by_hand():
    steps = [step(0, 0, 5), step(1, 1, 1, cycle=1), step(2, [0] * 5 + [2] * 5, 5, cycle=1)]
    assert fill(ByDomain(ErrorRate()), steps).compute() == {0: pytest.approx(100 * 10 / 15), 1: 10, 2: 0}
    assert fill(ByCycle(ErrorRate()), steps).compute() == {0: 50, 1: 30}
    groups = fill(ByGroup(ErrorRate(), GROUPS, DOMAINS), steps).compute()
    assert list(groups) == ["haze", "cold"] and groups["cold"] == pytest.approx(100 / 15)
    assert fill(OverTime(ErrorRate(), 2), steps).compute() == [30, 50]
    with pytest.raises(ValueError, match="at least 1"):
        OverTime(ErrorRate(), 0)


def test_merging_different_metrics_is_refused():
    with pytest.raises(TypeError, match="StepTime into ErrorRate"):
        ErrorRate().merge(StepTime())
    with pytest.raises(ConfigError, match="did you mean 'error_rate'"):
        make_metric("error_rat")


def test_adaptation_rate_by_hand():
    # averages over two: .2 .4 .6 .5; 80 % of .6 is .48, reached at the third; rises .2 and .2
    found = adaptation_rate([0.1, 0.3, 0.5, 0.7, 0.3], window=2, penalty=0.1)
    assert found.time == 3
    assert found.speed == pytest.approx(0.2)
    assert found.fluctuation == pytest.approx(np.std([0.2, 0.4, 0.6, 0.5]))
    assert found.rate == pytest.approx(0.2 / 3 - 0.1 * found.fluctuation)


def test_adaptation_rate_of_flat_falling_and_short_visits():
    flat = adaptation_rate([0.5] * 10)
    assert (flat.rate, flat.time, flat.speed, flat.fluctuation) == (
        pytest.approx(0),
        1,
        pytest.approx(0),
        pytest.approx(0),
    )
    falling = adaptation_rate([0.9, 0.5, 0.1], window=1)
    assert falling.speed == 0 and falling.time == 1 and falling.rate < 0
    short = adaptation_rate([0.2, 0.6], window=5)
    assert (short.rate, short.time) == (pytest.approx(0), 1)
    assert math.isnan(adaptation_rate([]).rate)


@budget(max_examples=100, deadline=None)
@given(some.lists(some.integers(0, 1000), max_size=40), some.integers(1, 12))
def test_adaptation_rate_against_a_slow_reference(values, window):
    exact = [Fraction(v, 1000) for v in values]
    width = min(window, len(exact))
    averages = [sum(exact[k : k + width]) / width for k in range(len(exact) - width + 1)] if exact else []
    accuracy = [float(v) for v in exact]
    assert moving_average(accuracy, window).tolist() == pytest.approx([float(a) for a in averages], abs=1e-12)
    if not averages:
        return
    found = adaptation_rate(accuracy, window, 0.3)
    time = next(k + 1 for k, a in enumerate(averages) if a >= Fraction(8, 10) * max(averages))
    rises = [b - a for a, b in pairwise(averages) if b > a]
    speed = float(sum(rises) / len(rises)) if rises else 0.0
    assert found.time == time
    assert found.speed == pytest.approx(speed)
    fluctuation = float(np.std([float(a) for a in averages]))
    assert found.rate == pytest.approx(speed / time - 0.3 * fluctuation, abs=1e-9)
