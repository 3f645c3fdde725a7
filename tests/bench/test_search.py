"""Hyper-parameter search on the extra corruptions, and the cost of a step."""

import csv
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from slomofast.bench.search import Candidate, check_table, combinations, search, write_table
from slomofast.bench.steps import step_cost, write_costs
from slomofast.cli.__main__ import app
from slomofast.core.errors import ConfigError, DataError
from slomofast.corruptions import EXTRA
from slomofast.data import open_data
from slomofast.models import load_source
from slomofast.testing import tiny_net


def test_every_combination_once() -> None:
    found = combinations({"lr": [0.1, 0.2], "steps": [1, 2, 3]})
    assert len(found) == 6 and {"lr": 0.2, "steps": 3} in found
    assert combinations({}) == [{}]


def test_test_corruptions_are_refused() -> None:
    data = open_data("glyphs", size=20, domains=["fog", *EXTRA])
    with pytest.raises(ConfigError, match="must not see test corruptions"):
        search("bn", [{}], load_source("wrn_10_1", classes=10), data)


def test_candidates_are_scored_and_sorted_with_all_members() -> None:
    data = open_data("glyphs", size=40, domains=list(EXTRA))
    heard: list[Candidate] = []
    found = search(
        "slomo_fast",
        [{"lr": 1e-3}, {"lr": 0.5}],
        load_source("glyphs"),
        data,
        severities=(5.0,),
        images_per_domain=20,
        batch_size=20,
        done=heard.append,
    )
    assert [c.options["lr"] for c in heard] == [1e-3, 0.5]
    assert found[0].mean <= found[1].mean and found[0].mean == min(c.mean for c in heard)
    assert set(found[0].errors) == {(5.0, 0), (5.0, 1)}
    names = {"student", "fast", "slow", "student+fast", "student+slow", "fast+slow", "student+fast+slow"}
    assert set(found[0].members) == names
    best = min(found[0].members.values())
    assert found[0].best_members.endswith(f"{best:.2f}")


def test_other_settings_may_be_searched() -> None:
    data = open_data("glyphs", size=40, domains=list(EXTRA))
    small = {"severities": (5.0,), "images_per_domain": 40, "batch_size": 20}
    net = load_source("glyphs")
    found = {
        name: search("tent", [{"lr": 1.0}], net, data, setting=name, **small)[0] for name in ("continual", "mixed")
    }
    assert all(set(one.errors) == {(5.0, 0)} for one in found.values())
    assert found["continual"].mean != found["mixed"].mean
    # a source network that is told to learn too fast breaks, unless it may begin again at every domain
    assert search("tent", [{"lr": 1.0}], net, data, setting="episodic", **small)[0].mean < found["continual"].mean


def test_severities_may_follow_one_another() -> None:
    data = open_data("glyphs", size=40, domains=list(EXTRA))
    small = {"severities": (5.0, 1.0), "images_per_domain": 40, "batch_size": 20, "setting": "continual"}
    net = load_source("glyphs")
    apart, joined = (search("tent", [{"lr": 1.0}], net, data, in_turn=value, **small)[0] for value in (False, True))
    assert apart.errors[5.0, 0] == joined.errors[5.0, 0]  # the same beginning
    assert joined.errors[1.0, 0] > apart.errors[1.0, 0] + 10  # what learnt too fast is broken when the mild ones come


def test_a_severity_that_comes_again_counts_again(tmp_path: Path) -> None:
    data = open_data("glyphs", size=40, domains=list(EXTRA))
    small = {"images_per_domain": 40, "batch_size": 20, "cycles": 1, "in_turn": True}
    net = load_source("glyphs")
    (there,) = search("tent", [{"lr": 1.0}], net, data, severities=(1.0, 5.0), **small)
    (back,) = search("tent", [{"lr": 1.0}], net, data, severities=(1.0, 5.0, 1.0), **small)
    assert list(back.errors) == [(1.0, 0), (5.0, 0), (1.0, 1)]
    assert [back.errors[key] for key in there.errors] == list(there.errors.values())
    assert back.mean == pytest.approx((2 * there.mean + back.errors[1.0, 1]) / 3)
    write_table(tmp_path / "t.csv", "tent", [back], {})
    assert [word.split("=")[0] for word in read(tmp_path / "t.csv")[0]["by_severity_and_cycle"].split()] == [
        "s1c1", "s5c1", "s1c2",
    ]  # fmt: skip


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_order_of_corruptions_is_free_and_checked() -> None:
    line = ["search", "tent", "--grid", "lr=1.0", "--images-per-domain", "40", "--batch-size", "20", "--cycles", "1"]
    found = [CliRunner().invoke(app, [*line, "--order", order]) for order in ("saturate,spatter", "spatter,saturate")]
    assert all(one.exit_code == 0 for one in found), found
    assert found[0].output != found[1].output
    joined = CliRunner().invoke(app, [*line, "--order", "saturate,spatter", "--in-turn"])
    assert joined.exit_code == 0 and joined.output != found[0].output  # the second severity meets what the first left
    wrong = CliRunner().invoke(app, [*line, "--order", "saturate,splatter"])
    assert isinstance(wrong.exception, ConfigError)
    assert "unknown validation corruption 'splatter'; did you mean 'spatter'?" in str(wrong.exception)


