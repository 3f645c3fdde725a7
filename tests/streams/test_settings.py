"""Every setting: how many, in which order, and what happens to impossible requests."""

import json
import re

import numpy as np
import pytest
from fake_data import GROUPS, FakeData, PairData

from slomofast.core.errors import ConfigError
from slomofast.data.catalog import Catalog
from slomofast.streams import (
    Continual,
    Correlated,
    Cyclic,
    Gradual,
    Mixed,
    Stochastic,
    Stream,
    Then,
    describe_setting,
    from_dict,
    list_settings,
    make_setting,
    measure_source_errors,
)
from slomofast.streams.order import spread
from slomofast.streams.ordering import CROSS_GROUP, across_groups

ORDER = [d for members in GROUPS.values() for d in members]
ERRORS = {domain: (7 * place) % 15 for place, domain in enumerate(ORDER)}


def play(name: str, size: int = 40, **options):
    """A stream with whatever facts its setting asks for."""
    if name == "ccc":
        options = {"calibrated": False, "speed": 20, "images": 800, **options}
    return Stream(make_setting(name, **options), PairData(size), 20, source_errors=ERRORS)


def names(stream: Stream) -> list[str]:
    return [segment.name for segment in stream.segments]


def test_every_documented_setting_exists():
    expected = [
        *("continual", "mixed", "gradual", "episodic", "cross_group", "easy2hard", "hard2easy"),
        *("mixed_after_continual", "continual_after_mixed", "ccc", "cyclic", "cyclic_group", "cycle_length"),
        *("lifelong", "stochastic", "correlated"),
    ]
    assert list_settings() == expected
    assert list_settings(combinators=True) == [*expected, "then"]


@pytest.mark.parametrize("name", list_settings(combinators=True))
def test_round_trip_through_json(name):
    setting = make_setting(name)
    plain = json.loads(json.dumps(setting.to_dict()))
    assert from_dict(plain) == setting
    assert plain["name"] == name
    assert describe_setting(name).summary


@pytest.mark.parametrize(
    ("name", "options", "steps"),
    [
        ("continual", {}, 750),
        ("mixed", {}, 750),
        ("cyclic", {"cycles": 1}, 750),
        ("lifelong", {}, 7500),
        ("stochastic", {}, 1500),
        *[("cycle_length", {"length": n}, 1500) for n in (3, 5, 10, 15)],
    ],
)
def test_step_counts_of_the_paper(name, options, steps):
    assert len(Stream(make_setting(name, **options), FakeData(10_000), 200)) == steps


@pytest.mark.parametrize("name", list_settings(combinators=True))
def test_nothing_is_seen_twice_inside_a_segment(name):
    stream = play(name)
    position = 0
    for row, segment in zip(stream.table(), stream.segments, strict=True):
        seen = set()
        for step in range(row["steps"]):
            domain, index = stream.rows(row["start"] + step)
            assert set(domain) <= set(segment.domains)
            seen |= set(zip(domain.tolist(), index.tolist(), strict=True))
        assert row["start"] == position
        assert len(seen) == segment.count == row["images"]
        position += row["steps"]
    assert position == stream.total


def test_continual_shows_each_image_of_each_domain_once():
    stream = play("continual")
    assert names(stream) == ORDER
    seen = [
        tuple(pair) for k in range(stream.total) for pair in zip(*map(np.ndarray.tolist, stream.rows(k)), strict=True)
    ]
    assert len(seen) == len(set(seen)) == 15 * 40


def test_the_permutation_is_the_same_in_every_domain_and_depends_on_the_seed():
    stream = play("continual")
    first, second = stream.rows(0)[1], stream.rows(2)[1]
    assert (first == second).all()
    other = Stream("continual", FakeData(), 20, seed=1)
    assert (first != other.rows(0)[1]).any()


def test_mixed_mixes_domains_in_a_batch():
    stream = play("mixed")
    assert names(stream) == ["mixed"]
    assert len(set(stream.rows(0)[0])) > 5
    assert len(stream) == 15 * 40 / 20


def test_gradual_climbs_and_returns():
    stream = play("gradual")
    assert names(stream)[:9] == [f"gaussian_noise@{s}" for s in (1, 2, 3, 4, 5, 4, 3, 2, 1)]
    assert len(stream.segments) == 135
    assert [s.visit for s in stream.segments[:10]] == [0] * 9 + [1]
    assert float(stream.batch(0).severity[0]) == 1


def test_episodic_resets_at_every_boundary_but_the_first():
    stream = play("episodic")
    resets = [k for k in range(stream.total) if stream.batch(k).reset]
    assert resets == list(range(2, 30, 2))
    assert not any(s.reset for s in play("continual").segments)
    gradual = play("episodic", inner="gradual")
    assert [s.number for s in gradual.segments if s.reset] == list(range(9, 135, 9))


def test_cross_group_is_the_published_order():
    assert names(play("cross_group")) == list(CROSS_GROUP)
    assert sorted(CROSS_GROUP) == sorted(ORDER)


