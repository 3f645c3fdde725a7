"""Fading pairs of corruptions: severity paths against the plain recursion, and the stream made of them."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from fake_data import FakeData, PairData

from slomofast.bench.source import KeptMatrices
from slomofast.core.errors import ConfigError, DataError
from slomofast.streams import Ccc, LazyMatrices, Stream, accuracy_matrices, severity_path
from slomofast.streams.ccc import LEVELS, lookup, reachable, staircase


def slow_path(matrix, target):
    """The rule written down as a recursion that carries whole paths."""
    last = len(matrix) - 1

    def best(i, j):
        if i == 0:
            return matrix[0][j], [(0, j)]
        down_sum, down_path = best(i - 1, j)
        down = down_sum + matrix[i][j], [(i, j), *down_path]
        if j + 1 > last:
            return down
        right_sum, right_path = best(i, j + 1)
        right = right_sum + matrix[i][j], [(i, j), *right_path]
        gap = [abs(total / len(path) - target) for total, path in (down, right)]
        return down if gap[0] < gap[1] else right

    found = [best(start, 0) for start in range(1, last + 1)]
    return min(found, key=lambda item: abs(item[0] / len(item[1]) - target))[1]


@pytest.mark.parametrize("seed", range(40))
def test_paths_equal_the_plain_recursion(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 7))
    fall = np.add.outer(np.arange(size), np.arange(size)) / (2 * size - 2)
    matrix = 90 - 80 * fall + rng.normal(0, 8, (size, size)) * (seed % 2)
    target = float(rng.choice([0, 20, 40, 70]))
    assert severity_path(matrix, target) == slow_path(matrix.tolist(), target)


def test_equal_means_go_right():
    assert severity_path(np.full((3, 3), 50.0), 50) == slow_path(np.full((3, 3), 50.0).tolist(), 50)
    assert severity_path(np.full((3, 3), 50.0), 50) == [(1, 0), (1, 1), (1, 2), (0, 2)]


def test_paths_move_one_notch_at_a_time_and_large_ones_are_quick():
    fall = np.add.outer(np.arange(21), np.arange(21))
    path = severity_path(80 - 1.8 * fall, 40)
    assert path[0][1] == 0 and path[-1][0] == 0
    assert all((a - c, d - b) in ((1, 0), (0, 1)) for (a, b), (c, d) in pairwise(path))
    mean = np.mean([80 - 1.8 * (i + j) for i, j in path])
    assert abs(mean - 40) < 3
    with pytest.raises(ConfigError, match="square"):
        severity_path(np.zeros((2, 3)), 40)


def matrices(size=6):
    fall = np.add.outer(np.arange(size), np.arange(size)) / (2 * size - 2)
    names = PairData().domains
    return {f"{a}+{b}": 90 - 85 * fall for a in names for b in names if a != b}


def test_a_stream_follows_the_paths():
    setting = Ccc(level="easy", speed=10, images=500)
    stream = Stream(setting, PairData(40), 10, seed=3, matrices=matrices())
    path = [(float(i), float(j)) for i, j in severity_path(next(iter(matrices().values())), 40)]
    assert [tuple(s for _, s in seg.pair) for seg in stream.segments[: len(path)]] == path
    assert [s.visit for s in stream.segments[: len(path) + 1]] == [0] * len(path) + [1]
    assert len(stream.segments) == 50 and all(s.images == 10 for s in stream.segments)
    pairs = [(s.pair[0][0], s.pair[1][0]) for s in stream.segments]
    changes = [(a, b) for a, b in pairwise(pairs) if a != b]
    assert changes and all(before[1] == after[0] for before, after in changes)
    assert {n for pair in pairs for n in pair} <= set(LEVELS["easy"][1])
    assert stream.domains == tuple(dict.fromkeys(f"{a}+{b}" for a, b in pairs))
    batch = stream.batch(1)
    (_, one), (_, other) = stream.segments[1].pair
    assert (batch.images[0, :, 0, 0] * 255).round().tolist()[1:] == [round(10 * one), round(10 * other)]
    assert stream.table()[0]["pair"] == [list(p) for p in stream.segments[0].pair]


def test_each_notch_draws_its_own_images():
    stream = Stream(Ccc(speed=10, images=100, calibrated=False), PairData(40), 10)
    first, second = stream.rows(0)[1], stream.rows(1)[1]
    assert len(set(first)) == 10 and (first != second).any()


def test_the_order_of_corruptions_has_a_seed_of_its_own():
    def order(run, own):
        setting = Ccc(speed=10, images=2000, calibrated=False, order_seed=own)
        return Stream(setting, PairData(40), 10, seed=run).domains

    assert order(0, 43) == order(1, 43)
    assert order(0, 43) != order(0, 44)
    assert order(0, None) != order(1, None)


def test_images_per_domain_shortens_the_notches():
    stream = Stream(Ccc(speed=30, images=600, calibrated=False), PairData(40), 10, images_per_domain=10)
    assert len(stream.segments) == 20 and stream.total == 20


def test_matrices_in_the_setting_become_paths_that_survive_json():
    setting = Ccc(level="easy", speed=10, images=300, matrices=matrices())
    assert setting.matrices is None and setting.requirements() == ()
    from slomofast.streams import from_dict

    again = from_dict(setting.to_dict())
    assert again == setting
    streams = [Stream(s, PairData(40), 10, matrices=m) for s, m in ((again, None), (Ccc("easy", 10, 300), matrices()))]
    assert [s.pair for s in streams[0].segments] == [s.pair for s in streams[1].segments]
    published = {f"n1_{a}_n2_{b}": m for (a, _, b), m in ((k.partition("+"), v) for k, v in matrices().items())}
    third = Stream(Ccc("easy", 10, 300), PairData(40), 10, matrices=published)
    assert [s.pair for s in third.segments] == [s.pair for s in streams[1].segments]


def test_the_published_file_shortens_two_names():
    low = np.full((3, 3), 10.0)
    published = {"n1_elastic_n2_jpeg": low, "n1_jpeg_n2_fog": 2 * low}
    assert lookup(published, "elastic_transform", "jpeg_compression")[0, 0] == 10
    assert lookup(published, "jpeg_compression", "fog")[0, 0] == 20
    assert reachable(published, 40) == ("elastic_transform", "jpeg_compression")


def test_missing_accuracies_say_what_to_do():
    with pytest.raises(ConfigError, match="LazyMatrices"):
        Stream("ccc", PairData(40))
    with pytest.raises(ConfigError, match="no accuracy matrix for"):
        Stream("ccc", PairData(40), matrices={})
    with pytest.raises(ConfigError, match="needs two corruptions"):
        Stream(Ccc(calibrated=False), PairData(40), domains=["fog"])


def test_held_out_pairs_are_shown_half_way():
    stream = Stream(Ccc(speed=10, images=210, calibrated=False), PairData(40), 10, held_out=0.1)
    images, labels = stream.held_out(stream.domains[0])
    assert len(labels) == 4
    assert (images[0, 1:, 0, 0] * 255).round().tolist() == [25, 25]


def test_the_staircase_fades_one_into_the_other():
    path = staircase(2)
    assert path == ((5, 0), (5, 2.5), (2.5, 2.5), (2.5, 5), (0, 5))


def weak(images):
    """Right unless the two severities add up to more than 5."""
    codes = (images[:, :, 0, 0] * 255).round()
    target = codes[:, 0].long() % 10
    answer = torch.where(codes[:, 1] + codes[:, 2] > 50, (target + 1) % 10, target)
    return torch.nn.functional.one_hot(answer, 10).float()


def test_matrices_are_measured_cell_by_cell():
    pair = ("fog", "snow")
    found = accuracy_matrices(weak, PairData(40), [pair], step=2.5, images=20, batch_size=7)
    assert found["fog+snow"].tolist() == [[100, 100, 100], [100, 100, 0], [100, 0, 0]]
    with pytest.raises(DataError, match="load_pair"):
        accuracy_matrices(weak, FakeData(40), [pair])
    with pytest.raises(ConfigError, match="divide 5"):
        accuracy_matrices(weak, PairData(40), [pair], step=0.3)


def test_lazy_matrices_measure_only_what_is_shown():
    lazy = LazyMatrices(weak, PairData(40), step=2.5, images=10)
    stream = Stream(Ccc(speed=10, images=60), PairData(40), 10, matrices=lazy)
    assert set(lazy.known) == set(stream.domains)
    assert "fog+fog" not in lazy and len(lazy) == 15 * 14
    again = LazyMatrices(None, PairData(40), known={k: v.tolist() for k, v in lazy.known.items()})
    assert Stream(Ccc(speed=10, images=60), PairData(40), 10, matrices=again).fingerprint == stream.fingerprint


class LargeData(PairData):
    """Images of ImageNet's size, with a look at them that is not varied."""

    image_size = 224

    def plain_pair(self, first, second, index):
        self.plain = True
        return super().load_pair(first, second, index)


