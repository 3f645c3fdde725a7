"""`slomofast settings` as a user types it."""

import subprocess
import sys

import pytest

typer_testing = pytest.importorskip("typer.testing")

from slomofast.cli import settings as command  # noqa: E402
from slomofast.core.errors import ConfigError  # noqa: E402
from slomofast.streams import list_settings  # noqa: E402


@pytest.fixture
def run(monkeypatch):
    """Run the command with the fake data set in place of real ones; gives its output."""
    import typer
    from fake_data import PairData

    import slomofast.data

    monkeypatch.setattr(slomofast.data, "open_data", lambda spec: PairData(40))
    app = typer.Typer()
    command.register(app)

    def call(*arguments):
        from slomofast.cli import _shared

        monkeypatch.setattr(_shared.console, "_width", 100)
        result = typer_testing.CliRunner().invoke(app, ["settings", *arguments])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.output

    return call


def test_every_setting_is_listed(run, capsys):
    shown = run() + capsys.readouterr().out
    assert all(name in shown for name in list_settings(combinators=True))


@pytest.mark.parametrize("name", [n for n in list_settings() if n not in ("easy2hard", "hard2easy", "ccc")])
def test_each_can_be_shown(run, name):
    shown = run("show", name, "--batch-size", "20")
    assert f"{name} over fake" in shown and "fingerprint" in shown


def test_options_reach_the_setting_and_the_picture_is_drawn(run, tmp_path):
    pytest.importorskip("matplotlib")
    target = tmp_path / "deep" / "cyclic.png"
    shown = run(
        "show", "cyclic", "--batch-size", "20", "--set", "cycles=3", "--set", "inner=mixed", "--plot", str(target)
    )
    assert "90 of 20" in shown and "cycles 3" in shown
    assert target.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("words", "images"), [((), 1000), (("--images-per-domain", "30"), 30)])
def test_orders_are_measured_as_a_run_measures_them(run, monkeypatch, words, images):
    import slomofast.streams as streams

    asked = []

    def measured(network, data, severity, count):
        asked.append(count)
        return dict.fromkeys(data.domains, 1.0)

    monkeypatch.setattr(streams, "measure_source_errors", measured)
    run("show", "easy2hard", "--batch-size", "20", *words)
    assert asked == [images]


def test_mistakes_are_named(run):
    with pytest.raises(ConfigError, match="did you mean 'cycles'"):
        run("show", "cyclic", "--set", "cycle=3")
    with pytest.raises(ConfigError, match="name it with --model"):
        run("show", "easy2hard", "--data", "other")


def test_the_command_loads_no_plotting_library():
    code = "import sys, slomofast.cli.settings, slomofast.streams; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
