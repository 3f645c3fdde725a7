"""Continual test-time adaptation: a deployed classifier that keeps learning while it predicts.

import slomofast as sf
adapter = sf.adapt(model, "slomo_fast")
logits = adapter(images)        # predicts, then learns
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from slomofast.core.adapter import Adapter, Runtime
from slomofast.core.config import AdapterConfig, option
from slomofast.core.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    InputError,
    ModelError,
    SlomofastError,
)
from slomofast.core.registry import MethodInfo, describe, list_methods, register
from slomofast.core.split import Classifier
from slomofast.guard import Guard

if TYPE_CHECKING:
    from collections.abc import Iterator

__version__ = "0.1.0"
__all__ = [
    "Adapter",
    "AdapterConfig",
    "CheckpointError",
    "Classifier",
    "ConfigError",
    "DataError",
    "Guard",
    "InputError",
    "MethodInfo",
    "ModelError",
    "SlomofastError",
    "adapt",
    "corrupt",
    "describe",
    "evaluate",
    "list_corruptions",
    "list_methods",
    "list_settings",
    "load",
    "load_source",
    "make_setting",
    "open_data",
    "option",
    "register",
    "stream",
]


def adapt(
    model: nn.Module,
    method: str = "slomo_fast",
    *,
    preset: str | None = None,
    seed: int = 0,
    precision: str = "fp32",
    channels_last: bool = False,
    compile: bool = False,
    check_input: str = "now",
    head: str | None = None,
    graphs: bool = False,
    probe: torch.Tensor | None = None,
    **options: Any,
) -> Adapter:
    """Wrap a classifier so that it adapts to the batches it predicts. The model itself is never changed.

    Args:
        model: any `nn.Module` that maps a batch of floats to logits (B, C), or to an object with `.logits`.
        method: a name of `list_methods()`.
        preset: the method's values for a data family (`cifar`, `cifar100`, `imagenet`) or another named set; several
            are joined by a plus, `imagenet+source_free`.
        seed: of the adapter's own random numbers.
        precision: `fp32`, or `bf16` autocast.
        channels_last, compile: speed options; results agree within rounding.
        check_input: `now`, `deferred` (no waiting for the device) or `off`; see `Runtime`.
        head: name of the model's last layer, if it cannot be found.
        graphs: replay the networks' passes as CUDA graphs, for a host too slow for the device; more device memory.
        probe: a batch to build the networks with now; otherwise the first batch does.
        options: the method's own, see `describe(method).options`.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    >>> adapter = adapt(net, "tent", lr=1e-2)
    >>> adapter(torch.rand(5, 3, 2, 2)).shape
    torch.Size([5, 3])
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"expected an nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("a scripted or traced model cannot be taken apart; give the nn.Module it was made from")
    info = describe(method)
    runtime = Runtime(seed, precision, channels_last, compile, check_input, head, graphs)
    adapter = info.adapter(model, info.adapter.Config.build(options, preset), runtime)
    return adapter.prepare(probe) if probe is not None else adapter


def load(path: str | Path, model: nn.Module) -> Adapter:
    """Continue a saved adapter, bit for bit; `model` is the source model it was made from."""
    from slomofast.core.checkpoint import load_adapter

    return load_adapter(path, model)


def evaluate(adapter: Adapter, stream: Any, **options: Any) -> Iterator[Any]:
    """Run an adapter over a stream: a generator of steps (logits, target, domain, severity, position, seconds)."""
    from slomofast.bench.evaluate import evaluate as run

    return run(adapter, stream, **options)


def corrupt(images: torch.Tensor, name: str, severity: float = 5, seed: int = 0, index: Any = None) -> torch.Tensor:
    """A batch (B, 3, H, W), uint8 or float in [0, 1], under one of the common corruptions; same type and device."""
    from slomofast.corruptions import corrupt as run

    return run(images, name, severity=severity, seed=seed, index=index)


def list_corruptions(extra: bool = False) -> list[str]:
    """Names of the 15 corruptions in canonical order; with `extra` also the four held-out ones."""
    from slomofast.corruptions import list_corruptions as names

    return list(names(extra=extra))


def list_settings() -> list[str]:
    """Names of all stream settings."""
    from slomofast.streams import list_settings as names

    return list(names())


def make_setting(name: str, **options: Any) -> Any:
    """A stream setting by name, for example `make_setting("cyclic", cycles=3)`."""
    from slomofast.streams import make_setting as make

    return make(name, **options)


def open_data(spec: str, **options: Any) -> Any:
    """A data set by specification: `glyphs`, `cifar10_c:/path`, `pack:/file.npz`, `folder:/path` and others."""
    from slomofast.data import open_data as run

    return run(spec, **options)


def load_source(name: str, weights: Any = None, **options: Any) -> nn.Module:
    """A source network by name, in eval mode, for images in [0, 1]; `load_source("glyphs")` is shipped."""
    from slomofast.models import load_source as run

    return run(name, weights, **options)


def stream(setting: Any, data: Any, **options: Any) -> Any:
    """A stream of batches: a setting (or its name) laid over a data set (or its specification)."""
    from slomofast.streams import Stream

    chosen = make_setting(setting) if isinstance(setting, str) else setting
    return Stream(chosen, open_data(data) if isinstance(data, str) else data, **options)
