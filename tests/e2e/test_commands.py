"""The command line, from the outside."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from slomofast.bench import Store, comparable
from slomofast.cli.__main__ import app
from slomofast.core.errors import SlomofastError
from slomofast.data import write_pack

TINY = [
    "--data-set", "size=60", "--data-set", "domains=gaussian_noise,fog", "--model", "wrn_10_1",
    "--batch-size", "10", "--images-per-domain", "20", "--device", "cpu", "--threads", "1",
]  # fmt: skip
SWEEP = """
title = "tiny"
[defaults]
model = "wrn_10_1"
batch_size = 10
images_per_domain = 20
data = "small"
[data.small]
spec = "glyphs"
data_options = { size = 60, domains = "gaussian_noise,fog" }
[[grid]]
methods = ["source", "bn"]
"""


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def call(*words: object, code: int = 0) -> str:
    """The output of a command, whose exit code must be as expected."""
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    if isinstance(result.exception, SlomofastError):
        assert code == 2
        return str(result.exception)
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize("command", ["run", "sweep", "demo", "doctor", "methods"])
def test_help_explains_every_option(command: str) -> None:
    text = call(command, "--help")
    assert "Usage" in text and "--help" in text
    assert len(text.split()) > 20


def test_run_shows_errors_and_keeps_a_record(tmp_path: Path) -> None:
    words = ["run", "tent", "--setting", "cyclic", "--set", "lr=0.01", "--out", tmp_path, *TINY]
    text = call(*words)
    (path,) = tmp_path.glob("*.json")
    record = Store(tmp_path).get(path.stem)
    assert record["job"]["options"]["lr"] == 0.01
    assert re.search(r"domain\s+cycle 1\s+cycle 2\s+all", text)
    for domain, error in record["metrics"]["error"]["by_domain"].items():
        assert re.search(rf"{domain}\s+.*{error:.1f}", text)
    assert f"{record['metrics']['error']['mean']:.2f}" in text
    assert str(path) in text.replace("\n", "")
    again = call(*words)
    assert "already in" in again and f"{record['metrics']['error']['mean']:.2f}" in again
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_run_passes_setting_options_on(tmp_path: Path) -> None:
    call("run", "bn", "--setting", "cyclic", "--setting-set", "cycles=3", "--out", tmp_path, *TINY)
    (record,) = Store(tmp_path)
    assert record["job"]["setting"]["cycles"] == 3 and len(record["segments"]) == 6


def test_run_with_every_metric(tmp_path: Path) -> None:
    text = call("run", "bn", "--setting", "cyclic", "--metrics", "all", "--out", tmp_path, *TINY)
    for word in ("calibration", "forgetting", "recovery", "adaptation", "cost"):
        assert re.search(rf"^{word}", text, re.MULTILINE), word


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "slomofast"], "did you mean 'slomo_fast'"),
        (["run", "tent", "--setting", "ciclic"], "did you mean 'cyclic'"),
        (["run", "tent", "--data", "glyhps", "--model", "glyphs"], "did you mean 'glyphs'"),
        (["run", "tent", "--set", "lrr=1"], "did you mean 'lr'"),
        (["run", "tent", "--set", "lr"], "write name=value"),
        (["run", "tent", "--set", "lr=fast"], "lr must be a number"),
        (["run", "tent", "--metrics", "forgeting"], "did you mean 'forgetting'"),
        (["run", "tent", "--precision", "bf32"], "unknown precision 'bf32'"),
        (["run", "tent", "--data", "cifar10_c:/nowhere"], "give --model"),
        (["run", "tent", "--weights", "/nowhere.safetensors"], "no weight file /nowhere.safetensors"),
        (["sweep"], "either a sweep file or --preset"),
        (["sweep", "--preset", "quik"], "did you mean 'quick'"),
        (["run", "tent", "--domains", ","], "--domains ',' names nothing; write names separated by commas"),
        (["sweep", "--preset", "quick", "--for", "soon"], "--for 'soon' is no time; write for example --for 90s"),
        (["sweep", "--preset", "quick", "--for", "0m"], "--for '0m' is no time"),
        (["sweep", "missing.toml"], "no sweep file missing.toml"),
        (["methods", "tnet"], "did you mean 'tent'"),
    ],
)
def test_mistakes_are_answered_with_the_remedy(words: list[str], message: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in call(*words, code=2)
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize(("side", "batch"), [(32, 200), (40, 64)])
def test_the_usual_batch_goes_with_the_size_of_images(tmp_path: Path, side: int, batch: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, side, side, 3), np.uint8)
    pack = write_pack(tmp_path / "few.npz", images, np.arange(12) % 10, [str(k) for k in range(10)])
    words = ["--data", f"pack:{pack}", "--model", "wrn_10_1", "--domains", "fog", "--device", "cpu"]
    call("run", "source", *words, "--out", tmp_path / "runs")
    (record,) = Store(tmp_path / "runs")
    assert record["job"]["batch_size"] == batch
    call("run", "source", *words, "--out", tmp_path / "own", "--batch-size", 7)
    assert next(iter(Store(tmp_path / "own")))["job"]["batch_size"] == 7


def test_methods_lists_and_explains() -> None:
    text = call("methods")
    for name in ("source", "tent", "slomo_fast", "slomo_fast_star"):
        assert re.search(rf"^{name}\s", text, re.MULTILINE)
    details = call("methods", "slomo_fast")
    assert "queue_size" in details and "features kept per class" in details and "norm layers" in details


def test_sweep_runs_skips_and_plans(tmp_path: Path) -> None:
    file, out = tmp_path / "my.toml", tmp_path / "runs"
    file.write_text(SWEEP)
    plan = call("sweep", file, "--out", out, "--dry-run", "--device", "cpu")
    assert "2 jobs to run" in plan and "source" in plan
    assert not list(out.glob("*.json"))
    assert "2 run, 0 there already, 0 failed" in call("sweep", file, "--out", out, "--device", "cpu")
    assert "0 run, 2 there already, 0 failed" in call("sweep", file, "--out", out, "--device", "cpu")
    file.write_text(SWEEP.replace('"bn"]', '"bn"]\nseeds = [0, 1]'))
    assert "2 run, 2 there already" in call("sweep", file, "--out", out, "--device", "cpu")


def test_files_with_nothing_or_anything_in_them_are_named(tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty.npz", tmp_path / "binary.toml"
    empty.write_bytes(b"")
    binary.write_bytes(bytes(range(128, 256)))
    message = call("run", "source", "--data", f"pack:{empty}", "--model", "wrn_10_1", code=2)
    assert "empty.npz is not a readable .npz file" in message
    assert "binary.toml is not text in UTF-8" in call("sweep", binary, code=2)
    rows = tmp_path / "rows.csv"
    rows.write_text("")
    words = ["--out", rows, "--plot", tmp_path / "x.png"]
    assert "nothing to draw" in call("bench", "growth", "--draw-only", *words, code=2)


def test_a_sweep_stops_when_its_time_is_up(tmp_path: Path) -> None:
    file, out = tmp_path / "my.toml", tmp_path / "runs"
    file.write_text(SWEEP)
    text = call("sweep", file, "--out", out, "--device", "cpu", "--for", "0.001s", code=75)
    assert "0 run, 0 there already, 0 failed" in text
    assert "the time is up: 2 jobs are left; the same command continues" in text
    assert "2 run, 0 there already, 0 failed" in call("sweep", file, "--out", out, "--device", "cpu", "--for", "1h")


def test_sweep_with_failures_says_so_and_exits_with_one(tmp_path: Path) -> None:
    file, out = tmp_path / "my.toml", tmp_path / "runs"
    file.write_text(SWEEP + '\n[[grid]]\nmethods = ["source"]\nimages_per_domain = 9999\n')
    text = call("sweep", file, "--out", out, "--device", "cpu", code=1)
    assert "2 run, 0 there already, 1 failed" in text and "9999" in text
    assert "--retry-failed" in call("sweep", file, "--out", out, "--device", "cpu", code=1)


def test_sweep_replaces_a_damaged_record(tmp_path: Path) -> None:
    file, out = tmp_path / "my.toml", tmp_path / "runs"
    file.write_text(SWEEP)
    call("sweep", file, "--out", out, "--device", "cpu")
    before = {record["id"]: comparable(record) for record in Store(out)}
    victim = next(iter(out.glob("*.json")))
    victim.write_text(victim.read_text()[:200])
    text = call("sweep", file, "--out", out, "--device", "cpu")
    assert "damaged record set aside" in text and "1 run, 1 there already" in text
    assert {record["id"]: comparable(record) for record in Store(out)} == before


def test_a_preset_can_be_printed_and_copied(tmp_path: Path) -> None:
    copy = tmp_path / "copy.toml"
    copy.write_text(call("sweep", "--preset", "quick", "--show"))
    from slomofast.bench import load_preset, load_sweep

    assert load_sweep(copy).jobs == load_preset("quick").jobs


def test_doctor_says_what_is_wrong() -> None:
    text = call("doctor", "--model", "wrn_10_1", "--data-set", "size=60", code=1)
    assert "close to guessing" in text and re.search(r"tent\s+fits", text)
    assert "head found: 'fc'" in text


def test_doctor_is_content_with_the_shipped_network() -> None:
    text = call("doctor", "--data-set", "size=200")
    assert "the normalisation fits" in text and "problem" not in text


def test_demo_in_short(tmp_path: Path) -> None:
    text = call("demo", "--quick", "--out", tmp_path / "demo", "--device", "cpu")
    for method in ("source", "bn", "tent", "slomo_fast", "slomo_fast_star"):
        assert re.search(rf"^{method}\s+[\d.]+\s+[\d.]+\s+[\d.]+", text, re.MULTILINE), text
    assert "Lowest error" in text
    picture, page = tmp_path / "demo" / "error_over_time.png", tmp_path / "demo" / "report" / "index.html"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "slomo_fast_star" in page.read_text()
    assert str(picture) in text and str(page) in text
    assert len(Store(tmp_path / "demo" / "runs")) == 5


def test_a_record_is_readable_json(tmp_path: Path) -> None:
    call("run", "source", "--out", tmp_path, *TINY)
    (path,) = tmp_path.glob("*.json")
    lines = path.read_text().splitlines()
    assert lines[-1].startswith('"checksum"') and json.loads(path.read_text())["status"] == "done"
