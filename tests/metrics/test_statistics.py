"""Figures over seeds."""

import math

import numpy as np
import pytest

from slomofast.metrics import bootstrap_interval, paired_difference, spread


def test_mean_and_sample_deviation():
    found = spread([10.0, 12.0, 17.0])
    assert found.mean == 13 and found.std == pytest.approx(math.sqrt(13)) and found.runs == 3
    assert str(found) == "13.00 ± 3.61"
    alone = spread([4.0])
    assert alone.std is None and str(alone) == "4.00"
    with pytest.raises(ValueError, match="no values"):
        spread([])


def test_pairs_are_matched_by_key():
    found = paired_difference({0: 10.0, 1: 11.0, 2: 9.0}, {1: 13.0, 2: 10.0, 5: 0.0})
    assert found.pairs == 2 and found.mean == -1.5 and found.wins == 2


def test_fewer_than_four_pairs_have_no_interval():
    """Its bounds would be the smallest and the largest difference: clear after two lucky seeds."""
    few, enough = (paired_difference([10.0, 11.0, 12.0, 9.0][:n], [11.0, 13.0, 13.0, 10.0][:n]) for n in (3, 4))
    assert few.low is few.high is None and not few.clear
    assert -2 <= enough.low < enough.mean == -1.25 < enough.high <= -1 and enough.clear


def test_few_values_are_enumerated():
    # means of the four resamples of two values: 0, 1, 1, 2
    low, high = bootstrap_interval([0.0, 2.0], level=0.5)
    assert (low, high) == tuple(np.quantile([0, 1, 1, 2], [0.25, 0.75]))
    assert bootstrap_interval([1.0]) is None


def test_an_interval_around_zero_is_not_clear():
    found = paired_difference([1.0, 2.0, 3.0, 2.5], [2.0, 2.0, 2.0, 2.0])
    assert found.low < 0 < found.high and not found.clear


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    rng = np.random.default_rng(0)
    hits = 0
    for k in range(300):
        low, high = bootstrap_interval(rng.normal(2.0, 1.0, 25), level=0.9, draws=800, seed=k)
        hits += low <= 2.0 <= high
    assert 0.82 <= hits / 300 <= 0.95


def test_draws_are_seeded():
    values = np.random.default_rng(1).normal(size=12)
    assert bootstrap_interval(values, seed=3) == bootstrap_interval(values, seed=3)
    assert bootstrap_interval(values, seed=3) != bootstrap_interval(values, seed=4)


def test_unusable_input_is_refused():
    assert math.isnan(paired_difference({0: 1.0}, {1: 1.0}).mean)
    assert paired_difference([1.0], [2.0]).low is None
    with pytest.raises(ValueError, match="equally many, got 1 and 2"):
        paired_difference([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="not one of each"):
        paired_difference([1.0], {0: 1.0})
    with pytest.raises(ValueError, match="between 0 and 1"):
        bootstrap_interval([1.0, 2.0], level=95)
