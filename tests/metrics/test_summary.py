"""Figures of a run against numbers worked out by hand and against slow references."""

import json
import math

import numpy as np
import pytest
import torch
from made_steps import DOMAINS, GROUPS, noise, step

from slomofast.core.errors import ConfigError
from slomofast.metrics import Curve, Step, moving_error, score, summarise


def curve_of(*steps, rule="segments"):
    curve = Curve(DOMAINS, GROUPS, rule)
    for one in steps:
        curve.update(one)
    return curve


def test_errors_by_hand():
    curve = curve_of(
        step(0, 0, 2, segment=0),
        step(1, 0, 4, segment=0),
        step(2, 1, 1, segment=1),
        step(3, 1, 0, 5, segment=1),
        step(4, 2, 3, segment=2),
        step(5, 0, 1, segment=3, cycle=1),
    )
    found = summarise(curve, ["error"])["error"]
    assert found["by_domain"] == pytest.approx({"fog": 100 * 7 / 30, "snow": 100 / 15, "frost": 30})
    assert found["by_group"] == pytest.approx({"haze": 100 * 7 / 30, "cold": (100 / 15 + 30) / 2})
    assert found["by_segment"] == pytest.approx([30, 100 / 15, 30, 10])
    assert found["by_cycle"] == pytest.approx({"0": (30 + 100 / 15 + 30) / 3, "1": 10})
    assert found["mean"] == pytest.approx((30 + 100 / 15 + 30 + 10) / 4)
    assert found["samples"] == pytest.approx(100 * 11 / 55)
    assert found["first_visits"] == pytest.approx((30 + 100 / 15 + 30) / 3)
    assert found["returns"] == 10


def test_mixed_scores_the_mean_of_its_domains():
    mixture = [0] * 8 + [1] * 2  # the first three wrong images are of domain 0
    curve = curve_of(step(0, mixture, 3, segment=0), step(1, [0, 1, 1, 2], 2, 4, segment=0))
    found = summarise(curve, ["error"])["error"]
    expected = {"fog": 100 * 4 / 9, "snow": 100 * 1 / 4, "frost": 0.0}
    assert found["by_domain"] == pytest.approx(expected)
    assert found["mean"] == pytest.approx(np.mean(list(expected.values())))
    assert curve["by_domain"][1] == [[0, 1, 1], [1, 2, 1], [2, 1, 0]]
    assert curve["domain"] == [-1, -1]


def test_a_mixed_phase_is_one_column_of_the_score():
    curve = curve_of(
        step(0, 0, 1, segment=0), step(1, 1, 3, segment=1), step(2, [0] * 5 + [1] * 5, 5, segment=2, cycle=1)
    )
    assert score(curve) == pytest.approx((10 + 30 + 50) / 3)


def test_gradual_also_scores_the_strongest_severity():
    curve = curve_of(
        step(0, 0, 1, segment=0, visit=0, severity=1),
        step(1, 0, 4, segment=1, visit=0, severity=5),
        step(2, 0, 1, segment=2, visit=0, severity=1),
        step(3, 1, 2, segment=3, visit=1, severity=5),
    )
    found = summarise(curve, ["error"])["error"]
    assert found["mean"] == 20
    assert found["strongest"] == 30
    assert found["by_severity"] == {"1": 10, "5": 30}
    assert found["by_visit"] == [20, 20]


def test_ccc_scores_all_images_alike():
    steps = [step(0, 0, 5, 10, segment=0), step(1, 1, 0, 90, segment=1)]
    assert score(curve_of(*steps, rule="samples")) == 5
    assert score(curve_of(*steps)) == 25


