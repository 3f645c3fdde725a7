"""`bench growth` and `bench trace` from the outside."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from slomofast.cli.__main__ import app
from slomofast.core.errors import SlomofastError

SMALL = ["--model", "wrn_10_1", "--size", "8", "--batch-size", "4"]
GROWTH = ["bench", "growth", *SMALL, "--repeats", "1", "--batches", "2,4", "--classes", "3", "--queues", "5"]


def call(*words: object, code: int = 0) -> str:
    """The output of a command, whose exit code must be as expected."""
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    if isinstance(result.exception, SlomofastError):
        assert code == 2
        return str(result.exception)
    assert result.exit_code == code, result.output
    return result.output


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("command", ["growth", "trace"])
def test_help_teaches(command: str) -> None:
    text = call("bench", command, "--help")
    assert "On a GPU:" in text and "--device" in text and len(text.split()) > 150


def test_growth_prints_keeps_and_draws(tmp_path: Path) -> None:
    out, plot = tmp_path / "rows.csv", tmp_path / "growth.png"
    text = call(*GROWTH, "--steps", "6", "--long-batch", "3", "--methods", "slomo_fast", "--out", out, "--plot", plot)
    rows = rows_of(out)
    assert [(r["axis"], r["value"], r["batch_size"]) for r in rows] == [
        ("batch", "2", "2"), ("batch", "4", "4"), ("classes", "3", "4"), ("queue", "5", "4"), ("steps", "6", "3"),
    ]  # fmt: skip
    assert all(float(r["multiple"]) > 1 and r["device"] == "cpu" and r["command"] for r in rows)
    assert "slomo_fast batch 2" in text and plot.stat().st_size > 5000
    drawn = tmp_path / "again.svg"
    call("bench", "growth", "--draw-only", "--out", out, "--plot", drawn)
    assert "<svg" in drawn.read_text()


def test_growth_keeps_what_was_measured_before_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slomofast.bench.growth import Growth

    def stopped(self: Growth, method: str, counts: object):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(Growth, "classes", stopped)
    out = tmp_path / "rows.csv"
    result = CliRunner().invoke(app, [*GROWTH, "--methods", "tent", "--out", str(out)])
    assert result.exit_code != 0
    assert [row["value"] for row in rows_of(out)] == ["2", "4"]


def test_growth_says_what_a_method_has_not(tmp_path: Path) -> None:
    text = call(*GROWTH, "--methods", "tent", "--axes", "queue,batch")
    assert "tent has no option queue_size" in text and "tent batch 4" in text


def test_a_long_run_goes_through_a_stream_as_far_as_it_lasts(tmp_path: Path) -> None:
    words = ["--axes", "steps", "--methods", "tent", "--batch-size", "10", "--window", "4", "--steps", "1000"]
    stream = ["--data", "glyphs", "--setting", "continual", "--images-per-domain", "20"]
    text = call("bench", "growth", *words, *stream, "--out", tmp_path / "rows.csv")
    rows = rows_of(tmp_path / "rows.csv")
    assert [int(row["value"]) for row in rows] == [4, 8, 12, 16, 20, 24, 28, 30]  # two batches of each corruption
    assert all(0 < float(row["error"]) < 60 for row in rows) and "tent over 30 steps" in text
    assert "did you mean 'lifelong'" in call("bench", "growth", *words, *stream[:2], "--setting", "lifelon", code=2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["growth", "--methods", "slomo_fst"], "did you mean 'slomo_fast'"),
        (["growth", "--methods", ","], "no method was named"),
        (["growth", "--axes", "bach"], "did you mean 'batch'"),
        (["growth", "--batches", "many"], "whole numbers"),
        (["growth", "--precision", "fp8", "--axes", "batch", *SMALL], "precision"),
        (["growth", "--draw-only"], "--out"),
        (["trace", "--method", "slomo_fast_sta"], "did you mean 'slomo_fast_star'"),
        (["trace", "--device", "nowhere"], "no device"),
    ],
)
def test_wrong_words_are_named(words: list[str], message: str) -> None:
    assert message in call("bench", *words, code=2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("command", ["growth", "trace"])
def test_a_missing_gpu_is_named(command: str) -> None:
    assert "no GPU" in call("bench", command, "--device", "cuda", code=2)


def test_trace_prints_keeps_and_draws(tmp_path: Path) -> None:
    files = {"plot": tmp_path / "trace.png", "out": tmp_path / "shares.csv", "json": tmp_path / "trace.json"}
    options = [word for name, path in files.items() for word in (f"--{name}", path)]
    text = call("bench", "trace", *SMALL, "--steps", "2", "--warm-up", "1", *options)
    assert "convolution backward" in text and "aten::item" in text and "no device to wait for" in text
    assert files["plot"].stat().st_size > 5000
    rows = rows_of(files["out"])
    assert sum(float(row["percent"]) for row in rows) == pytest.approx(100, abs=0.1)
    assert rows[0]["method"] == "slomo_fast_star" and rows[0]["waits"] == ""
    assert json.loads(files["json"].read_text())["traceEvents"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_trace_on_cuda_says_that_nothing_was_refused(tmp_path: Path) -> None:
    plot = tmp_path / "trace.svg"
    text = call("bench", "trace", "--model", "wrn_16_4", "--batch-size", "50", "--device", "cuda", "--plot", plot)
    assert "nothing refused" in text and "0 waits in 4 steps" in text
    assert "device" in plot.read_text()
