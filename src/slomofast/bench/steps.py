"""What one step of each method costs: milliseconds, multiples of a plain forward pass, memory, in one run."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import slomofast
from slomofast.bench.cost import forward_seconds, typical
from slomofast.bench.evaluate import timed_call
from slomofast.core.errors import DataError
from slomofast.metrics.functional import percentile


@dataclass(frozen=True)
class StepCost:
    """Cost of one method's step; `multiple` is in plain forward passes of the same precision in the same run.

    `milliseconds` is the typical step (`cost.typical`), `p95` the slowest of twenty.
    """

    method: str
    precision: str
    compiled: bool
    graphs: bool
    batch_size: int
    milliseconds: float
    p95: float
    forward_milliseconds: float
    multiple: float
    peak_mib: float
    first_call_seconds: float


def step_cost(
    model: nn.Module,
    images: Tensor,
    method: str,
    *,
    precision: str = "fp32",
    compile: bool = False,
    graphs: bool = False,
    steps: int = 20,
    warm_up: int = 5,
    preset: str | None = None,
    source: Callable[[], Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> StepCost:
    """Time `steps` steps of a method on one batch, after a warm-up, and the forward pass beside them.

    The yardstick uses the same memory format (channels last on CUDA). On CUDA no step waits for the one before.
    """
    device = images.device
    on_gpu = device.type == "cuda"
    forward = forward_seconds(*device_format(model, images), precision, repeats=20)
    adapter = slomofast.adapt(
        model,
        method,
        preset=preset,
        precision=precision,
        compile=compile,
        graphs=graphs,
        channels_last=on_gpu,
        check_input="deferred" if on_gpu else "now",
        **(options or {}),
    )
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    if adapter.needs_source and source is not None:
        adapter.fit_source(source())
    start = time.perf_counter()
    adapter(images)
    if on_gpu:
        torch.cuda.synchronize(device)
    first = time.perf_counter() - start
    for _ in range(warm_up):
        adapter(images)
    times = timed_steps(adapter, repeat(images, steps))
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if on_gpu else float("nan")
    usual = typical(times)
    return StepCost(
        method, precision, compile, graphs, len(images),
        1e3 * usual, 1e3 * percentile(times, 0.95),
        1e3 * forward, usual / forward, peak, first,
    )  # fmt: skip


def device_format(model: nn.Module, images: Tensor) -> tuple[nn.Module, Tensor]:
    """A copy of the network to hold steps against, and the images, as they are laid out in a step."""
    plain = deepcopy(model).eval()
    if images.device.type != "cuda":
        return plain, images
    plain = plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return plain, images.contiguous(memory_format=torch.channels_last)


def timed_steps(adapter: Any, batches: Iterable[Tensor]) -> list[float]:
    """Seconds of each step; on CUDA they are read at the end, so that no step waits for the one before."""
    times = [timed_call(adapter, images)[1] for images in batches]
    return [float(seconds) for seconds in times]


def write_costs(path: Path, costs: Sequence[Any], facts: Mapping[str, str]) -> None:
    """Append dataclass rows to a CSV file, with the command, commit and device that made them."""
    append_rows(path, [{**_rounded(asdict(cost)), **facts} for cost in costs])


def append_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to a CSV file, under a header where it is new or empty; a table of another kind is refused."""
    path.parent.mkdir(parents=True, exist_ok=True)
    check_columns(path, list(rows[0]))
    fresh = not columns_of(path)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        if fresh:
            writer.writeheader()
        writer.writerows(rows)
        file.flush()
        os.fsync(file.fileno())


def columns_of(path: Path) -> list[str]:
    """The header of a CSV file; nothing where it is empty or not there."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return next(csv.reader(file), [])


def check_columns(path: Path, columns: Sequence[str]) -> None:
    """Refuse to append to a table of another kind."""
    held = columns_of(path)
    if held and held != list(columns):
        raise DataError(f"{path} holds other columns ({', '.join(held[:4])}, ...); give --out another file")


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}
