"""The stream itself: what batches hold, entering anywhere, fingerprints, memory, the thread that loads ahead."""

import io
import json
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_data import FakeData, PairData
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as some

from slomofast.core.errors import ConfigError
from slomofast.streams import (
    Continual,
    Correlated,
    CrossGroup,
    CycleLength,
    Cyclic,
    Episodic,
    Gradual,
    Mixed,
    Stream,
    Then,
    list_settings,
    make_setting,
)
from slomofast.streams.prefetch import ahead

FROZEN = Path(__file__).with_name("fingerprints.json")
ERRORS = {domain: place * 7 % 15 for place, domain in enumerate(FakeData().domains)}


def frozen_stream(name: str) -> Stream:
    options = {"calibrated": False, "speed": 100, "images": 10_000} if name == "ccc" else {}
    data = PairData(1000)
    return Stream(make_setting(name, **options), data, 64, seed=5, images_per_domain=300, source_errors=ERRORS)


def equal(one, other) -> bool:
    tensors = all(torch.equal(getattr(one, n), getattr(other, n)) for n in ("images", "target", "domain", "severity"))
    plain = ("position", "segment", "cycle", "visit", "reset")
    return tensors and all(getattr(one, n) == getattr(other, n) for n in plain)


@pytest.mark.parametrize("name", list_settings(combinators=True))
def test_fingerprints_are_those_on_file(name):
    assert frozen_stream(name).fingerprint == json.loads(FROZEN.read_text())[name]


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"batch_size": 21},
        {"images_per_domain": 39},
        {"severity": 4},
        {"domains": ["fog", "snow"]},
        {"held_out": 0.1},
        {"setting": "cyclic"},
        {"shuffle": False},
    ],
)
def test_whatever_changes_the_stream_changes_the_fingerprint(change):
    base = {"setting": "continual", "batch_size": 20}
    assert Stream(data=FakeData(), **base).fingerprint == Stream(data=FakeData(), **base).fingerprint
    assert Stream(data=FakeData(), **{**base, **change}).fingerprint != Stream(data=FakeData(), **base).fingerprint


