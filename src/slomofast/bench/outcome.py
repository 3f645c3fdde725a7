"""What a record says when something goes wrong, and where it was made."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
import traceback
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

import slomofast
from slomofast.bench.job import Resolved
from slomofast.bench.store import FORMAT, Record
from slomofast.core.errors import SlomofastError

_MAX_WARNINGS = 20


def failure(resolved: Resolved, reason: str, error: BaseException | None = None) -> Record:
    """The record of a job that did not work out."""
    return {
        "format": FORMAT,
        "id": resolved.id,
        "status": "failed",
        "reason": reason,
        "job": resolved.describe(),
        "environment": environment(None),
        "fingerprints": resolved.fingerprints,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": 0.0,
        "curve": None,
        "segments": [],
        "metrics": {},
        "diagnostics": {},
        "skipped_steps": 0,
        "warnings": [],
        "prototypes": None,
        "traceback": "" if error is None else "".join(traceback.format_exception(error)),
    }


def reason_for(error: BaseException) -> str:
    """One line saying what went wrong; errors made on purpose speak for themselves."""
    text = (str(error).strip().splitlines() or [""])[0]
    return text if isinstance(error, SlomofastError) else f"{type(error).__name__}: {text}"


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on the device or the host."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


def environment(device: torch.device | None) -> dict[str, Any]:
    """Versions and machine facts that a result may depend on."""
    name = None if device is None else str(device)
    if device is not None and device.type == "cuda":
        name = f"cuda ({torch.cuda.get_device_name(device)})"
    return {
        "slomofast": slomofast.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": name,
        "threads": torch.get_num_threads(),
        "commit": _commit(),
    }


@functools.cache
def _commit() -> str | None:
    """Commit of the source tree this runs from, with `+` when it was changed; None outside of one.

    A tree copied without its history can be told with the variable SLOMOFAST_COMMIT.
    """
    if stated := os.environ.get("SLOMOFAST_COMMIT"):
        return stated
    folder = Path(slomofast.__file__).parent
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        words = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--exclude=*"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip() or None
    return None


@contextlib.contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Warnings raised inside, each text once, at most `_MAX_WARNINGS` of them."""
    noted: list[str] = []

    def note(message: Warning | str, *_: Any, **__: Any) -> None:
        text = str(message)
        if text not in noted and len(noted) < _MAX_WARNINGS:
            noted.append(text)

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = note
        yield noted