def test_cross_group_puts_unknown_domains_behind_group_by_group():
    catalog = Catalog(("x1", "fog", "x2", "y1", "z"), 5, {"x": ("x1", "x2"), "y": ("y1",)})
    assert across_groups(catalog) == ("fog", "x1", "y1", "z", "x2")


def test_orders_by_source_error():
    easy = names(play("easy2hard"))
    assert [ERRORS[d] for d in easy] == sorted(ERRORS.values())
    assert names(play("hard2easy")) == easy[::-1]
    with pytest.raises(ConfigError, match="measure_source_errors"):
        Stream("easy2hard", FakeData())
    with pytest.raises(ConfigError, match="lacks fog"):
        Stream("easy2hard", FakeData(), source_errors={d: 1.0 for d in ORDER if d != "fog"})


def test_source_errors_are_measured_in_percent():
    import torch

    def always_three(images):
        assert images.dtype == torch.float32 and images.max() <= 1
        return torch.nn.functional.one_hot(torch.full((len(images),), 3), 10).float()

    errors = measure_source_errors(always_three, FakeData(50), images=20, batch_size=8)
    expected = 100 * np.mean(spread(50, 20) % 10 != 3)
    assert errors == dict.fromkeys(ORDER, pytest.approx(expected))


def test_the_two_orders_of_mixed_and_continual():
    assert names(play("mixed_after_continual")) == [*ORDER, "mixed"]
    assert names(play("continual_after_mixed")) == ["mixed", *ORDER]
    assert play("mixed_after_continual").total == 60
    assert names(play("then")) == names(play("mixed_after_continual"))


def test_cyclic_repeats_and_counts_cycles():
    stream = play("cyclic", cycles=3)
    assert names(stream) == ORDER * 3
    assert [s.cycle for s in stream.segments] == [0] * 15 + [1] * 15 + [2] * 15
    assert [s.visit for s in stream.segments] == list(range(45))
    assert make_setting("lifelong").cycles == 10


def test_cyclic_group_repeats_each_group():
    stream = play("cyclic_group", cycles=2, reset_between_groups=True)
    noise, blur = list(GROUPS["noise"]), list(GROUPS["blur"])
    assert names(stream)[:14] == noise * 2 + blur * 2
    assert [s.cycle for s in stream.segments][:10] == [0, 0, 0, 1, 1, 1, 0, 0, 0, 0]
    assert [s.name for s in stream.segments if s.reset] == ["defocus_blur", "snow", "brightness", "elastic_transform"]
    assert not any(s.reset for s in play("cyclic_group").segments)
    assert names(play("cyclic_group", groups=["weather"], cycles=1)) == list(GROUPS["weather"])


def test_cycle_length_returns_to_the_same_domains():
    stream = play("cycle_length", length=3)
    assert names(stream) == list(CROSS_GROUP[:3]) * 10
    assert [s.cycle for s in stream.segments][::3] == list(range(10))


def test_markov_chain_follows_its_matrix():
    setting = Stochastic(visits=40_000)
    states = setting.chain(seed=3)
    counts = np.zeros((5, 5))
    np.add.at(counts, (states[:-1], states[1:]), 1)
    observed = counts / counts.sum(1, keepdims=True)
    assert np.abs(observed - np.array(setting.transitions)).max() < 0.02
    starts = np.bincount([Stochastic(visits=1).chain(seed)[0] for seed in range(2000)], minlength=5) / 2000
    assert np.abs(starts - 0.2).max() < 0.04


def test_stochastic_draws_domains_of_the_chain_uniformly():
    setting = Stochastic(visits=5000)
    stream = Stream(setting, FakeData(), seed=4)
    group_of = {d: g for g, members in GROUPS.items() for d in members}
    states = [setting.groups[s] for s in setting.chain(4)]
    assert [group_of[n] for n in names(stream)] == states
    blur = [n for n in names(stream) if group_of[n] == "blur"]
    shares = np.array([blur.count(d) for d in GROUPS["blur"]]) / len(blur)
    assert np.abs(shares - 0.25).max() < 0.05


def test_correlated_labels_come_in_bursts_and_nothing_is_lost():
    def runs(delta):
        stream = Stream(Correlated(delta=delta), FakeData(400), 400)
        index = stream.rows(0)[1]
        assert sorted(index.tolist()) == list(range(400))
        return 1 + int((np.diff(index % 10) != 0).sum())

    plain = 1 + int((np.diff(Stream("continual", FakeData(400), 400).rows(0)[1] % 10) != 0).sum())
    assert runs(0.01) < runs(1.0) < plain
    over_mixed = Stream(Correlated(inner=Mixed(), delta=0.05), FakeData(40), 600)
    domain, index = over_mixed.rows(0)
    assert len(set(zip(domain.tolist(), index.tolist(), strict=True))) == 600
    first, second = (Stream(Correlated(), FakeData(400), 400).rows(k)[1] for k in (0, 1))
    assert (first != second).any()  # bursts are drawn anew for each segment


