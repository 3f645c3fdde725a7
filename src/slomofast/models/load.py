"""A source network by name: built, filled with weights, normalised, ready to be adapted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from slomofast.core.config import typed
from slomofast.core.errors import ConfigError, ModelError
from slomofast.models.external import EXTERNAL_PREFIXES, bare, build_external
from slomofast.models.normalise import Normalised
from slomofast.models.registry import describe_model
from slomofast.models.weights import load_weights, read_weights, strip_prefixes, take_normalisation


def load_source(
    name: str,
    weights: str | Path | Sequence[str | Path] | None = None,
    classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> nn.Module:
    """A classifier in eval mode on the CPU that takes images in [0, 1], shape (n, 3, H, W), and gives logits.

    Args:
        name: of `list_models()`, `wrn_<depth>_<width>`, `torchvision:<name>`, `timm:<name>` or `hf:<name>`.
        weights: a safetensors or .pt file, or several that hold a part of the state dict each. Without it a
            shipped network gets its own weights, `torchvision:`, `timm:` and `hf:` their pretrained ones, and
            the others stay at their random start.
        classes: width of the head; by default that of the weights, or of the architecture's usual data.
        mean, std: input normalisation per channel. By default the weights' own (`mu`, `sigma` inside the
            file, or the package's metadata), otherwise none.

    Raises:
        ConfigError: an unknown name or an impossible option.
        ModelError: weights that cannot be read or do not fit; the message lists the keys.

    >>> load_source("wrn_10_1", classes=4).training
    False
    """
    given = checked_options({"classes": classes, "mean": mean, "std": std})
    classes, mean, std = given["classes"], given["mean"], given["std"]
    external = name.startswith(EXTERNAL_PREFIXES)
    if external:
        model = build_external(name, classes, pretrained=weights is None, normalise=mean is None)
        if weights is not None:
            load_weights(bare(model), read_weights(weights), _names(weights))
    else:
        model = _own(name, weights, classes)
    if mean is not None and std is not None:
        model = Normalised(model.model if isinstance(model, Normalised) else model, mean, std)
    return model.eval()


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `load_source` beside its files, as their types; an error for what no network can have."""
    mean, std, classes = (options.get(name) for name in ("mean", "std", "classes"))
    if (mean is None) != (std is None):
        raise ConfigError("mean and std come together; only one of them was given")
    for key, value in (("mean", mean), ("std", std)):
        if value is not None and not isinstance(value, Sequence):
            raise ConfigError(f"{key} needs one value per channel, for example [0.5, 0.5, 0.5], got {value!r}")
    found = typed(load_source, options)
    if classes is not None and found["classes"] < 2:
        raise ConfigError(f"classes must be at least 2, got {classes}")
    return found


def _own(name: str, weights: str | Path | Sequence[str | Path] | None, classes: int | None) -> nn.Module:
    info = describe_model(name)
    if weights is None and info.weights is not None:
        if not info.weights.exists():
            raise ModelError(f"the weights shipped for {name!r} are missing from this installation; reinstall it")
        weights = info.weights
    if weights is None:
        model = info.build(classes or info.classes)
        return model if info.mean is None or info.std is None else Normalised(model, info.mean, info.std)
    state = read_weights(weights)
    # The order matters: prefixes hide the names of the normalisation.
    state = strip_prefixes(state, list(info.build(2).state_dict()))
    normalisation = take_normalisation(state)
    model = info.build(classes or _head_width(state) or info.classes)
    load_weights(model, state, _names(weights))
    if normalisation is None and info.mean is not None and info.std is not None:
        normalisation = (info.mean, info.std)
    return model if normalisation is None else Normalised(model, *normalisation)


def _head_width(state: dict) -> int | None:
    """Classes of the head inside a state dict: the rows of the one matrix named like a head."""
    for key in ("fc.weight", "classifier.weight", "head.weight"):
        if key in state and state[key].ndim == 2:
            return int(state[key].shape[0])
    return None


def _names(weights: str | Path | Sequence[str | Path]) -> str:
    files = [weights] if isinstance(weights, str | Path) else list(weights)
    return " + ".join(Path(f).name for f in files)
