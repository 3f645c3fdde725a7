"""The networks the library can build by name, with the facts that travel with each."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from slomofast.core.errors import ConfigError, unknown_name
from slomofast.models import resnet, resnet_gn, resnext, vit, wideresnet
from slomofast.models.external import EXTERNAL_PREFIXES


@dataclass(frozen=True)
class ModelInfo:
    """A buildable network: what it is, what it expects, how to make it.

    `build(classes)` gives the bare network with fresh weights. `weights` names a file inside the package for
    networks that are shipped trained. `mean` and `std` are the input normalisation, None for plain [0, 1].
    """

    name: str
    title: str
    image_size: int
    classes: int
    build: Callable[[int], nn.Module]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    weights: Path | None = None


def _wide(depth: int, width: int) -> ModelInfo:
    return ModelInfo(
        f"wrn_{depth}_{width}",
        f"WideResNet-{depth}-{width} (names as in RobustBench)",
        32,
        10,
        lambda classes: wideresnet.WideResNet(depth, width, classes),
    )


_SHIPPED = Path(__file__).parent / "trained"

_MODELS: dict[str, ModelInfo] = {
    info.name: info
    for info in (
        _wide(28, 10),
        _wide(40, 2),
        ModelInfo(
            "resnext_29",
            "ResNeXt-29 4x32d (names as in RobustBench's AugMix entries)",
            32,
            10,
            lambda classes: resnext.ResNeXt29(classes),
        ),
        ModelInfo(
            "resnet_26_gn",
            "ResNet-26 with GroupNorm (names as in the rotation-TTT checkpoints)",
            32,
            10,
            lambda classes: resnet_gn.ResNetGN(26, classes),
        ),
        ModelInfo("vit_tiny", "six-block transformer, patch 4", 32, 10, lambda n: vit.VisionTransformer(classes=n)),
        ModelInfo(
            "resnet_18_64",
            "ResNet-18 with a 3x3 stem, 64 pixels",
            64,
            200,
            lambda n: resnet.resnet18(n, True),
        ),
        ModelInfo(
            "resnet_50_64",
            "ResNet-50 with a 3x3 stem, 64 pixels",
            64,
            200,
            lambda n: resnet.resnet50(n, True),
        ),
        ModelInfo("resnet_18", "ResNet-18 (names as in torchvision)", 224, 1000, lambda n: resnet.resnet18(n)),
        ModelInfo("resnet_50", "ResNet-50 (names as in torchvision)", 224, 1000, lambda n: resnet.resnet50(n)),
        ModelInfo(
            "glyphs",
            "WideResNet-16-2 with a stride-2 stem, shipped trained on the glyphs data",
            32,
            10,
            lambda classes: wideresnet.WideResNet(16, 2, classes, stem_stride=2),
            weights=_SHIPPED / "glyphs.safetensors",
        ),
    )
}


def list_models(pattern: str = "*") -> list[str]:
    """Names `load_source` builds itself, sorted; `pattern` is a shell-style filter.

    Besides these, any WideResNet `wrn_<depth>_<width>` and, with the extra `imagenet`, `torchvision:<name>`,
    `timm:<name>` and `hf:<name or path>` are understood.

    >>> list_models("wrn*")
    ['wrn_28_10', 'wrn_40_2']
    """
    return sorted(fnmatch.filter(_MODELS, pattern))


def _plain(name: str) -> str:
    """Spelling differences that cost nothing to forgive: `WRN-28-10`, `wrn28_10`, `ResNet50`."""
    name = name.strip().lower().replace("-", "_").replace("wideresnet", "wrn")
    return re.sub(r"^(wrn|resnet|resnext)_?(\d+)", r"\1_\2", name)


def describe_model(name: str) -> ModelInfo:
    """The facts of a network of this package by its name.

    Raises:
        ConfigError: for a name nobody registered, with the nearest one.
    """
    plain = _plain(name)
    if plain in _MODELS:
        return _MODELS[plain]
    wide = re.fullmatch(r"wrn_(\d+)_(\d+)", plain)
    if wide:
        depth, width = int(wide[1]), int(wide[2])
        if depth < 10 or (depth - 4) % 6 or width < 1:
            raise ConfigError(
                f"{name!r}: a WideResNet's depth is 6 n + 4 (10, 16, 22, 28, 40, ...), its width 1 or more"
            )
        return _wide(depth, width)
    raise unknown_name("model", name, [*_MODELS, "wrn_<depth>_<width>", *(f"{p}<name>" for p in EXTERNAL_PREFIXES)])