def test_labels_decide_correlated_fingerprints():
    class Shifted(FakeData):
        def labels(self, domain):
            return (np.arange(self.size) * 3 // 10) % 10

    assert Stream("correlated", FakeData()).fingerprint != Stream("correlated", Shifted()).fingerprint
    assert Stream("continual", FakeData()).fingerprint == Stream("continual", Shifted()).fingerprint


def test_a_batch_holds_what_it_says():
    stream = Stream("mixed", FakeData(), 16, severity=3)
    for batch in stream:
        domain, index = stream.rows(batch.position)
        assert batch.images.dtype == torch.float32 and batch.images.shape[1:] == (3, 2, 2)
        assert torch.equal((batch.images[:, 0, 0, 0] * 255).round().long(), torch.from_numpy(index))
        assert torch.equal((batch.images[:, 1, 0, 0] * 255).round().long(), batch.domain)
        assert torch.equal(batch.domain, torch.from_numpy(domain))
        assert torch.equal(batch.target, torch.from_numpy(index % 10))
        assert batch.severity.tolist() == [3.0] * len(batch)
        assert torch.allclose(batch.images[:, 2] * 255, torch.tensor(30.0))


def test_a_short_last_batch_ends_each_segment():
    stream = Stream("continual", FakeData(40), 15, domains=["fog", "snow"])
    assert [len(batch) for batch in stream] == [15, 15, 10] * 2
    assert [row["steps"] for row in stream.table()] == [3, 3]


def test_domains_are_used_in_the_order_given():
    stream = Stream("continual", FakeData(), 40, domains=["snow", "fog"])
    assert stream.domains == ("snow", "fog")
    assert [(stream.segments[b.segment].name, int(b.domain[0])) for b in stream] == [("snow", 0), ("fog", 1)]
    assert [round(float(b.images[0, 1, 0, 0]) * 255) for b in stream] == [7, 9]


def test_repeat_goes_round_in_fresh_orders():
    stream = Stream("continual", FakeData(10), 10, images_per_domain=25, repeat=True, domains=["fog"])
    first, second, third = (stream.rows(k)[1] for k in range(3))
    assert sorted(first) == sorted(second) == list(range(10)) and len(third) == 5
    assert (first != second).any()


def test_ordered_data_keeps_its_order():
    data = FakeData(50)
    data.ordered = True
    stream = Stream("continual", data, 20, domains=["fog"])
    assert np.concatenate([stream.rows(k)[1] for k in range(3)]).tolist() == list(range(50))
    assert Stream("continual", data, 20, shuffle=True).rows(0)[1].tolist() != list(range(20))


def test_any_integer_is_a_seed():
    rows = [Stream("continual", FakeData(), seed=s).rows(0)[1].tolist() for s in (-1, 0, 2**40, 2**40 + 2**33, 1)]
    assert len({tuple(row) for row in rows}) == 5


@pytest.mark.parametrize("name", list_settings(combinators=True))
def test_entering_late_equals_skipping(name):
    stream = frozen_stream(name)
    for position in (1, stream.total // 2, stream.total - 1):
        late = stream.from_position(position)
        assert len(late) == stream.total - position
        assert equal(next(iter(late)), stream.batch(position))
        assert late.fingerprint == stream.fingerprint
    assert list(stream.from_position(stream.total)) == []


simple = some.one_of(
    some.just(Continual()),
    some.just(Mixed()),
    some.just(CrossGroup()),
    some.builds(Gradual, some.lists(some.floats(0, 5), min_size=1, max_size=3).map(tuple)),
    some.builds(CycleLength, length=some.integers(1, 2), visits=some.integers(1, 5)),
)
composed = some.recursive(
    simple,
    lambda inner: some.one_of(
        some.builds(Cyclic, inner, some.integers(1, 3)),
        some.builds(Episodic, inner),
        some.builds(Correlated, inner, some.floats(0.01, 10)),
        some.builds(Then, inner, inner),
    ),
    max_leaves=4,
)


@budget(max_examples=60, deadline=None)
@given(
    setting=composed,
    batch_size=some.integers(1, 9),
    seed=some.integers(-(2**70), 2**70),
    images=some.integers(1, 8),
    held_out=some.sampled_from([0.0, 0.2]),
)
def test_any_composition_is_a_proper_stream(setting, batch_size, seed, images, held_out):
    stream = Stream(
        setting, FakeData(10), batch_size, seed, images, domains=["fog", "snow", "contrast"], held_out=held_out
    )
    assert make_setting(json.loads(json.dumps(setting.to_dict()))) == setting
    counts = dict.fromkeys(range(len(stream.segments)), 0)
    seen: dict[int, set] = {}
    visits = []
    for position in range(stream.total):
        segment, _ = stream.locate(position)
        domain, index = stream.rows(position)
        assert 0 < len(index) <= batch_size
        counts[segment.number] += len(index)
        seen.setdefault(segment.number, set()).update(zip(domain.tolist(), index.tolist(), strict=True))
        visits.append(segment.visit)
        assert not set(index.tolist()) & set(stream.held_out_index().tolist())
    assert all(counts[s.number] == s.count == len(seen[s.number]) for s in stream.segments)
    assert visits == sorted(visits) and set(visits) == set(range(visits[-1] + 1))
    again = Stream(
        setting, FakeData(10), batch_size, seed, images, domains=["fog", "snow", "contrast"], held_out=held_out
    )
    assert again.fingerprint == stream.fingerprint
    middle = stream.total // 2
    assert equal(next(iter(stream.from_position(middle))), again.batch(middle))


def test_the_held_out_sample_is_fixed_and_disjoint():
    stream = Stream("continual", FakeData(100), 20, held_out=0.1)
    held = stream.held_out_index()
    assert len(held) == 10
    shown = np.concatenate([stream.rows(k)[1] for k in range(stream.total)])
    assert not set(held.tolist()) & set(shown.tolist())
    assert set(held.tolist()) | set(shown.tolist()) == set(range(100))
    assert (Stream("mixed", FakeData(100), 20, seed=9, held_out=0.1).held_out_index() == held).all()
    images, labels = stream.held_out("fog")
    assert torch.equal((images[:, 0, 0, 0] * 255).round().long(), torch.from_numpy(held))
    assert (images[:, 1] * 255).round().unique().tolist() == [FakeData().domains.index("fog")]
    assert labels.tolist() == (held % 10).tolist()
    with pytest.raises(ConfigError, match="build it with held_out"):
        Stream("continual", FakeData(100)).held_out("fog")
    with pytest.raises(ConfigError, match="did you mean 'fog'"):
        stream.held_out("fgo")


def test_held_out_images_cover_sorted_classes():
    class Sorted(FakeData):
        def labels(self, domain):
            return np.arange(self.size) * 10 // self.size

    stream = Stream("continual", Sorted(200), 20, held_out=0.1)
    assert sorted(set(stream.held_out("fog")[1].tolist())) == list(range(10))


def test_a_lifelong_stream_needs_little_memory_and_no_time_to_enter():
    stream = Stream("lifelong", FakeData(10_000), 200)
    stream.rows(0)
    tracemalloc.start()
    for position in range(0, stream.total, 3):
        stream.rows(position)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(s.count for s in stream.segments) == 1_500_000
    assert peak < 2**20  # the whole order would be 12 MB

    def entering(position):
        began = time.perf_counter()
        for _ in range(20):
            next(iter(stream.from_position(position)))
        return time.perf_counter() - began

    entering(0)
    assert entering(stream.total - 1) < 5 * entering(0) + 0.1


def test_seven_million_images_of_fading_pairs_fit_too():
    stream = Stream(make_setting("ccc", calibrated=False), PairData(50_000), 64)
    assert sum(s.count for s in stream.segments) == 7_500_000
    assert len(stream.segments) == 7500
    tracemalloc.start()
    for position in np.linspace(0, stream.total - 1, 20).astype(int):
        stream.rows(int(position))
    assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    tracemalloc.stop()


def test_loading_ahead_changes_nothing():
    plain = list(Stream("mixed_after_continual", FakeData(), 20, prefetch=0))
    threaded = list(Stream("mixed_after_continual", FakeData(), 20, prefetch=3))
    assert len(plain) == len(threaded) == 60
    assert all(equal(a, b) for a, b in zip(plain, threaded, strict=True))


def test_two_loops_over_one_stream_do_not_disturb_each_other():
    stream = Stream("continual_after_mixed", FakeData(), 20)
    pairs = list(zip(stream, stream.from_position(10), strict=False))
    assert all(equal(b, stream.batch(a.position + 10)) for a, b in pairs)


def test_leaving_the_loop_stops_the_thread():
    data = FakeData()
    batches = iter(Stream("continual", data, 5, prefetch=2))
    next(batches)
    batches.close()
    assert not [t for t in threading.enumerate() if t.name == "slomofast-prefetch"]
    loads = data.loads
    time.sleep(0.05)
    assert data.loads == loads <= 6


def test_an_error_while_loading_reaches_the_loop():
    class Broken(FakeData):
        def load(self, domain, severity, index):
            if domain == "fog":
                raise OSError("disk gone")
            return super().load(domain, severity, index)

    seen = []
    with pytest.raises(OSError, match="disk gone"):
        for batch in Stream("continual", Broken(), 40, domains=["snow", "fog"]):
            seen.append(batch)
    assert len(seen) == 1


def test_no_more_than_the_depth_is_computed_ahead():
    made = []

    def numbers():
        for k in range(100):
            made.append(k)
            yield k

    source = ahead(numbers(), 3)
    assert next(source) == 0
    time.sleep(0.2)
    assert len(made) <= 6  # one taken, three waiting, one in hand, one to spare
    assert list(source) == list(range(1, 100))


def test_streams_print_themselves():
    stream = Stream("cyclic", FakeData(), 20)
    text = str(stream)
    assert stream.fingerprint in text and "gaussian_noise" in text and "60 of 20" in text
    rich = pytest.importorskip("rich.console")
    console = rich.Console(width=100, record=True, file=io.StringIO())
    console.print(stream)
    shown = console.export_text()
    assert "cyclic over fake" in shown and "█" in shown and stream.fingerprint in shown
    assert "▒" not in shown