def test_large_images_are_calibrated_as_ccc_is():
    small, large = PairData(40), LargeData(40)
    assert LazyMatrices(weak, small, images=10)["fog+snow"].shape == (11, 11)
    assert LazyMatrices(weak, large, images=10)["fog+snow"].shape == (21, 21) and large.plain
    with pytest.raises(DataError, match="load_pair"):
        accuracy_matrices(weak, FakeData(40), [("fog", "snow")])


def hardly(names, high=95.0, low=20.0):
    """Matrices of which only the given corruptions bring the network far down."""
    return {
        f"{a}+{b}": np.linspace(99, low if a in names else high, 6)[:, None] * np.ones(6)
        for a in PairData().domains
        for b in PairData().domains
        if a != b
    }


def shown(stream):
    return {name for segment in stream.segments for name, _ in segment.pair}


def test_corruptions_that_stay_above_the_target_are_left_out():
    hard = ("fog", "contrast", "glass_blur")
    given = hardly(hard)
    for setting, known in (
        (Ccc(level="easy", speed=10, images=900, target=70), given),
        (Ccc(level="easy", speed=10, images=900, target=70, matrices=given), None),
    ):
        assert shown(Stream(setting, PairData(40), 10, matrices=known)) == set(hard)
    everything = set(LEVELS["easy"][1])
    for options in ({"target": 70, "reachable": False}, {"target": 70, "calibrated": False}, {}):
        setting = Ccc(level="easy", speed=10, images=9000, **options)
        assert shown(Stream(setting, PairData(40), 10, matrices=given)) == everything
    chosen = Ccc(level="easy", speed=10, images=900, target=70, corruptions=("fog", "snow"))
    assert shown(Stream(chosen, PairData(40), 10, matrices=given)) == {"fog", "snow"}
    with pytest.raises(ConfigError, match="1 of 14 corruptions bring the source network down to a target of 70 %"):
        Stream(Ccc(level="easy", target=70), PairData(40), 10, matrices=hardly(["fog"]))


