"""Classifiers of torchvision, timm and HuggingFace by name, wrapped to take images in [0, 1]."""

from __future__ import annotations

import difflib
import importlib
from typing import Any

from torch import Tensor, nn

from slomofast.core.errors import ConfigError, ModelError
from slomofast.models.normalise import NORMALISATIONS, Normalised

EXTERNAL_PREFIXES = ("torchvision:", "timm:", "hf:")


def _import(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        extra = "slomofast[imagenet]" if package in ("torchvision", "timm") else package
        raise ConfigError(f"models of {package} need that package: pip install '{extra}'") from error


def _unknown(package: str, name: str, known: list[str]) -> ConfigError:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    return ConfigError(f"{package} has no model {name!r}{hint}")


def torchvision_model(name: str, classes: int | None, pretrained: bool) -> nn.Module:
    """`torchvision:<name>` with the mean and std of its default weights (else ImageNet's)."""
    models = _import("torchvision").models
    known = models.list_models()
    if name not in known:
        raise _unknown("torchvision", name, known)
    weights = models.get_model_weights(name).DEFAULT
    chosen = weights if pretrained and classes is None else None
    options = {} if classes is None else {"num_classes": classes}
    model = models.get_model(name, weights=chosen, **options)
    preset = weights.transforms()
    mean, std = getattr(preset, "mean", None), getattr(preset, "std", None)
    if mean is None or std is None:
        pair = NORMALISATIONS["imagenet"]
        assert pair is not None
        mean, std = pair
    return Normalised(model, list(mean), list(std))


def timm_model(name: str, classes: int | None, pretrained: bool) -> nn.Module:
    """`timm:<name>` with the mean and std of its own configuration."""
    timm = _import("timm")
    if not timm.is_model(name.split(".")[0]):
        raise _unknown("timm", name, timm.list_models())
    options = {} if classes is None else {"num_classes": classes}
    model = timm.create_model(name, pretrained=pretrained, **options)
    config = timm.data.resolve_data_config({}, model=model)
    return Normalised(model, list(config["mean"]), list(config["std"]))


class _Logits(nn.Module):
    """The logits of a HuggingFace image classifier, which answers with a record."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(pixel_values=x).logits


def hf_model(name: str, classes: int | None) -> nn.Module:
    """`hf:<name or folder>`: an image classifier of HuggingFace with its processor's mean and std."""
    transformers = _import("transformers")
    options = {} if classes is None else {"num_labels": classes, "ignore_mismatched_sizes": True}
    try:
        model = transformers.AutoModelForImageClassification.from_pretrained(name, **options)
    except (OSError, ValueError) as error:
        raise ModelError(f"hf:{name} is no image classifier that can be loaded ({error})") from error
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(name)
    except (OSError, ValueError):
        processor = None
    mean = getattr(processor, "image_mean", None) or [0.5, 0.5, 0.5]
    std = getattr(processor, "image_std", None) or [0.5, 0.5, 0.5]
    return Normalised(_Logits(model), list(mean), list(std))


def build_external(name: str, classes: int | None, pretrained: bool) -> nn.Module:
    """The classifier behind `torchvision:`, `timm:` or `hf:`; own weights only when `pretrained`."""
    package, _, inner = name.partition(":")
    if not inner:
        raise ConfigError(f"{name!r} names no model; write for example {package}:resnet50")
    if package == "torchvision":
        return torchvision_model(inner, classes, pretrained)
    if package == "timm":
        return timm_model(inner, classes, pretrained)
    return hf_model(inner, classes)