def test_recovery_by_hand():
    wrong = [5, 4, 3, 2, 1, 0] + [2] * 6 + [3, 2, 0, 0, 0, 0]
    domain = [0] * 6 + [1] * 6 + [0] * 6
    steps = [step(k, domain[k], wrong[k], segment=k // 6, cycle=k // 12) for k in range(18)]
    found = summarise(curve_of(*steps), ["recovery"], window=2)["recovery"]
    assert found["mean"] == pytest.approx(25 - 5)  # first two of the return: 5 of 20; last two before: 1 of 20
    assert found["returns"] == 1 and found["by_domain"] == {"fog": pytest.approx(20)}
    assert found["by_cycle"] == {"1": pytest.approx(20)}
    assert summarise(curve_of(steps[0]), ["recovery"])["recovery"]["mean"] is None


def test_cost_leaves_out_warm_up_and_short_batches():
    times = [9, 9, 9, 1, 2, 3, 4, 5]
    steps = [step(k, 0, 0, 10, segment=0, seconds=t) for k, t in enumerate(times)]
    steps.append(step(8, 0, 0, 5, segment=0, seconds=100))
    found = summarise(curve_of(*steps), ["cost"])["cost"]
    assert found["milliseconds_median"] == 3000
    assert found["milliseconds_p95"] == pytest.approx(4800)
    assert found["images_per_second"] == pytest.approx(55 / 115)
    assert found["timed_steps"] == 6
    assert summarise(curve_of(step(0, 0, 0)), ["cost"])["cost"]["milliseconds_median"] is None


def test_calibration_against_a_slow_reference():
    steps = noise(1)
    found = summarise(curve_of(*steps), ["calibration"])["calibration"]
    logits, target = torch.cat([s.logits for s in steps]).double(), torch.cat([s.target for s in steps])
    probability = logits.softmax(1)
    confidence, prediction = probability.max(1)
    gap = 0.0
    for b in range(15):
        inside = [k for k in range(len(target)) if b / 15 < confidence[k] <= (b + 1) / 15]
        if inside:
            mean = sum(float(confidence[k]) for k in inside) / len(inside)
            right = sum(int(prediction[k] == target[k]) for k in inside) / len(inside)
            gap += len(inside) / len(target) * abs(mean - right)
    assert found["ece"] == pytest.approx(100 * gap, abs=1e-3)
    nll = -probability[torch.arange(len(target)), target].log().mean()
    assert found["nll"] == pytest.approx(float(nll), rel=1e-5)
    assert set(found["ece_by_cycle"]) == set(found["nll_by_cycle"]) == {"0", "1"}


def test_calibration_by_hand():
    # ten answers at the confidence of a logit of 2 over three of 0, eight of them right
    confidence = math.exp(2) / (math.exp(2) + 3)
    found = summarise(curve_of(step(0, 0, 2)), ["calibration"])["calibration"]
    assert found["ece"] == pytest.approx(100 * abs(confidence - 0.8), rel=1e-5)
    expected = -(8 * math.log(confidence) + 2 * math.log((1 - confidence) / 3)) / 10
    assert found["nll"] == pytest.approx(expected, rel=1e-5)


def test_moving_error_looks_back():
    curve = curve_of(*[step(k, 0, w, segment=0) for k, w in enumerate([4, 0, 2, 6])])
    assert moving_error(curve, 2) == [40, 20, 10, 40]
    assert moving_error(curve, 100) == [40, 20, 20, 30]


def test_merged_parts_equal_the_whole():
    steps = noise(2, 90)
    whole, left, right = curve_of(*steps), curve_of(*steps[:37]), curve_of(*steps[37:])
    right.merge(left)
    one, other = whole.to_dict(), right.to_dict()
    for name in ("bins_confidence", "bins_count", "bins_correct"):
        assert np.allclose(one.pop(name), other.pop(name), rtol=1e-12)
    assert one == other
    with pytest.raises(ValueError, match="both curves hold batch 0"):
        whole.merge(left)
    with pytest.raises(ValueError, match="cannot be merged"):
        whole.merge(Curve(("other",)))


def test_a_curve_survives_json_and_can_go_on():
    steps = noise(3, 40)
    half = curve_of(*steps[:20])
    again = Curve.from_dict(json.loads(json.dumps(half.to_dict())))
    assert again.to_dict() == half.to_dict()
    for one in steps[20:]:
        again.update(one)
    assert summarise(again) == summarise(curve_of(*steps))
    assert len(again) == 40 and again.peak_bytes == 3900


def test_a_broken_method_leaves_a_readable_record():
    broken = Step(torch.full((4, 3), math.nan), torch.zeros(4).long(), torch.zeros(4).long(), torch.full((4,), 5.0))
    curve = curve_of(broken, step(1, 0, 1))
    text = json.dumps(curve.to_dict(), allow_nan=False)
    json.dumps(summarise(Curve.from_dict(json.loads(text))), allow_nan=False)
    assert curve.to_dict()["nll"][0] is None
    assert summarise(curve, ["calibration"])["calibration"]["nll"] is None


def test_times_may_be_read_late():
    class Late:
        reads = 0

        def __float__(self):
            Late.reads += 1
            return 0.25

    curve = curve_of(step(0, 0, 1, seconds=Late()))
    assert Late.reads == 0
    assert curve["seconds"] == [0.25]


def test_unknown_families_are_named():
    with pytest.raises(ConfigError, match="did you mean 'error'"):
        summarise(curve_of(step(0, 0, 0)), ["errors"])


def test_an_empty_curve_has_no_figures_but_no_error():
    found = summarise(Curve(DOMAINS, GROUPS))
    assert found["error"]["mean"] is None and found["adaptation"]["rate"] is None
    assert found["calibration"]["ece"] is None and found["forgetting"]["final"] is None
