"""What adaptation costs: time, memory, and how many plain forward passes one step is worth."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from slomofast.bench.evaluate import Seconds
from slomofast.metrics import ForgettingProbe
from slomofast.metrics.functional import percentile

WARM_UP = 3  # steps whose time says more about caches and allocators than about the method
IN_TURN = 4  # neighbouring steps that together have done whatever a method does only now and then


def typical(seconds: Sequence[float]) -> float:
    """Time of a step, the median of the means of four neighbouring ones.

    A method may do in every other step what it leaves out in the next. The median of single steps is then that of one
    kind or the other, as it happens; a plain mean would count what else the machine did.

    >>> typical([1.0, 3.0] * 4 + [50.0])
    2.0
    """
    groups = [seconds[start : start + IN_TURN] for start in range(0, len(seconds) - IN_TURN + 1, IN_TURN)]
    return statistics.median(map(statistics.fmean, groups or [seconds]))


def forward_seconds(model: nn.Module, images: Tensor, precision: str, repeats: int = 5) -> float:
    """Median time of one plain forward pass of a network on a batch, in a precision."""
    return statistics.median(_forward_times(model, images, precision, repeats))


@torch.no_grad()
def _forward_times(model: nn.Module, images: Tensor, precision: str, repeats: int, warm_up: int = 2) -> list[float]:
    device = images.device
    times: list[float] = []
    with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        for number in range(warm_up + repeats):
            if device.type == "cuda":
                clock = Seconds(device)
                model(images)
                elapsed = float(clock.stop())
            else:
                start = time.perf_counter()
                model(images)
                elapsed = time.perf_counter() - start
            if number >= warm_up:
                times.append(elapsed)
            if sum(times) > 2.0:
                break
    return times


class Yardstick:
    """The time of a plain forward pass of the source network, measured in the run it is compared with.

    On a CPU, whose speed depends on what else the machine does, the pass is repeated now and then during the stream. A
    GPU is measured before the stream only, so that the pass does not count in the peak memory (see `DeviceMemory`).
    """

    EVERY = 20  # steps between two measurements; costs a plain forward pass a twentieth more

    def __init__(self, model: nn.Module, images: Tensor, precision: str) -> None:
        self.times = _forward_times(model, images, precision, repeats=5)
        self._again = (model, images, precision) if images.device.type == "cpu" else None

    def update(self, position: int) -> None:
        """Measure once more if it is time to, and if this is a CPU."""
        if self._again is not None and position % self.EVERY == self.EVERY - 1:
            self.times += _forward_times(*self._again, repeats=1, warm_up=0)

    @property
    def seconds(self) -> float:
        """The median so far."""
        return statistics.median(self.times)


class DeviceMemory:
    """Device memory for the sake of the method: the peak during the stream, less what is there for other reasons.

    The adapter counts (`of_method`), and so does what appears during the stream: what a step needs, batches loaded
    ahead and the work of making them. What was there before, such as the data set's images and the source network,
    does not, nor do a pass before the stream and what is left out (`leave_out`). Nothing is measured on a CPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._own = self._others = self._peak = 0

    @contextmanager
    def of_method(self) -> Iterator[None]:
        """What is allocated inside, and is still there at the end, is the method's."""
        before = self._allocated()
        yield
        self._own += self._allocated() - before

    def start(self) -> None:
        """The stream begins."""
        self._others = self._allocated() - self._own
        self._begin()

    @contextmanager
    def leave_out(self, probe: ForgettingProbe) -> Iterator[None]:
        """What the probe does inside does not count, nor the images it keeps."""
        self._note()
        before = probe.kept_bytes
        yield
        self._others += probe.kept_bytes - before
        self._begin()

    @property
    def peak(self) -> int | None:
        """The highest so far, in bytes; None on a CPU."""
        self._note()
        return self._peak if self.device.type == "cuda" else None

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0

    def _begin(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def _note(self) -> None:
        if self.device.type == "cuda":
            self._peak = max(self._peak, torch.cuda.max_memory_allocated(self.device) - self._others)


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
    whole = [s for s, n in timed if n == full] or [s for s, _ in timed]
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
        figures["milliseconds_p95"] = 1000 * percentile(whole, 0.95)
        figures["images_per_second"] = sum(n for _, n in timed) / total if total > 0 else None
        figures["forward_multiple"] = typical(whole) / forward if forward else None
    return figures