def test_methods_that_need_source_images_ask_for_them() -> None:
    data = open_data("glyphs", size=40, domains=list(EXTRA))
    small = {"severities": (5.0,), "images_per_domain": 20, "batch_size": 20, "cycles": 1}
    with pytest.raises(ConfigError, match="rmt learns from training images first: name them with --source"):
        search("rmt", [{}], load_source("glyphs"), data, **small)
    found = search("rmt", [{}], load_source("glyphs"), data, source=open_data("glyphs", size=40), **small)
    assert 0 <= found[0].mean < 90


def test_rows_are_appended_under_one_header(tmp_path: Path) -> None:
    candidate = Candidate({"members": ("fast", "slow")}, {(5.0, 0): 10.0, (5.0, 1): 8.0})
    for _ in range(2):
        write_table(tmp_path / "a" / "t.csv", "slomo_fast", [candidate], {"commit": "abc"})
    rows = list(csv.DictReader((tmp_path / "a" / "t.csv").open()))
    assert len(rows) == 2 and rows[0]["options"] == "members=fast+slow" and rows[0]["error"] == "9.000"
    assert rows[1]["commit"] == "abc" and rows[1]["by_severity_and_cycle"] == "s5c1=10.00 s5c2=8.00"


def test_rows_are_not_added_to_another_table(tmp_path: Path) -> None:
    candidate = Candidate({}, {(5.0, 0): 10.0})
    empty, other, less = (tmp_path / f"{name}.csv" for name in ("empty", "other", "less"))
    empty.touch()
    assert not check_table(empty)
    write_table(empty, "tent", [candidate], {"commit": "abc"})
    assert read(empty)[0]["error"] == "10.000"
    assert not check_table(empty)
    other.write_text("method,precision\n")
    with pytest.raises(DataError, match=r"holds other columns \(method, precision"):
        check_table(other)
    write_table(less, "tent", [candidate], {})
    for table in (other, less):
        before = table.read_text()
        with pytest.raises(DataError, match="holds other columns"):
            write_table(table, "tent", [candidate], {"commit": "abc"})
        assert table.read_text() == before


def test_search_command(tmp_path: Path) -> None:
    words = ["search", "tent", "--grid", "lr=1e-3,1e-2", "--also", "lr=5e-3 steps=2", "--images-per-domain", "10"]
    answer = CliRunner().invoke(app, [*words, "--batch-size", "10", "--cycles", "1", "--out", str(tmp_path / "s.csv")])
    assert answer.exit_code == 0, answer.output
    options = [row["options"] for row in csv.DictReader((tmp_path / "s.csv").open())]
    assert options == ["lr=0.001", "lr=0.01", "lr=0.005 steps=2"]
    wrong = CliRunner().invoke(app, ["search", "tent", "--grid", "lrr=1"])
    assert "did you mean 'lr'" in str(wrong.exception)


def test_a_step_costs_more_than_a_forward_pass(tmp_path: Path) -> None:
    net, images = tiny_net(), torch.rand(32, 3, 12, 12)
    plain, learning = (step_cost(net, images, name, steps=5, warm_up=1) for name in ("source", "slomo_fast_star"))
    assert learning.multiple > 2 * plain.multiple > 0
    assert learning.milliseconds <= learning.p95 and learning.first_call_seconds > 0
    write_costs(tmp_path / "c.csv", [plain], {"commit": "abc"})
    write_costs(tmp_path / "c.csv", [learning], {"commit": "abc"})
    rows = list(csv.DictReader((tmp_path / "c.csv").open()))
    assert [row["method"] for row in rows] == ["source", "slomo_fast_star"]
    assert float(rows[1]["milliseconds"]) == pytest.approx(learning.milliseconds, abs=1e-3)


def test_the_slowest_step_is_not_the_95th_percentile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slomofast.bench.steps.timed_steps", lambda *_: [0.9, *[0.1] * 19])
    cost = step_cost(tiny_net(), torch.rand(8, 3, 12, 12), "source", warm_up=0)
    assert cost.p95 == pytest.approx(140) and cost.milliseconds == pytest.approx(100)


def test_steps_command(tmp_path: Path) -> None:
    words = [
        "bench",
        "steps",
        "--methods",
        "bn,santa",
        "--batch-size",
        "8",
        "--repeats",
        "1",
        "--precision",
        "fp32,bf16",
    ]
    answer = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "s.csv")])
    assert answer.exit_code == 0, answer.output
    rows = [(row["method"], row["precision"]) for row in csv.DictReader((tmp_path / "s.csv").open())]
    assert rows == [("bn", "fp32"), ("santa", "fp32"), ("bn", "bf16"), ("santa", "bf16")]