def test_lazy_matrices_look_at_single_corruptions_first(tmp_path):
    def frail(images):
        """Wrong under contrast or fog at severity 5, whatever else there is."""
        return torch.nn.functional.one_hot((images[:, 0, 0, 0] * 255).round().long() % 10 + (0 if fine else 1), 11)

    class Named(PairData):
        def load_pair(self, first, second, index):
            nonlocal fine
            fine = not any(name in ("fog", "contrast") and severity > 4 for name, severity in (first, second))
            return super().load_pair(first, second, index)

    fine, data, file = True, Named(40), tmp_path / "known.json"
    kept = KeptMatrices(frail, data, 10, file)
    setting = Ccc(level="easy", speed=10, images=200, target=50)
    first = Stream(setting, data, 10, matrices=kept)
    assert shown(first) == {"fog", "contrast"} and kept.at_worst("snow") == 100 and kept.at_worst("fog") == 0
    again = KeptMatrices(None, data, 10, file)
    assert Stream(setting, data, 10, matrices=again).fingerprint == first.fingerprint
    file.write_text(json.dumps({"fog": [[7.0]], "fog+snow": [[1.0, 2.0], [3.0, 4.0]]}))
    assert list(KeptMatrices(None, data, 10, file).known) == ["fog"]  # a matrix with another step is measured anew


def test_reachable_drops_corruptions_that_stay_too_easy():
    low, high = np.full((3, 3), 10.0), np.full((3, 3), 80.0)
    assert reachable({"fog+snow": low, "snow+fog": high, "n1_frost_n2_fog": low}, 40) == ("fog", "frost")
