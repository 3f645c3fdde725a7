"""Classifiers of torchvision, timm and HuggingFace by name, wrapped to take images in [0, 1]."""

from __future__ import annotations

import difflib
import importlib
from typing import Any

from torch import Tensor, nn

from slomofast.core.errors import ConfigError, ModelError, unknown_name
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
    """`torchvision:<name>` with the mean and std of its weights (else ImageNet's).

    `torchvision:<name>.<weights>` names the weights. Without that they are the first published ones
    (`IMAGENET1K_V1`), which results in this field speak of, or torchvision's default where there are none.
    """
    models = _import("torchvision").models
    known = models.list_models()
    name, _, version = name.partition(".")
    if name not in known:
        raise _unknown("torchvision", name, known)
    weights = _torchvision_weights(models.get_model_weights(name), name, version)
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


def _torchvision_weights(published: Any, name: str, version: str) -> Any:
    if version and not hasattr(published, version):
        raise unknown_name(f"weights of torchvision:{name}", version, list(published.__members__))
    return getattr(published, version or "IMAGENET1K_V1", None) or published.DEFAULT


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


def hf_model(name: str, classes: int | None, pretrained: bool, normalise: bool) -> nn.Module:
    """`hf:<name or folder>`: an image classifier of HuggingFace with its processor's mean and std, in float32."""
    transformers = _import("transformers")
    build = transformers.AutoModelForImageClassification
    options: dict[str, Any] = {} if classes is None else {"num_labels": classes}
    try:
        if pretrained:
            model = build.from_pretrained(name, ignore_mismatched_sizes=classes is not None, **options)
        else:
            model = build.from_config(transformers.AutoConfig.from_pretrained(name, **options))
    except (OSError, ValueError, ImportError) as error:
        raise ModelError(f"hf:{name} is no image classifier that can be loaded ({error})") from error
    inner = _Logits(model.float())  # half-precision checkpoints come in half precision
    if not normalise:
        return inner
    mean, std = hf_normalisation(transformers, name, model.config)
    return Normalised(inner, mean, std)


def hf_normalisation(transformers: Any, name: str, config: Any) -> tuple[list[float], list[float]]:
    """Mean and std, for images in [0, 1], of the processor that belongs to a model.

    The processor's file is read as it is. Building the processor can need packages that the model does without, so
    that is done only where the file leaves out what its class knows.

    Raises:
        ModelError: when neither the file nor the class nor the model's configuration names them.
    """
    try:
        facts, _ = transformers.ImageProcessingMixin.get_image_processor_dict(name)
    except (OSError, ValueError):
        facts = {}
    if facts and facts.get("do_normalize", True) and not _has_both(facts):
        try:
            facts = transformers.AutoImageProcessor.from_pretrained(name).to_dict()
        except (OSError, ValueError, ImportError):
            facts = {}
    own = getattr(config, "pretrained_cfg", None) or {}  # models of timm carry theirs in the configuration
    if not facts and own.get("mean") and own.get("std"):
        facts = {"image_mean": own["mean"], "image_std": own["std"]}
    if not facts or (facts.get("do_normalize", True) and not _has_both(facts)):
        raise ModelError(
            f"hf:{name} does not say how its input is normalised (its preprocessor_config.json has no image_mean and "
            "image_std); pass mean= and std= per channel: (0, 0, 0) and (1, 1, 1) if it takes images in [0, 1]"
        )
    mean = _per_channel(facts["image_mean"]) if facts.get("do_normalize", True) else [0.0] * 3
    std = _per_channel(facts["image_std"]) if facts.get("do_normalize", True) else [1.0] * 3
    # Processors start from bytes: 1/255 brings them to [0, 1], anything else is made part of mean and std.
    scale = 255 * facts.get("rescale_factor", 1 / 255) if facts.get("do_rescale", True) else 255.0
    offset = 1.0 if facts.get("rescale_offset") else 0.0
    return [(m + offset) / scale for m in mean], [s / scale for s in std]


def _has_both(facts: dict[str, Any]) -> bool:
    return facts.get("image_mean") is not None and facts.get("image_std") is not None


def _per_channel(value: float | list[float]) -> list[float]:
    return [float(v) for v in value] if isinstance(value, list | tuple) else [float(value)] * 3


def bare(model: nn.Module) -> nn.Module:
    """The package's own network inside what `build_external` gives, with the package's parameter names."""
    inner = model.model if isinstance(model, Normalised) else model
    return inner.model if isinstance(inner, _Logits) else inner


def build_external(name: str, classes: int | None, pretrained: bool, normalise: bool = True) -> nn.Module:
    """The classifier behind `torchvision:`, `timm:` or `hf:`; own weights only when `pretrained`.

    Without `normalise` a package need not know the normalisation; one it knows is added all the same.
    """
    package, _, inner = name.partition(":")
    if not inner:
        raise ConfigError(f"{name!r} names no model; write for example {package}:resnet50")
    if package == "torchvision":
        return torchvision_model(inner, classes, pretrained)
    if package == "timm":
        return timm_model(inner, classes, pretrained)
    return hf_model(inner, classes, pretrained, normalise)
