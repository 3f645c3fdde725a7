"""How cost grows: points on each axis, a long run in windows, rows that outlive the process."""

from __future__ import annotations

import csv
import dataclasses
import math
from pathlib import Path

import pytest
import torch
from torch import nn

import slomofast as sf
from slomofast.bench.growth import (
    Drift,
    Growth,
    GrowthRow,
    checked_axes,
    drift,
    has_queue,
    read_growth,
    whole_numbers,
    with_classes,
)
from slomofast.bench.steps import write_costs
from slomofast.core.errors import ConfigError, DataError, ModelError
from slomofast.models import load_source
from slomofast.streams import Stream

FACTS = {"model": "wrn_10_1", "command": "slomofast bench growth", "commit": "", "device": "cpu"}


@pytest.fixture
def plan() -> Growth:
    """A small network on images of eight pixels."""
    return Growth(load_source("wrn_10_1"), size=8, batch_size=4, repeats=2)


def window(value: int, milliseconds: float = 10.0, mib: float = 50.0) -> GrowthRow:
    return GrowthRow("steps", value, "tent", "fp32", False, False, 4, 8, 10, milliseconds, 5.0, 2.0, mib, mib, 100.0)


def test_each_axis_changes_what_it_names(plan: Growth) -> None:
    assert [row.batch_size for row in plan.batch("tent", [2, 5])] == [2, 5]
    assert [row.classes for row in plan.classes("tent", [3, 30])] == [3, 30]
    rows = list(plan.queue("slomo_fast", [2, 20]))
    assert [(row.value, row.batch_size, row.classes) for row in rows] == [(2, 4, 10), (20, 4, 10)]
    assert all(row.milliseconds > 0 and row.multiple > 1 for row in rows)


def test_the_queue_really_has_the_size(plan: Growth, monkeypatch: pytest.MonkeyPatch) -> None:
    from slomofast.bench import growth

    seen = []
    real = growth.step_cost
    monkeypatch.setattr(growth, "step_cost", lambda *a, **k: (seen.append(k["options"]), real(*a, **k))[1])
    list(plan.queue("slomo_fast_star", [7]))
    assert seen == [{"queue_size": 7}]


def test_a_method_without_a_queue_has_no_such_axis(plan: Growth) -> None:
    assert has_queue("slomo_fast_star") and not has_queue("tent")
    assert list(plan.queue("tent", [10])) == []


def test_methods_that_need_source_data_get_some(plan: Growth) -> None:
    (row,) = plan.classes("rmt", [12])
    assert row.classes == 12


def test_a_long_run_gives_a_row_a_window(plan: Growth) -> None:
    rows = list(plan.steps("tent", 8, window=3))
    assert [row.value for row in rows] == [3, 6, 8]
    assert all(row.milliseconds > 0 and row.axis == "steps" and math.isnan(row.error) for row in rows)


def test_a_long_run_sees_different_batches_in_turn(plan: Growth, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def watched(adapter: object, images: torch.Tensor) -> tuple[torch.Tensor, float]:
        seen.append(float(images.sum()))
        return torch.zeros(len(images), 10), 0.01

    monkeypatch.setattr("slomofast.bench.growth.timed_call", watched)
    list(plan.steps("tent", 6, batches=4, window=3))
    assert len(set(seen)) == 4 and seen[4:] == seen[:2]


def test_a_long_run_over_a_stream_has_its_errors() -> None:
    """The same errors as a run of its own, window by window; the warm-up leaves nothing behind; the stream may end."""
    network, data = load_source("glyphs"), sf.open_data("glyphs", domains=["fog", "contrast"])
    stream = Stream("continual", data, batch_size=20, images_per_domain=60)
    rows = list(Growth(network, batch_size=20).steps("slomo_fast_star", 100, window=3, stream=stream))
    adapter = sf.adapt(network, "slomo_fast_star")
    wrong = [(adapter(batch.images).argmax(1) != batch.target).float().mean().item() for batch in stream]
    assert [row.value for row in rows] == [3, 6]
    assert [row.error for row in rows] == pytest.approx([100 * sum(part) / 3 for part in (wrong[:3], wrong[3:])])


def test_the_body_stays_and_the_head_is_new() -> None:
    network = load_source("wrn_10_1")
    images = torch.rand(2, 3, 8, 8)
    wide, again = (with_classes(network, images, 50) for _ in range(2))
    assert wide(images).shape == (2, 50) and torch.equal(wide(images), again(images))
    assert wide.body.conv1.weight.data_ptr() == network.conv1.weight.data_ptr()  # one body in memory
    with pytest.raises(ConfigError, match="at least 2"):
        with_classes(network, images, 1)


def test_a_network_without_a_linear_head_is_refused_in_words() -> None:
    network = nn.Sequential(nn.Conv2d(3, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(ModelError, match="no linear layer"):
        with_classes(network, torch.rand(2, 3, 8, 8), 7)


def test_drift_compares_the_ends_and_forgives_the_first_window() -> None:
    rows = [window(100, 99.0), *(window(100 * k, 10.0) for k in range(2, 22))]
    assert drift(rows) == Drift(0.0, 0.0, 0.0) and drift(rows).flat
    assert drift(rows[:2]) is None
    slower = [window(100 * k, 10.0 + k) for k in range(1, 30)]
    assert drift(slower).percent > 100 and not drift(slower).flat
    leaking = [window(100 * k, 10.0, 50.0 + k) for k in range(1, 30)]
    assert not drift(leaking).flat
    on_cpu = [window(100 * k, 10.0, math.nan) for k in range(1, 5)]
    assert drift(on_cpu).flat


def test_rows_are_appended_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.csv"
    for value in (100, 200):
        write_costs(path, [window(value)], FACTS)
    with path.open() as file:
        assert [row["value"] for row in csv.DictReader(file)] == ["100", "200"]
    rows = read_growth(path)
    assert rows[1]["value"] == 200 and rows[1]["method"] == "tent" and rows[0]["peak_mib"] == 50.0


def test_a_table_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("method,error\ntent,12\n")
    with pytest.raises(DataError, match="other columns"):
        write_costs(path, [window(100)], FACTS)
    assert path.read_text().count("\n") == 2
    with pytest.raises(DataError, match="bench growth"):
        read_growth(path)
    with pytest.raises(DataError, match="no file"):
        read_growth(tmp_path / "absent.csv")


def test_words_for_wrong_values() -> None:
    assert checked_axes(["steps", "batch"]) == ("batch", "steps")
    with pytest.raises(ConfigError, match="did you mean 'classes'"):
        checked_axes(["clases"])
    for text in ("", "10,x", "0,5"):
        with pytest.raises(ConfigError, match="--batches"):
            whole_numbers(text, "--batches")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_rows_have_memory_and_a_long_run_is_flat() -> None:
    plan = Growth(load_source("wrn_10_1").cuda(), size=16, batch_size=20, precision="bf16", repeats=3)
    small, large = plan.batch("slomo_fast_star", [10, 400])
    assert 0 < small.peak_mib < large.peak_mib
    rows = list(dataclasses.replace(plan, batch_size=10).steps("slomo_fast_star", 500))
    assert len(rows) == 5 and abs(drift(rows).device_mib) < 1