def test_settings_compose_in_any_depth():
    setting = make_setting(
        "then",
        first={"name": "cyclic", "cycles": 2, "inner": '{"name": "gradual", "severities": [1, 5]}'},
        second={"name": "correlated", "inner": "mixed", "delta": 0.5},
    )
    assert setting == Then(Cyclic(Gradual((1, 5)), 2), Correlated(Mixed(), 0.5))
    stream = Stream(setting, FakeData(), 20)
    assert len(stream.segments) == 2 * 15 * 2 + 1
    assert [s.cycle for s in stream.segments][::30] == [0, 1, 2]
    assert stream.segments[-1].delta == 0.5


def test_a_visit_does_not_run_on_into_the_next_part():
    stream = Stream(Cyclic(Gradual((1, 5)), 2), FakeData(), 20, domains=["fog"])
    assert [s.visit for s in stream.segments] == [0, 0, 1, 1]


def test_needs_are_those_of_the_parts():
    assert make_setting("cyclic", inner="easy2hard").requirements() == ("source_errors",)
    assert make_setting("ccc").requirements() == ("matrices",)
    assert make_setting("ccc", calibrated=False).requirements() == ()
    assert make_setting("cyclic", inner={"name": "ccc"}).score_rule() == "samples"
    assert make_setting("cyclic").score_rule() == "segments"


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("cyclc", {}, "did you mean 'cyclic'"),
        ("cyclic", {"cycle": 3}, "did you mean 'cycles'"),
        ("continual", {"cycles": 3}, "takes no options"),
        ("cyclic", {"cycles": 0}, "from 1 to 10000, got 0"),
        ("cyclic", {"cycles": "three"}, "whole number, got 'three'"),
        ("cyclic", {"cycles": True}, "whole number"),
        ("cyclic", {"inner": 3}, "must be a setting"),
        ("cyclic", {"inner": "mixd"}, "did you mean 'mixed'"),
        ("cyclic", {"inner": "{broken"}, "must parse"),
        ("gradual", {"severities": [1, 6]}, "from 0 to 5, got 6"),
        ("gradual", {"severities": []}, "list of numbers"),
        ("stochastic", {"groups": ["noise", "blur"]}, "2 x 2"),
        ("stochastic", {"groups": ["noise", "noise"]}, "twice"),
        ("stochastic", {"groups": ["noise"], "transitions": [[0.5]]}, "must add up to 1, got 0.5"),
        ("correlated", {"delta": 0}, "from 0.001 to 1000, got 0"),
        ("cyclic_group", {"reset_between_groups": "yes"}, "true or false"),
        ("ccc", {"level": "hrad"}, "did you mean 'hard'"),
        ("ccc", {"paths": {"a+b": [[1, 7]]}}, "severities from 0 to 5"),
        ("ccc", {"paths": {"a+b": [1]}}, "paths must be"),
    ],
)
def test_bad_options_are_refused_with_the_reason(name, options, reason):
    with pytest.raises(ConfigError, match=re.escape(reason)):
        make_setting(name, **options)


@pytest.mark.parametrize(
    ("setting", "changes", "reason"),
    [
        ("cycle_length", {"domains": ["fog", "snow"]}, "length 5 is more than the 2 domains"),
        ("stochastic", {"domains": ["fog"]}, "group 'noise' has no domain"),
        (make_setting("cyclic_group", groups=["digtal"]), {}, "did you mean 'digital'"),
        (make_setting("cyclic_group", groups=["noise"]), {"domains": ["fog"]}, "no domain in this stream"),
        ("continual", {"images_per_domain": 41}, "more than the 40 images"),
        ("continual", {"images_per_domain": 40, "held_out": 0.25}, "(10 are held out)"),
        ("continual", {"images_per_domain": 0}, "at least 1"),
        ("continual", {"batch_size": 0}, "at least 1"),
        ("continual", {"severity": 6}, "from 0 to 5"),
        ("continual", {"seed": 1.5}, "whole number"),
        ("continual", {"held_out": 0.001}, "is not one image"),
        ("continual", {"held_out": 1}, "from 0 to 0.9"),
        ("continual", {"domains": ["fgo"]}, "did you mean 'fog'"),
        ("continual", {"domains": ["fog", "fog"]}, "each domain once"),
        ("continual", {"start": 31}, "outside the stream's 30 batches"),
        ("ccc", {}, "no load_pair"),
    ],
)
def test_impossible_streams_fail_when_built(setting, changes, reason):
    with pytest.raises(ConfigError, match=re.escape(reason)):
        Stream(setting, FakeData(), **{"batch_size": 20, **changes})


def test_a_setting_without_groups_says_what_to_use():
    with pytest.raises(ConfigError, match="use 'cyclic'"):
        Stream("cyclic_group", FakeData(groups={}))
    with pytest.raises(ConfigError, match="has none; use 'cyclic'"):
        Stream("stochastic", FakeData(groups={}))
    assert len(Stream(Continual(), FakeData(groups={}), 20)) == 30
