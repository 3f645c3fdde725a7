"""`slomofast doctor`: look before you run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from slomofast.bench.doctor import Diagnosis

_MARKS = {"ok": "[green]ok[/]", "note": "[cyan]note[/]", "warning": "[yellow]warning[/]", "problem": "[red]problem[/]"}
_VERDICTS = {"fits": "[green]fits[/]", "careful": "[yellow]careful[/]", "no": "[red]no[/]"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    model: Annotated[str, typer.Option(help="Source network.")] = "glyphs",
    weights: Annotated[list[str] | None, typer.Option(help="File with its weights; repeat for several parts.")] = None,
    data: Annotated[str, typer.Option(help="Data set: glyphs, cifar10_c:PATH, pack:FILE ...")] = "glyphs",
    batch_size: Annotated[int, typer.Option(help="Batch size you plan to use.", min=1)] = 200,
    images: Annotated[int, typer.Option(help="Images to look at.", min=1)] = 200,
    head: Annotated[str | None, typer.Option(help="Name of the last layer, if it is not found.")] = None,
    data_set: Annotated[list[str] | None, typer.Option(help="An option of the data set, name=value.")] = None,
    model_set: Annotated[list[str] | None, typer.Option(help="An option of the network, name=value.")] = None,
) -> None:
    """Look at a model and a sample of data; say what is wrong and which methods fit.

    The exit code is 1 if something must be repaired first.
    """
    from slomofast.bench.doctor import diagnose
    from slomofast.bench.job import Job
    from slomofast.bench.parts import job_data, job_model, probe_images
    from slomofast.bench.source import clean_sample
    from slomofast.cli._options import values

    job = Job(
        "source",
        data=data,
        data_options=values(data_set or [], "--data-set"),
        model=model,
        weights=tuple(weights or ()),
        model_options=values(model_set or [], "--model-set"),
    )
    source, opened = job_model(job), job_data(job)
    diagnosis = diagnose(
        source,
        probe_images(opened, 5, images),
        clean=clean_sample(opened, images),
        classes=opened.classes,
        batch_size=batch_size,
        source_data=hasattr(opened, "clean_loader"),
        head=head,
    )
    show(diagnosis, f"{model} on {data}")
    if not diagnosis.healthy:
        raise typer.Exit(1)


def show(diagnosis: Diagnosis, title: str) -> None:
    """Print what was found."""
    from rich.markup import escape
    from rich.table import Table

    from slomofast.cli._shared import console

    model, data = diagnosis.model, diagnosis.data
    console.print(f"[bold]{escape(title)}[/]", highlight=False)
    console.print(
        f"{model['parameters']:,} parameters; images {'x'.join(map(str, data['shape']))} {data['dtype']}, "
        f"mean {data['mean']}, std {data['std']}",
        highlight=False,
    )
    console.print()
    for finding in diagnosis.findings:
        remedy = f"\n         [dim]{escape(finding.remedy)}[/]" if finding.remedy else ""
        pad = " " * (8 - len(finding.level))
        console.print(f"{_MARKS[finding.level]}{pad} {escape(finding.text)}{remedy}", highlight=False, soft_wrap=True)
    console.print()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("method", "verdict", "why"):
        table.add_column(name)
    order = {"fits": 0, "careful": 1, "no": 2}
    for fit in sorted(diagnosis.fits, key=lambda fit: order[fit.verdict]):
        table.add_row(fit.method, _VERDICTS[fit.verdict], escape(fit.why))
    console.print(table)
