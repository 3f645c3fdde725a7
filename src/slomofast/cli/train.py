"""`slomofast train`: a source network on clean images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slomofast.cli._options import known_device, writable_file

if TYPE_CHECKING:
    from slomofast.data import CorruptedImages


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("train")(train)


def train(
    model: Annotated[str, typer.Argument(help="Network to train: wrn_28_10, resnet_18_64, glyphs ...")],
    data: Annotated[str, typer.Option(help="Clean images: glyphs, pack:FILE or folder:PATH.")] = "glyphs",
    test: Annotated[str | None, typer.Option(help="Images to measure on; glyphs has its own test split.")] = None,
    size: Annotated[int | None, typer.Option(help="Train on this many images only.", min=1)] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the images.", min=1)] = 20,
    lr: Annotated[float, typer.Option(help="Highest learning rate.", min=0)] = 0.1,
    batch_size: Annotated[int, typer.Option(help="Images per step.", min=1)] = 128,
    weight_decay: Annotated[float, typer.Option(help="Pull of the weights towards zero.", min=0)] = 5e-4,
    optimizer: Annotated[str, typer.Option(help="sgd, or adamw for transformers (--lr 1e-3).")] = "sgd",
    schedule: Annotated[str, typer.Option(help="onecycle or cosine.")] = "onecycle",
    label_smoothing: Annotated[
        float, typer.Option(help="Share of the target spread over all classes.", min=0, max=1)
    ] = 0.0,
    cutout: Annotated[int, typer.Option(help="Side of a grey square painted into every image; 0 for none.", min=0)] = 0,
    augment: Annotated[str, typer.Option(help="none, crop, or flip (crop and mirror); letters must not flip.")] = "",
    out: Annotated[Path, typer.Option(help="Where the weights go.", callback=writable_file)] = Path(
        "weights.safetensors"
    ),
    half: Annotated[bool, typer.Option("--half", help="Store fp16 weights, half the size.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda; a GPU if there is one.", callback=known_device)] = None,
    precision: Annotated[str, typer.Option(help="fp32 or bf16.")] = "fp32",
    seed: Annotated[int, typer.Option(help="Of the initial weights, the order and the augmentation.")] = 0,
) -> None:
    """Train a network on clean images and write its weights.

    After an interruption the same command continues behind the last finished epoch; the checkpoint lies beside the
    weights until they are written.

    [bold]slomofast train wrn_40_2 --data pack:cifar10_train.npz --test pack:cifar10_test.npz --precision bf16[/]
    """
    import numpy as np
    import torch
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from slomofast.cli._shared import console, fail
    from slomofast.models import load_source, save_weights
    from slomofast.models.registry import describe_model
    from slomofast.models.train import TrainConfig, error_rate
    from slomofast.models.train import train as run_training

    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    letters = data.partition(":")[0] == "glyphs"
    augment = augment or ("crop" if letters else "flip")
    if augment not in ("none", "crop", "flip"):
        fail(f"--augment is none, crop or flip, got {augment!r}")
    if out.suffix != ".safetensors":
        fail(f"--out must end in .safetensors, got {out}")
    images = _open_clean(data, "train", size, str(where))
    tests = _open_clean(test or "glyphs", "test", None, str(where)) if test or letters else None
    config = TrainConfig(
        epochs=epochs,
        lr=lr,
        batch_size=batch_size,
        weight_decay=weight_decay,
        optimizer=optimizer,  # type: ignore[arg-type]
        schedule=schedule,  # type: ignore[arg-type]
        flip=augment == "flip",
        crop=0 if augment == "none" else (2 if letters else images.image_size // 8),
        cutout=cutout,
        label_smoothing=label_smoothing,
        precision=precision,  # type: ignore[arg-type]
        seed=seed,
    )
    torch.manual_seed(seed)
    info = describe_model(model)
    network = info.build(images.classes) if info.weights else load_source(model, classes=images.classes)
    network.to(where)
    parameters = sum(p.numel() for p in network.parameters())
    console.print(
        f"{escape(model)}: {parameters:,} parameters, {images.size:,} images, {images.classes} classes, on {where}"
    )

    def reader(source: CorruptedImages) -> Any:
        return lambda index: source.clean(np.asarray(index))

    checkpoint = out.with_suffix(".training.pt")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("training", total=None)

        def on_step(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        labels = torch.from_numpy(images.labels(""))
        for epoch in run_training(network, reader(images), labels, config, checkpoint, on_step):
            console.print(
                f"epoch {epoch.number:3d} of {epochs}: loss {epoch.loss:.3f}, training error {epoch.error:.1f} %"
            )
    if tests is not None:
        error = error_rate(network, reader(tests), torch.from_numpy(tests.labels("")))
        console.print(f"test error {error:.2f} % on {tests.size:,} images of {escape(tests.name)}")
    save_weights(network, out, half=half)
    checkpoint.unlink(missing_ok=True)
    console.print(f"wrote {escape(str(out))} ({out.stat().st_size / 2**20:.1f} MiB)")


def _open_clean(spec: str, split: str, size: int | None, device: str) -> CorruptedImages:
    """A set with clean images; for glyphs the right split (20,000 images to train on unless told otherwise)."""
    from slomofast.core.errors import DataError
    from slomofast.data import CorruptedImages, open_data

    options: dict[str, Any] = {"device": device}
    if spec == "glyphs":
        options |= {"split": split, "size": size or (20_000 if split == "train" else 10_000)}
    elif size is not None:
        options["size"] = size
    found = open_data(spec, **options)
    if not isinstance(found, CorruptedImages):
        raise DataError(f"{spec} has no clean images to train on; use glyphs, pack:FILE or folder:PATH")
    return found
