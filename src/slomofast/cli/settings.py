"""`slomofast settings`: the streams there are, and what one looks like."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slomofast.cli._options import picture_file

if TYPE_CHECKING:
    from slomofast.streams import Setting

settings = typer.Typer(help="List the stream settings, or show one over a data set.", no_args_is_help=False)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(settings, name="settings")


@settings.callback(invoke_without_command=True)
def list_all(context: typer.Context) -> None:
    """List the stream settings, or show one over a data set."""
    if context.invoked_subcommand is not None:
        return
    from rich.table import Table
    from rich.text import Text

    from slomofast.cli._shared import console
    from slomofast.streams import describe_setting, list_settings

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("setting", no_wrap=True, style="cyan")
    table.add_column("")
    for name in list_settings(combinators=True):
        table.add_row(name, Text(describe_setting(name).summary))
    console.print(table)
    console.print("\nslomofast settings show NAME draws one and lists its options.", style="dim")


@settings.command("show")
def show(
    name: Annotated[str, typer.Argument(help="Setting, or a whole one as JSON.")],
    data: Annotated[str, typer.Option(help="Data set, such as glyphs or cifar10_c:/path.")] = "glyphs",
    images_per_domain: Annotated[int | None, typer.Option(help="Images at each visit; all if unset.", min=1)] = None,
    batch_size: Annotated[int, typer.Option(help="Images in a batch.", min=1)] = 200,
    seed: Annotated[int, typer.Option(help="Seed of every order.")] = 0,
    severity: Annotated[float, typer.Option(help="Strength of the corruptions, 0 to 5.", min=0, max=5)] = 5.0,
    domains: Annotated[str | None, typer.Option(help="Domains to use, separated by commas.")] = None,
    options: Annotated[list[str] | None, typer.Option("--set", help="Option of the setting, name=value.")] = None,
    model: Annotated[str | None, typer.Option(help="Source network, for orders that depend on it.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw the timeline into this file, .png or .svg.", callback=picture_file)
    ] = None,
) -> None:
    """Draw a setting's timeline over a data set: which domain comes when, how long, in how many batches."""
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    from slomofast.cli._options import chosen_names, values
    from slomofast.cli._shared import console
    from slomofast.data import open_data
    from slomofast.streams import Stream, describe_setting, make_setting

    setting = make_setting(name, **values(options or (), "--set"))
    said = model is not None or any("calibrated" in word for word in (name, *(options or ())))
    if "matrices" in setting.requirements() and not said:
        setting = _uncalibrated(setting)
        words = ["--set calibrated=true"] * (setting.name == "ccc")
        if data != "glyphs" or not words:
            words.append("--model NAME")
        console.print(
            f"drawn as a plain staircase of severities; {' '.join(words)} follows measured accuracies instead, which "
            "takes minutes",
            style="yellow",
            highlight=False,
            soft_wrap=True,
        )
    source = open_data(data)
    stream = Stream(
        setting,
        source,
        batch_size,
        seed,
        images_per_domain,
        severity,
        chosen_names(domains, "--domains"),
        **_source_facts(setting.requirements(), source, data, model, severity, images_per_domain, console),
    )
    console.print(stream)
    info = describe_setting(setting.name)
    console.print(Text(info.text))
    if info.options:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("option", "default", "meaning"):
            table.add_column(column, style="cyan" if column == "option" else "")
        for option in info.options:
            table.add_row(option["name"], Text(_shown(option["default"])), Text(option["help"]))
        console.print(table)
    if plot is not None:
        from slomofast.report.plots import save, timeline

        title = f"{setting.name} · {stream.total:,} batches of {batch_size}"
        path = save(timeline(stream.table(), stream.domains, stream.catalog.groups, title), plot)
        console.print(f"drew {escape(str(path))}", highlight=False)


def _uncalibrated(setting: Setting) -> Setting:
    """The setting with every ccc in it, itself too, on a staircase that needs no measuring."""
    import dataclasses

    from slomofast.streams import Ccc, Setting

    if isinstance(setting, Ccc):
        return dataclasses.replace(setting, calibrated=False) if setting.requirements() else setting
    held = {field.name: getattr(setting, field.name) for field in dataclasses.fields(setting)}
    return dataclasses.replace(setting, **{k: _uncalibrated(v) for k, v in held.items() if isinstance(v, Setting)})


def _source_facts(
    needs: tuple[str, ...], data: Any, spec: str, model: str | None, severity: float, images: int | None, console: Any
) -> dict[str, Any]:
    """Measure what a setting needs to know about the source network, as a run does, so that it is the same stream."""
    if not needs:
        return {}
    import torch

    from slomofast.bench.source import SOURCE_ERROR_IMAGES
    from slomofast.core.errors import ConfigError
    from slomofast.models import load_source
    from slomofast.streams import LazyMatrices, measure_source_errors

    if model is None and spec != "glyphs":
        raise ConfigError(f"this setting depends on the source model's {' and '.join(needs)}; name it with --model")
    network = load_source(model or "glyphs")
    facts: dict[str, Any] = {}
    with torch.no_grad(), console.status("asking the source network ..."):
        if "source_errors" in needs:
            few = min(SOURCE_ERROR_IMAGES, images or SOURCE_ERROR_IMAGES)
            facts["source_errors"] = measure_source_errors(network, data, severity, few)
        if "matrices" in needs:
            console.print("measuring accuracies of corruption pairs; this takes minutes", highlight=False)
            facts["matrices"] = LazyMatrices(network, data)
    return facts


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return str(value["name"])
    if isinstance(value, list):
        return " ".join(_shown(v) for v in value) if len(value) < 12 else f"{len(value)} values"
    return f"{value:g}" if isinstance(value, float) else str(value)
