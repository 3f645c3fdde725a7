"""Adapters on disk: versioned, checked against the model they belong to, written in one piece."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import nn

from slomofast.core.adapter import Adapter, Runtime
from slomofast.core.errors import CheckpointError
from slomofast.core.files import written_whole
from slomofast.core.fingerprint import fingerprint, model_fingerprint
from slomofast.core.registry import describe

FORMAT = 1


def save_adapter(adapter: Adapter, path: str | Path) -> None:
    """Write an adapter's complete state; a reader sees the old file or the new one, never a part."""
    state = adapter.state_dict()
    content = {
        "format": FORMAT,
        "method": adapter.method,
        "config": _plain(dataclasses.asdict(adapter.config)),
        "runtime": _plain(dataclasses.asdict(adapter.runtime)),
        "head": adapter.head_name,
        "sample_shape": list(adapter.sample_shape or ()),
        "source": adapter.source_fingerprint,
        "state": state,
        # what a reset returns to, where that is more than the source model tells
        "initial": None if adapter.starts_as_built else adapter.initial_state,
        "digest": fingerprint(state),
    }
    content["whole"] = _digest(content)
    target = Path(path)
    if not target.parent.is_dir():
        raise CheckpointError(f"there is no folder {target.parent} to write {target.name} to; make it first")
    with written_whole(target) as file:
        torch.save(content, file)


def load_adapter(path: str | Path, model: nn.Module) -> Adapter:
    """An adapter that continues where the saved one stopped; `model` must be the same source model."""
    content = read_checkpoint(path)
    found = model_fingerprint(model)
    if content["source"] != found:
        raise CheckpointError(
            f"{path} was made for another model (weights {content['source'][:12]}, these are {found[:12]}); load it "
            "with the source model it was made from"
        )
    cls = describe(content["method"]).adapter
    config = cls.Config.build(content["config"])
    adapter = cls(model, config, Runtime(**content["runtime"]))
    adapter.head_name = content["head"]
    shape = tuple(content["sample_shape"])
    probe = torch.rand((2, *shape), generator=torch.Generator().manual_seed(0))
    adapter.prepare(probe)
    try:
        if content["initial"] is not None:
            adapter.load_state_dict(content["initial"])
            adapter.start_here()
        adapter.load_state_dict(content["state"])
    except RuntimeError as error:
        raise CheckpointError(f"{path} does not fit method {content['method']!r} as it is now: {error}") from error
    return adapter


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The checked content of a checkpoint file."""
    if not Path(path).is_file():
        raise CheckpointError(f"there is no checkpoint at {path}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # reading damaged bytes may raise anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path} is damaged or no checkpoint ({reason}); use an earlier one") from error
    if not isinstance(content, dict) or not {"format", "state", "digest"} <= set(content):
        raise CheckpointError(f"{path} is not a slomofast checkpoint")
    if content["format"] != FORMAT:
        raise CheckpointError(f"{path} has format {content['format']}, this version reads format {FORMAT}")
    # files of before have no digest of the whole
    whole = content.get("whole")
    if fingerprint(content["state"]) != content["digest"] or whole not in (None, _digest(content)):
        raise CheckpointError(f"{path} is damaged: its content does not match its digest; use an earlier one")
    return content


def _digest(content: dict[str, Any]) -> str:
    """Of all a checkpoint holds but the digest itself and the state, which has its own."""
    rest = {key: value for key, value in content.items() if key not in ("initial", "state", "whole")}
    return fingerprint({"rest": repr(sorted(rest.items())), "initial": content.get("initial")})


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}
