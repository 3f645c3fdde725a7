"""Training a source network on clean images: SGD or AdamW, one learning-rate cycle, images resident on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slomofast.core.errors import CheckpointError, ConfigError
from slomofast.core.files import written_whole

Reader = Callable[[Tensor], Tensor]
"""Image numbers (int64 on the CPU) -> uint8 images (n, 3, S, S) on the training device."""


@dataclass(frozen=True)
class TrainConfig:
    """How to train.

    Attributes:
        epochs: passes over the images.
        lr: highest learning rate of the cycle.
        batch_size: images per step.
        weight_decay: of weights; biases and normalisation layers have none.
        optimizer: `sgd`, or `adamw` for transformers (with a step size near 1e-3).
        momentum: of SGD (Nesterov).
        schedule: `onecycle` rises over the first fifth and falls to zero; `cosine` only falls.
        flip: mirror half of the images. Wrong for letters.
        crop: move images by up to this many pixels, edges reflected.
        cutout: paint a grey square of this side somewhere into every image, 0 for none.
        label_smoothing: share of the target spread over all classes.
        precision: `fp32`, or `bf16` autocast with channels-last memory.
        seed: of initial weights' use, order and augmentation.
    """

    epochs: int = 20
    lr: float = 0.1
    batch_size: int = 128
    weight_decay: float = 5e-4
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: float = 0.9
    schedule: Literal["onecycle", "cosine"] = "onecycle"
    flip: bool = True
    crop: int = 4
    cutout: int = 0
    label_smoothing: float = 0.0
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.lr <= 0:
            raise ConfigError(f"lr must be positive, got {self.lr}")
        if not 0 <= self.label_smoothing < 1:
            raise ConfigError(f"label_smoothing must be in [0, 1), got {self.label_smoothing}")
        for name in ("crop", "cutout"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is a number of pixels >= 0, got {getattr(self, name)}")
        if self.schedule not in ("onecycle", "cosine"):
            raise ConfigError(f"schedule is onecycle or cosine, got {self.schedule!r}")
        if self.optimizer not in ("sgd", "adamw"):
            raise ConfigError(f"optimizer is sgd or adamw, got {self.optimizer!r}")
        if self.precision not in ("fp32", "bf16"):
            raise ConfigError(f"precision is fp32 or bf16, got {self.precision!r}")


@dataclass(frozen=True)
class Epoch:
    """One finished pass: its number from 1, mean loss, training error in percent."""

    number: int
    loss: float
    error: float


def augment(images: Tensor, flip: bool, crop: int, generator: torch.Generator, cutout: int = 0) -> Tensor:
    """Float images (n, 3, S, S) mirrored, shifted and partly covered at random, each on its own; edges reflected."""
    return _covered(_moved(images, flip, crop, generator), cutout, generator)


def _covered(images: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """A grey square of `side` pixels whose centre lies anywhere in the image."""
    if not side:
        return images
    n, _, height, width = images.shape
    centre = torch.rand(2, n, generator=generator).to(images.device)
    rows = (torch.arange(height, device=images.device) + 0.5 - centre[0, :, None] * height).abs() <= side / 2
    columns = (torch.arange(width, device=images.device) + 0.5 - centre[1, :, None] * width).abs() <= side / 2
    return torch.where((rows[:, :, None] & columns[:, None, :])[:, None], 0.5, images)


def _moved(images: Tensor, flip: bool, crop: int, generator: torch.Generator) -> Tensor:
    n, _, height, width = images.shape
    device = images.device
    if flip:
        mirrored = torch.rand(n, generator=generator).to(device) < 0.5
        images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
    if not crop:
        return images
    top, left = torch.randint(0, 2 * crop + 1, (2, n), generator=generator).to(device)
    padded = F.pad(images, (crop,) * 4, mode="reflect")
    rows = (top[:, None] + torch.arange(height, device=device))[:, None, :, None]
    columns = (left[:, None] + torch.arange(width, device=device))[:, None, None, :]
    batch = torch.arange(n, device=device)[:, None, None, None]
    channel = torch.arange(images.shape[1], device=device)[None, :, None, None]
    return padded[batch, channel, rows, columns]


def rate_at(step: int, steps: int, config: TrainConfig) -> float:
    """Learning rate of a step, from 0 to steps - 1."""
    rise = 0.2 * steps if config.schedule == "onecycle" else 0.0
    if step < rise:
        return config.lr * (step + 1) / (rise + 1)
    done = (step - rise) / max(1.0, steps - rise)
    return config.lr * 0.5 * (1 + float(torch.cos(torch.tensor(torch.pi * done))))


def _optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr)
    return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.momentum > 0)


def train(
    model: nn.Module,
    read: Reader,
    labels: Tensor,
    config: TrainConfig,
    checkpoint: str | Path | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> Iterator[Epoch]:
    """Train `model` in place on its device; yields after every epoch.

    Args:
        read: gives images by number, on the model's device.
        labels: int64 (n,) on the CPU.
        checkpoint: file written after every epoch; when it exists and was made with the same configuration, training
            continues after its last epoch and ends in the same weights as if it had never stopped.
        on_step: called with (finished steps, all steps).
    """
    device = next(model.parameters()).device
    count = len(labels)
    if count < config.batch_size:
        raise ConfigError(
            f"{count} training images do not fill a batch of {config.batch_size}: give more, or a smaller batch_size"
        )
    per_epoch = count // config.batch_size
    steps = per_epoch * config.epochs
    fast = config.precision == "bf16"
    if fast:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = _optimizer(model, config)
    generator = torch.Generator().manual_seed(config.seed)
    start = _resume(checkpoint, model, optimizer, generator, config, count)
    targets = labels.to(device)
    for epoch in range(start, config.epochs):
        model.train()
        order = torch.randperm(count, generator=generator)[: per_epoch * config.batch_size]
        loss_sum, wrong = torch.zeros((), device=device), torch.zeros((), device=device)
        for k, index in enumerate(order.view(per_epoch, config.batch_size)):
            step = epoch * per_epoch + k
            for group in optimizer.param_groups:
                group["lr"] = rate_at(step, steps, config)
            x = augment(read(index).float() / 255, config.flip, config.crop, generator, config.cutout)
            y = targets[index.to(device)]
            if fast:
                x = x.contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16, enabled=fast):
                logits = model(x)
            loss = F.cross_entropy(logits.float(), y, label_smoothing=config.label_smoothing)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
            wrong += (logits.detach().argmax(1) != y).sum()
            if on_step is not None:
                on_step(step + 1, steps)
        if not torch.isfinite(loss_sum):
            raise ConfigError(f"the loss became infinite in epoch {epoch + 1}; lower lr ({config.lr:g})")
        _save(checkpoint, model, optimizer, generator, config, count, epoch + 1)
        yield Epoch(epoch + 1, float(loss_sum) / per_epoch, 100 * float(wrong) / len(order))
    model.eval()


def _save(
    path: str | Path | None,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    config: TrainConfig,
    count: int,
    epoch: int,
) -> None:
    if path is None:
        return
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "format": 1,
        "epoch": epoch,
        "images": count,
        "config": asdict(config),
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "generator": generator.get_state(),
    }
    with written_whole(path) as file:
        torch.save(state, file)


def _resume(
    path: str | Path | None,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    config: TrainConfig,
    count: int,
) -> int:
    """Put a checkpoint back; the number of epochs it has behind it, 0 without one."""
    if path is None or not Path(path).exists():
        return 0
    try:
        kept: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        same = kept["config"] == asdict(config) and kept["images"] == count
    except Exception as error:  # whatever torch.load makes of a damaged file
        raise CheckpointError(f"{path} is no readable training checkpoint; delete it to start anew") from error
    if not same:
        raise CheckpointError(f"{path} was made with other options; delete it or repeat them to continue")
    try:
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(f"{path} belongs to another network; delete it to start anew") from error
    generator.set_state(kept["generator"])
    return int(kept["epoch"])


@torch.inference_mode()
def error_rate(model: nn.Module, read: Reader, labels: Tensor, batch_size: int = 500) -> float:
    """Error in percent over all images, in eval mode."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    wrong = torch.zeros((), device=device)
    for index in torch.arange(len(labels)).split(batch_size):
        logits = model(read(index).float() / 255)
        wrong += (logits.argmax(1) != labels[index].to(device)).sum()
    model.train(was_training)
    return 100 * float(wrong) / len(labels)
