"""Square brackets in what users and files say come out as they are."""

from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from slomofast.cli import __main__ as command
from slomofast.cli import _shared
from slomofast.cli.__main__ import app
from slomofast.cli._options import error_table
from slomofast.core.errors import ConfigError

MESSAGES = ("pip install 'slomofast[imagenet]'", "no file w[/b].pt", "no file [bold]w", "no file a:cat:b", "ends in \\")
SWEEP = """
title = "Brackets [bold] and [/b]"

[[grid]]
methods = ["source"]
settings = ["continual"]
data = "folder:no[/b]where"
model = "glyphs"
seeds = [0]
"""


@pytest.mark.parametrize("message", MESSAGES)
def test_errors_keep_their_brackets(
    message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> None:
        raise ConfigError(message)

    monkeypatch.setattr(command, "app", refuse)
    with pytest.raises(SystemExit) as left:
        command.main()
    assert left.value.code == 2
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize("message", MESSAGES)
def test_failing_keeps_brackets_too(message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        _shared.fail(message)
    assert capsys.readouterr().err == f"error: {message}\n"


def test_a_file_with_brackets_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = "run tent --weights w[/i].pt --images-per-domain 10"
    monkeypatch.setattr("sys.argv", ["slomofast", *words.split()])
    with pytest.raises(SystemExit) as left:
        command.main()
    assert left.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ") and "w[/i].pt" in shown and shown.count("\n") == 1


def test_a_sweep_shows_its_title_and_reasons(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(SWEEP)
    folder = tmp_path / "runs[/b]"
    planned = CliRunner().invoke(app, ["sweep", str(file), "--out", str(folder), "--dry-run"])
    assert planned.exit_code == 0, planned.output
    assert "Brackets [bold] and [/b]" in planned.output
    assert "cannot start" in planned.output and "no[/b]where" in planned.output
    tried = CliRunner().invoke(app, ["sweep", str(file), "--out", str(folder)])
    assert tried.exit_code == 1, tried.output
    assert f"records in {folder}" in tried.output and "no[/b]where" in tried.output


def test_made_data_names_its_folder(tmp_path: Path) -> None:
    out = tmp_path / "made[/b]"
    made = CliRunner().invoke(app, ["data", "make", "glyphs", str(out), "--size", "4", "--domains", "fog"])
    assert made.exit_code == 0, made.output
    assert "made[/b]" in "".join(made.output.split())


def test_written_files_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "made[/b]"
    drawn = CliRunner().invoke(app, ["corruptions", "show", "glyphs", "--out", str(folder / "s.png")])
    words = [
        "train",
        "glyphs",
        "--size",
        "20",
        "--batch-size",
        "20",
        "--epochs",
        "1",
        "--out",
        str(folder / "w.safetensors"),
    ]
    trained = CliRunner().invoke(app, words)
    for answer, name in ((drawn, "s.png"), (trained, "w.safetensors")):
        assert answer.exit_code == 0, (answer.output, answer.exception)
        assert f"made[/b]/{name}" in "".join(answer.output.split())


def test_domains_keep_their_brackets() -> None:
    curve = {"domain": [0], "cycle": [0], "count": [10], "wrong": [3], "by_domain": [None], "domains": ["fog [/b]"]}
    record = {"curve": curve, "metrics": {"error": {"mean": 30.0, "by_domain": {"fog [/b]": 30.0}}}}
    console = Console(width=60)
    with console.capture() as shown:
        console.print(error_table(record))
    assert "fog [/b]" in shown.get()
