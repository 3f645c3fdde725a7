"""Input normalisation as a part of the network, and a probe that finds out which one a checkpoint wants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from slomofast.core.errors import ConfigError

NORMALISATIONS: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]] | None] = {
    "none": None,
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""Common (mean, std) pairs by name; `none` leaves images in [0, 1]."""


class Normalised(nn.Module):
    """A network that takes images in [0, 1]: subtracts `mean`, divides by `std`, calls `model`."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean:
            raise ConfigError(f"mean and std need one value per channel each, got {list(mean)} and {list(std)}")
        if min(std) <= 0:
            raise ConfigError(f"std must be positive in every channel, got {list(std)}")
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(1, -1, 1, 1))
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model((x - self.mean) / self.std)


@dataclass(frozen=True)
class NormalisationReport:
    """What `check_normalisation` found: error in percent under each normalisation tried.

    `as_given` is the error of the model as it was handed over; `best` the name of the lowest error.
    """

    errors: Mapping[str, float]
    as_given: float
    best: str
    fits: bool

    def __str__(self) -> str:
        tried = ", ".join(f"{name} {error:.1f} %" for name, error in self.errors.items())
        if self.fits:
            return f"the model's normalisation fits: {self.as_given:.1f} % error as given (tried: {tried})"
        hint = (
            "no normalisation"
            if NORMALISATIONS[self.best] is None
            else "mean={}, std={}".format(*NORMALISATIONS[self.best])  # type: ignore[misc]
        )
        return (
            f"the model makes {self.as_given:.1f} % errors as given but {self.errors[self.best]:.1f} % with "
            f"'{self.best}' ({hint}); tried: {tried}"
        )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _error(model: nn.Module, images: Tensor, labels: Tensor, batch: int = 100) -> float:
    device = next((p.device for p in model.parameters()), images.device)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    with torch.inference_mode(), _evaluating(model):
        for x, y in zip(images.split(batch), labels.split(batch), strict=True):
            wrong += (model(x.to(device)).argmax(1) != y.to(device)).sum()
    return 100 * float(wrong) / len(labels)


def check_normalisation(model: nn.Module, images: Tensor, labels: Tensor, margin: float = 2.0) -> NormalisationReport:
    """Which of the common normalisations suits a network, by its error on labelled clean images.

    A checkpoint fed with the wrong normalisation still answers, only worse; a hundred clean images show it.
    A model that already is `Normalised` is judged as given and with its normalisation replaced. It fits when
    no other normalisation is better by more than `margin` points.

    Args:
        images: float in [0, 1] or uint8, shape (n, 3, H, W).
        labels: int64, shape (n,).
    """
    if len(images) != len(labels) or not len(images):
        raise ConfigError(f"check_normalisation needs as many images as labels, got {len(images)}, {len(labels)}")
    x = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    as_given = _error(model, x, labels)
    bare = model.model if isinstance(model, Normalised) else model
    errors: dict[str, float] = {}
    for name, pair in NORMALISATIONS.items():
        if pair is None:
            errors[name] = _error(bare, x, labels)
        else:
            mean, std = (torch.tensor(v).view(1, -1, 1, 1).to(x.device) for v in pair)
            errors[name] = _error(bare, (x - mean) / std, labels)
    best = min(errors, key=lambda name: errors[name])
    return NormalisationReport(errors, as_given, best, as_given <= errors[best] + margin)
