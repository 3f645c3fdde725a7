"""The half-way state of a job on disk: the adapter, what was measured, the place in the stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from slomofast.core.files import written_whole
from slomofast.core.fingerprint import fingerprint

_FORMAT = 2


@dataclass(frozen=True)
class Checkpoint:
    """All that is needed to go on as if nothing had happened.

    `trace` holds plain JSON types; `adapter` is the adapter's state dict; `position` is the next batch.
    """

    job: str
    position: int
    adapter: Mapping[str, Any]
    trace: Mapping[str, Any]
    seconds: float
    interruptions: int = 0


def write_checkpoint(path: Path, state: Checkpoint) -> None:
    """Replace the checkpoint at `path` in one step; a crash in between leaves the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    payload: dict[str, Any] = {
        "format": _FORMAT,
        "job": state.job,
        "position": state.position,
        "adapter": dict(state.adapter),
        "trace": json.dumps(state.trace),
        "seconds": state.seconds,
        "interruptions": state.interruptions,
    }
    payload["digest"] = fingerprint(payload)  # torch does not check the sums inside its own files
    with written_whole(path) as file:
        torch.save(payload, file)


def read_checkpoint(path: Path, job: str, device: torch.device) -> Checkpoint | None:
    """The checkpoint at `path`; None if there is none, or it is of another job, version, or unreadable.

    An unreadable file is removed: the job starts again, which costs time and nothing else.
    """
    if not path.exists():
        return None
    try:
        payload = torch.load(path, map_location=device, weights_only=True)
        if payload["format"] != _FORMAT or payload["job"] != job:
            return None
        if payload.pop("digest") != fingerprint(payload):
            raise ValueError("the contents do not match their digest")
        return Checkpoint(
            job,
            payload["position"],
            payload["adapter"],
            json.loads(payload["trace"]),
            payload["seconds"],
            payload["interruptions"],
        )
    except Exception:  # reading damaged bytes may raise anything
        path.unlink(missing_ok=True)
        return None
