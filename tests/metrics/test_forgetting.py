"""Forgetting: the formula by hand, and a probe that leaves the adapter exactly as it was."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import slomofast as sf
from slomofast.data.catalog import DataSet
from slomofast.metrics import ForgettingProbe, forgetting, summarise
from slomofast.metrics.curve import Curve
from slomofast.metrics.forgetting import forgetting_by_visit
from slomofast.streams import Cyclic, Gradual, Mixed, Stream, Then


class Small(DataSet):
    """Three domains of random pictures."""

    name, family, classes, image_size, fingerprint = "small", "cifar", 4, 8, "small"
    domains = ("fog", "snow", "frost")
    groups = {"haze": ("fog",), "cold": ("snow", "frost")}
    size = 40

    def labels(self, domain):
        return np.arange(self.size) % self.classes

    def load(self, domain, severity, index):
        rows = []
        for k in index:
            generator = torch.Generator().manual_seed(int(k) * 7 + self.domains.index(domain))
            rows.append(torch.randint(0, 256, (3, 8, 8), generator=generator, dtype=torch.uint8))
        return torch.stack(rows)


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)
    ).eval()


def test_forgetting_by_hand():
    matrix = [[80, None, None], [70, 90, None], [75, 60, 50], [60, 95, 55]]
    found = forgetting_by_visit(matrix)
    assert math.isnan(found[0][0])
    assert found[1] == (pytest.approx(10), pytest.approx(100 * 10 / 80))
    assert found[2] == (pytest.approx((5 + 30) / 2), pytest.approx(100 * (5 / 80 + 30 / 90) / 2))
    assert found[3][0] == pytest.approx((20 - 5 - 5) / 3)


def test_forgetting_of_each_member():
    matrix = {
        "domains": ["fog", "snow"],
        "visits": [[1], [0], [1], [0]],
        "cycles": [0, 0, 1, 1],
        "accuracy": {
            "output": [[None, 80.0], [60.0, 70.0], [50.0, 90.0], [70.0, 85.0]],
            "slow": [[None, 80.0], [60.0, 80.0], [60.0, 80.0], [60.0, 80.0]],
        },
    }
    found = forgetting(matrix)
    assert found["output"]["by_visit"] == [None, 10, (10 - 10) / 2, (5 - 10) / 2]
    assert found["output"]["curve"] == [80, 70, 90, 85]  # the first domain of the stream, not of the catalogue
    assert found["output"]["by_cycle"] == [10, -2.5]
    assert found["output"]["final"] == -2.5
    assert found["slow"]["final"] == 0 and found["slow"]["mean"] == 0
    figures = summarise(Curve(), ["forgetting"], forgetting_matrix=matrix)["forgetting"]
    assert figures["final"] == -2.5 and figures["members"]["slow"]["final"] == 0
    json.dumps(figures, allow_nan=False)


def test_a_slow_reference_agrees():
    rng = np.random.default_rng(0)
    matrix = [[float(rng.uniform(0, 100)) if j <= i else None for j in range(6)] for i in range(6)]
    for k, (points, _) in enumerate(forgetting_by_visit(matrix)[1:], start=1):
        lost = [max(matrix[l][j] - matrix[k][j] for l in range(j, k)) for j in range(k)]
        assert points == pytest.approx(sum(lost) / len(lost))


@pytest.mark.parametrize("method", ["tent", "slomo_fast"])
def test_probing_leaves_the_adapter_bit_for_bit_as_it_was(method):
    stream = Stream(Cyclic(cycles=2), Small(), 6, held_out=0.2)
    watched, alone = (sf.adapt(network(), method, seed=1) for _ in range(2))
    probe = ForgettingProbe(stream, batch=5)
    measured = 0
    for batch in stream:
        one, other = watched(batch.images), alone(batch.images)
        assert torch.equal(one, other)
        measured += probe.observe(watched, batch.position)
        same(watched.state_dict(), alone.state_dict())
    assert measured == 6
    matrix = probe.to_dict()
    assert matrix["visits"] == [[0], [1], [2]] * 2 and matrix["cycles"] == [0, 0, 0, 1, 1, 1]
    rows = matrix["accuracy"]["output"]
    assert [sum(v is not None for v in row) for row in rows] == [1, 2, 3, 3, 3, 3]
    assert probe.seconds > 0
    if method == "slomo_fast":
        assert len(matrix["accuracy"]) > 2


def same(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other[key]), key
        elif isinstance(value, dict):
            same(value, other[key])
        else:
            assert value == other[key], key


class Fixed:
    """Knows the answer with a given probability; two members."""

    def __init__(self, stream):
        self.stream = stream

    def predict(self, images):
        return torch.eye(4)[torch.zeros(len(images)).long()]

    def members_predict(self, images):
        return {"zero": self.predict(images), "one": torch.eye(4)[torch.ones(len(images)).long()]}


def test_accuracy_is_counted_on_the_held_out_sample():
    stream = Stream("continual", Small(), 7, held_out=0.25)
    labels = stream.held_out("fog")[1]
    row = ForgettingProbe(stream, batch=4).measure(Fixed(stream), [0])
    assert row["output"] == row["zero"] == [pytest.approx(100 * float((labels == 0).float().mean())), None, None]
    assert row["one"][0] == pytest.approx(100 * float((labels == 1).float().mean()))


def test_visits_end_where_the_stream_says():
    setting = Then(Gradual((1, 5)), Mixed())
    stream = Stream(setting, Small(), 16, held_out=0.2)
    probe = ForgettingProbe(stream)
    ends = [k for k in range(stream.total) if probe.observe(Fixed(stream), k)]
    assert ends == [3, 7, 11, stream.total - 1]
    assert probe.to_dict()["visits"] == [[0], [1], [2], [0, 1, 2]]
    assert not probe.observe(Fixed(stream), 3)  # a visit is measured once


def test_a_probe_can_be_continued():
    stream = Stream("continual", Small(), 32, held_out=0.2)
    whole, first, second = (ForgettingProbe(stream) for _ in range(3))
    for k in range(3):
        whole.observe(Fixed(stream), k)
    first.observe(Fixed(stream), 0)
    second.load_dict(json.loads(json.dumps(first.to_dict())))
    for k in range(3):
        second.observe(Fixed(stream), k)
    one, other = whole.to_dict(), second.to_dict()
    assert one.pop("seconds") > 0 and other.pop("seconds") > 0
    assert one == other


def test_forgetting_needs_held_out_images():
    with pytest.raises(ValueError, match="held_out"):
        ForgettingProbe(Stream("continual", Small(), 8))
