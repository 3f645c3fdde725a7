"""Values that make no sense end in one line and exit code 2, whichever command they are given to."""

import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer
from typer.models import OptionInfo
from typer.testing import CliRunner

from slomofast.cli.__main__ import app, main
from slomofast.cli._options import known_device, known_precisions, picture_file, writable_file
from slomofast.core.errors import ConfigError, SlomofastError

ANY_NUMBER = {"seed"}
ELSEWHERE = {"sweep"}  # its device is that of workers, which may be on another machine


def commands(group: typer.Typer, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Callable[..., Any]]]:
    for command in group.registered_commands:
        assert command.callback is not None
        yield " ".join((*path, command.name or command.callback.__name__)), command.callback
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from commands(inner.typer_instance, (*path, str(inner.name)))


def options() -> Iterator[tuple[str, str, Any, OptionInfo]]:
    for command, function in commands(app):
        for name, hint in typing.get_type_hints(function, include_extras=True).items():
            for extra in getattr(hint, "__metadata__", ()):
                if isinstance(extra, OptionInfo):
                    yield command, name, hint.__origin__, extra


def numeric(kind: Any) -> bool:
    return bool({int, float} & {kind, *typing.get_args(kind)})


def test_there_is_something_to_check() -> None:
    assert sum(numeric(kind) for _, _, kind, _ in options()) > 40
    assert len({command for command, *_ in options()}) > 15


@pytest.mark.parametrize(
    ("command", "name", "option"),
    [pytest.param(c, n, o, id=f"{c} {n}") for c, n, k, o in options() if numeric(k) and n not in ANY_NUMBER],
)
def test_every_number_has_a_lowest_value(command: str, name: str, option: OptionInfo) -> None:
    assert option.min is not None, f"slomofast {command} --{name.replace('_', '-')} takes any number"


def test_every_device_is_looked_for() -> None:
    found = {command: option.callback for command, name, _, option in options() if name == "device"}
    assert {command for command, check in found.items() if check is not known_device} == ELSEWHERE


def test_every_picture_has_an_ending() -> None:
    found = [(command, option.callback) for command, name, _, option in options() if name == "plot"]
    assert found and all(check is picture_file for _, check in found)


def test_every_file_to_write_is_tried_before_the_work() -> None:
    found = {c: o.callback for c, name, _, o in options() if name == "out" and not str(o.help).startswith("Folder")}
    assert len(found) == 8 and all(check is writable_file for check in found.values())


def test_what_a_file_out_of_reach_is_called(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    assert writable_file(tmp_path / "new" / "rows.csv") == tmp_path / "new" / "rows.csv"
    assert not (tmp_path / "new").exists() and writable_file(None) is None
    with pytest.raises(ConfigError, match="is a folder; name a file in it"):
        writable_file(tmp_path)
    with pytest.raises(ConfigError, match=r"rows\.csv cannot be written: .*file is a file; check the path"):
        writable_file(tmp_path / "file" / "rows.csv")
    with pytest.raises(ConfigError, match="file is a file"):
        picture_file(tmp_path / "file" / "rows.png")
    monkeypatch.setattr("os.access", lambda place, mode: place != tmp_path)
    with pytest.raises(ConfigError, match="is not yours to write to"):
        writable_file(tmp_path / "rows.csv")


def test_what_the_checks_say(tmp_path) -> None:
    assert known_device("cpu") == "cpu" and known_device(None) is None
    with pytest.raises(ConfigError, match="'tpu' is no device; try cpu, cuda or cuda:0"):
        known_device("tpu")
    assert known_precisions("fp32, bf16") == ("fp32", "bf16")
    for text in ("fp8", ","):
        with pytest.raises(ConfigError, match="unknown precision"):
            known_precisions(text)
    assert picture_file(tmp_path / "a.PNG") == tmp_path / "a.PNG"
    with pytest.raises(ConfigError, match=r"does not end like a picture; try .*growth\.png"):
        picture_file(tmp_path / "growth")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("bench steps --methods bn,mem", "unknown method 'mem'; did you mean 'memo'"),
        ("bench steps --precision fp8", "unknown precision 'fp8'"),
        ("bench steps --methods bn,tent --set lr=1", "--set is for one method, and these are 2"),
        ("bench steps --methods tent --set lrr=1", "did you mean 'lr'"),
        ("run bn --data glyph", "unknown data set 'glyph'; did you mean 'glyphs'"),
        ("search tent --device tpu", "'tpu' is no device"),
        ("corruptions show glyphs --out sheet.svg", "sheet.svg: the sheet is a PNG file; try sheet.png"),
    ],
)
def test_names_are_checked_before_anything_runs(line: str, said: str) -> None:
    result = CliRunner().invoke(app, line.split())
    assert isinstance(result.exception, SlomofastError) and said in str(result.exception)


@pytest.mark.parametrize("line", ["bench steps --repeats 0", "doctor --images 0", "run tent --threads -1"])
def test_a_number_too_low_is_a_usage_error(line: str) -> None:
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == 2 and not isinstance(result.exception, RuntimeError)


def test_a_place_out_of_reach_is_named(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (tmp_path / "file").write_text("")
    line = f"bench corruptions --images 1 --size 16 --out {tmp_path}/file/rows.csv"
    monkeypatch.setattr("sys.argv", ["slomofast", *line.split()])
    with pytest.raises(SystemExit) as end:
        main()
    said = " ".join(capsys.readouterr().err.split())
    assert end.value.code == 2 and said.startswith("error:") and "file" in said and "check the path" in said


def test_other_failures_of_the_system_stay_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("out of sockets")

    monkeypatch.setattr("slomofast.cli.__main__.app", fail)
    with pytest.raises(OSError, match="out of sockets"):
        main()
