"""`slomofast run` where something is amiss: damaged records, missing figures, folders with odd names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slomofast.bench.store import Store, encode
from slomofast.cli.__main__ import app
from slomofast.cli.run import _figures

TINY = (
    *("--model", "wrn_10_1", "--batch-size", "10", "--images-per-domain", "20", "--device", "cpu"),
    *("--data-set", "size=60", "--domains", "fog,snow"),
)


def call(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def record_in(folder: Path) -> Path:
    (path,) = folder.glob("*.json")
    return path


def spoil(path: Path) -> None:
    """Change a record so that neither its size nor its time tells."""
    stat = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"skipped_steps": 0', b'"skipped_steps": 7'))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_a_damaged_record_is_set_aside_and_made_again(tmp_path: Path) -> None:
    words = ["run", "bn", "--out", tmp_path, *TINY]
    call(*words)
    path = record_in(tmp_path)
    spoil(path)
    text = call(*words)
    assert f"set aside as {path}.damaged-1" in text and "already in" not in text
    assert Path(f"{path}.damaged-1").exists()
    again = call(*words)
    assert "already in" in again and "set aside" not in again


@pytest.mark.parametrize("name", ["runs [old]", "a[/b]", "x:fire:"])
def test_folders_are_shown_as_they_are_called(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["run", "bn", "--out", name, *TINY]
    text = call(*words)
    assert f"record: {record_in(Path(name))}" in text
    assert f"already in {name}: showing" in call(*words)


def test_warnings_are_shown_as_they_are(tmp_path: Path) -> None:
    words = ["run", "bn", "--out", tmp_path, *TINY]
    call(*words)
    path = record_in(tmp_path)
    record = Store(tmp_path).get(path.stem)
    path.write_bytes(encode(record | {"warnings": ["layer [/b] of [bold]x[/bold]"]}))
    assert "note: layer [/b] of [bold]x[/bold]" in call(*words)


def test_a_diverged_run_is_shown(tmp_path: Path) -> None:
    words = ["slomo_fast_star", "--images-per-domain", "40", "--batch-size", "20", "--domains", "fog,snow"]
    text = call("run", *words, "--set", "lr=1e30", "--device", "cpu", "--out", tmp_path)
    assert "NLL –" in text and "steps were not finite" in text


def test_figures_that_do_not_exist_are_dashes() -> None:
    names: dict[str, tuple[str, ...]] = {
        "calibration": ("ece", "nll"),
        "forgetting": ("final", "mean"),
        "recovery": ("mean",),
        "adaptation": ("rate",),
        "cost": ("milliseconds_median", "forward_multiple", "images_per_second", "trainable_percent"),
    }
    nothing: dict[str, Any] = {family: dict.fromkeys(figures) for family, figures in names.items()}
    assert _figures({"metrics": nothing}) == []
    for family, figures in names.items():
        for known in figures:
            (line,) = _figures({"metrics": nothing | {family: nothing[family] | {known: 1.0}}})
            assert line.startswith(family) and line.count("–") == len(figures) - 1
            assert "1" in line and "None" not in line
