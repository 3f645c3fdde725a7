"""What adaptation costs: time, memory, and how many plain forward passes one step is worth."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from slomofast.bench.evaluate import Seconds

WARM_UP = 3  # steps whose time says more about caches and allocators than about the method


@torch.no_grad()
def forward_seconds(model: nn.Module, images: Tensor, precision: str, repeats: int = 5) -> float:
    """Median time of one plain forward pass of the source network on a batch, in the run's precision.

    This is the yardstick for `forward_multiple`: measured in the same process, just before the stream.
    """
    device = images.device
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
    times: list[float] = []
    with autocast:
        for number in range(2 + repeats):
            if device.type == "cuda":
                clock = Seconds(device)
                model(images)
                elapsed = float(clock.stop())
            else:
                start = time.perf_counter()
                model(images)
                elapsed = time.perf_counter() - start
            if number >= 2:
                times.append(elapsed)
            if sum(times) > 2.0:
                break
    return statistics.median(times)


def cost_figures(
    seconds: Sequence[float | None],
    counts: Sequence[int],
    *,
    forward: float | None,
    peak_device: int | None,
    peak_host: int | None,
    trainable_share: float | None,
) -> dict[str, float | int | None]:
    """Time per batch, throughput, memory and the multiple of a forward pass, from what a run recorded.

    The first few steps are warm-up and left out where enough remain. Batches shorter than the longest are left out
    of the times per batch, since a run's last batch of a domain is often cut short.

    >>> cost_figures([0.1] * 5, [20] * 5, forward=0.05, peak_device=None, peak_host=None, trainable_share=0.5)[
    ...     "forward_multiple"]
    2.0
    """
    full = max(counts, default=0)
    timed = [(s, n) for s, n in zip(seconds, counts, strict=True) if s is not None]
    if len(timed) > 2 * WARM_UP:
        timed = timed[WARM_UP:]
    whole = sorted(s for s, n in timed if n == full) or sorted(s for s, _ in timed)
    figures: dict[str, float | int | None] = {
        "milliseconds_median": None,
        "milliseconds_p95": None,
        "images_per_second": None,
        "forward_milliseconds": None if forward is None else 1000 * forward,
        "forward_multiple": None,
        "peak_device_bytes": peak_device,
        "peak_host_bytes": peak_host,
        "trainable_percent": None if trainable_share is None else 100 * trainable_share,
    }
    if whole:
        median = statistics.median(whole)
        total = sum(s for s, _ in timed)
        figures["milliseconds_median"] = 1000 * median
        figures["milliseconds_p95"] = 1000 * whole[min(len(whole) - 1, int(0.95 * len(whole)))]
        figures["images_per_second"] = sum(n for _, n in timed) / total if total > 0 else None
        figures["forward_multiple"] = median / forward if forward else None
    return figures
