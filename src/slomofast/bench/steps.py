"""What one step of each method costs: milliseconds, multiples of a plain forward pass, memory, in one run."""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import slomofast
from slomofast.bench.cost import forward_seconds
from slomofast.bench.evaluate import Seconds


@dataclass(frozen=True)
class StepCost:
    """Cost of one method's step; `multiple` is in plain forward passes of the same precision in the same run."""

    method: str
    precision: str
    compiled: bool
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
    plain = deepcopy(model).eval()
    shown = images
    if on_gpu:
        plain = plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        shown = images.contiguous(memory_format=torch.channels_last)
    forward = forward_seconds(plain, shown, precision, repeats=20)
    del plain
    adapter = slomofast.adapt(
        model,
        method,
        preset=preset,
        precision=precision,
        compile=compile,
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
    times = sorted(_timed(adapter, images, steps))
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if on_gpu else float("nan")
    median = statistics.median(times)
    return StepCost(
        method, precision, compile, len(images), 1e3 * median, 1e3 * times[min(len(times) - 1, int(0.95 * len(times)))],
        1e3 * forward, median / forward, peak, first,
    )  # fmt: skip


def _timed(adapter: Any, images: Tensor, steps: int) -> list[float]:
    if images.device.type == "cuda":
        clocks = []
        for _ in range(steps):
            clock = Seconds(images.device)
            adapter(images)
            clocks.append(clock.stop())
        return [float(clock) for clock in clocks]
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        adapter(images)
        times.append(time.perf_counter() - start)
    return times


def write_costs(path: Path, costs: Sequence[StepCost], facts: Mapping[str, str]) -> None:
    """Append costs to a CSV file, with the command, commit and device that made them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        rows = [{**_rounded(asdict(cost)), **facts} for cost in costs]
        writer = csv.DictWriter(file, list(rows[0]))
        if fresh:
            writer.writeheader()
        writer.writerows(rows)


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}
