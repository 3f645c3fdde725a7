"""How the cost of one step grows: with the batch, the classes, the queue, and over a long run, where it must not."""

from __future__ import annotations

import csv
import gc
import math
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import slomofast
from slomofast.bench.cost import forward_seconds, typical
from slomofast.bench.evaluate import evaluate, timed_call
from slomofast.bench.steps import StepCost, device_format, step_cost, timed_steps
from slomofast.core.errors import ConfigError, DataError, unknown_name
from slomofast.core.registry import describe
from slomofast.core.split import Classifier, split
from slomofast.streams import Stream

AXES = ("batch", "classes", "queue", "steps")
WINDOW = 100  # steps of a long run that share one row
QUEUE_OPTION = "queue_size"
FLAT_PERCENT, FLAT_MIB = 5.0, 1.0  # a device's clock wanders by a few percent; its allocator by nothing


@dataclass(frozen=True)
class GrowthRow:
    """One point of a curve. On the axis `steps` it is a window of a long run, and `value` the steps done at its end.

    `multiple` is in plain forward passes of the same network, batch and precision. Memory is of the device (CUDA only),
    except `host_mib`: what the process holds in the machine's memory, known on Linux. `error`: percent, of real images.
    """

    axis: str
    value: int
    method: str
    precision: str
    compiled: bool
    graphs: bool
    batch_size: int
    size: int
    classes: int
    milliseconds: float
    forward_milliseconds: float
    multiple: float
    peak_mib: float
    allocated_mib: float
    host_mib: float
    error: float = math.nan


@dataclass(frozen=True)
class Growth:
    """What is measured: a network, its images, and how the method computes.

    Attributes:
        network: the source network, on the device that measures.
        size: side of the images in pixels.
        batch_size: images in a batch, where the batch is not what grows.
        repeats: timed steps of one point.
        seed: of images and new heads.
    """

    network: nn.Module
    size: int = 32
    batch_size: int = 200
    precision: str = "fp32"
    compile: bool = False
    graphs: bool = False
    repeats: int = 20
    seed: int = 0

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.network.parameters()).device

    def batch(self, method: str, sizes: Sequence[int]) -> Iterator[GrowthRow]:
        """Cost at each batch size."""
        for count in sizes:
            yield self._point("batch", count, method, self.network, count)

    def classes(self, method: str, counts: Sequence[int]) -> Iterator[GrowthRow]:
        """Cost with a new head of each width on the same body."""
        for count in counts:
            wider = with_classes(self.network, self.images(2), count, self.seed)
            yield self._point("classes", count, method, wider, self.batch_size)

    def queue(self, method: str, sizes: Sequence[int]) -> Iterator[GrowthRow]:
        """Cost at each queue size; nothing for a method that keeps no queue."""
        for count in sizes if has_queue(method) else ():
            yield self._point("queue", count, method, self.network, self.batch_size, {QUEUE_OPTION: count})

    def steps(
        self, method: str, steps: int, batches: int = 8, window: int = WINDOW, stream: Stream | None = None
    ) -> Iterator[GrowthRow]:
        """Cost of each window of a long run: over a few random batches in turn, or over a stream, with its errors.

        The host waits for the device once a window, to read the times.
        """
        yardstick = forward_seconds(*device_format(self.network, self.images()), self.precision, repeats=20)
        adapter = self._adapter(method)
        random = [self.images(seed=self.seed + k) for k in range(batches)]
        classes = class_count(self.network, random[0])
        if adapter.needs_source:
            adapter.fit_source(self._source(classes, self.batch_size)())
        timed_steps(adapter, islice(cycle(random), 5))
        adapter.reset()
        run = _over_images(adapter, cycle(random)) if stream is None else _over_stream(adapter, stream)
        on_gpu, done = self.device.type == "cuda", 0
        while done < steps:
            if on_gpu:
                torch.cuda.reset_peak_memory_stats(self.device)
            taken = list(islice(run, min(window, steps - done)))
            if not taken:
                return
            done += len(taken)
            usual = typical([float(seconds) for seconds, _ in taken])
            allocated = torch.cuda.memory_allocated(self.device) / 2**20 if on_gpu else math.nan
            peak = torch.cuda.max_memory_allocated(self.device) / 2**20 if on_gpu else math.nan
            yield GrowthRow(
                "steps", done, method, self.precision, self.compile, self.graphs,
                self.batch_size, self.size, classes,
                1e3 * usual, 1e3 * yardstick, usual / yardstick, peak, allocated, host_mib(),
                100 * float(torch.cat([wrong for _, wrong in taken]).float().mean()),
            )  # fmt: skip

    def images(self, count: int | None = None, seed: int | None = None) -> Tensor:
        """Random images in [0, 1] on the device; the same for the same seed."""
        generator = torch.Generator().manual_seed(self.seed if seed is None else seed)
        shape = (count or self.batch_size, 3, self.size, self.size)
        return torch.rand(*shape, generator=generator).to(self.device)

    def _point(
        self,
        axis: str,
        value: int,
        method: str,
        network: nn.Module,
        batch_size: int,
        options: dict[str, Any] | None = None,
    ) -> GrowthRow:
        self._clear()
        images = self.images(batch_size)
        classes = class_count(network, images)
        cost: StepCost = step_cost(
            network,
            images,
            method,
            precision=self.precision,
            compile=self.compile,
            graphs=self.graphs,
            steps=self.repeats,
            source=self._source(classes, batch_size),
            options=options,
        )
        return GrowthRow(
            axis, value, method, self.precision, self.compile, self.graphs, batch_size, self.size, classes,
            cost.milliseconds, cost.forward_milliseconds, cost.multiple, cost.peak_mib, math.nan, host_mib(),
        )  # fmt: skip

    def _adapter(self, method: str) -> slomofast.Adapter:
        self._clear()
        on_gpu = self.device.type == "cuda"
        return slomofast.adapt(
            self.network,
            method,
            precision=self.precision,
            compile=self.compile,
            graphs=self.graphs,
            channels_last=on_gpu,
            check_input="deferred" if on_gpu else "now",
        )

    def _source(self, classes: int, batch_size: int) -> Callable[[], list[tuple[Tensor, Tensor]]]:
        def batches() -> list[tuple[Tensor, Tensor]]:
            generator = torch.Generator().manual_seed(self.seed)
            labels = torch.randint(0, classes, (4, batch_size), generator=generator)
            return [(self.images(batch_size, self.seed + k), row) for k, row in enumerate(labels)]

        return batches

    def _clear(self) -> None:
        """Leave nothing of the point before in memory, nor its shapes in the compiler."""
        gc.collect()
        if self.compile:
            torch.compiler.reset()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


Taken = tuple[Any, Tensor]
"""Seconds of a step, to be read later, and which of its images were wrong: none of them known for random ones."""


def _over_images(adapter: slomofast.Adapter, batches: Iterable[Tensor]) -> Iterator[Taken]:
    for images in batches:
        yield timed_call(adapter, images)[1], torch.zeros(0)


def _over_stream(adapter: slomofast.Adapter, stream: Stream) -> Iterator[Taken]:
    for step in evaluate(adapter, stream):
        yield step.seconds, step.logits.argmax(1) != step.target.to(step.logits.device)


def with_classes(network: nn.Module, probe: Tensor, classes: int, seed: int = 0) -> Classifier:
    """The network's body under a fresh linear head of `classes` rows.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> with_classes(net, torch.rand(2, 3, 2, 2), 7)(torch.rand(5, 3, 2, 2)).shape
    torch.Size([5, 7])
    """
    if classes < 2:
        raise ConfigError(f"a classifier has at least 2 classes, got {classes}")
    body = split(network.eval(), probe).body
    held = dict(network.named_parameters())
    for name, parameter in body.named_parameters():
        if name in held and held[name].shape == parameter.shape:
            parameter.data = held[name].data  # no second body in memory beside the one that is measured
    with torch.no_grad():
        width = body(probe).shape[1]
    head = nn.utils.skip_init(nn.Linear, width, classes)
    generator, bound = torch.Generator().manual_seed(seed), 1 / math.sqrt(width)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return Classifier(body, head.to(probe.device)).eval()


@torch.no_grad()
def class_count(network: nn.Module, images: Tensor) -> int:
    """Width of a network's head."""
    return int(network.eval()(images[:2]).shape[1])


def has_queue(method: str) -> bool:
    """Whether the method keeps features in queues whose size is an option."""
    return any(option["name"] == QUEUE_OPTION for option in describe(method).options)


def checked_axes(names: Sequence[str]) -> tuple[str, ...]:
    """The axes by name, in the order they are measured; an unknown one gets the nearest match."""
    for name in names:
        if name not in AXES:
            raise unknown_name("axis", name, AXES)
    return tuple(axis for axis in AXES if axis in names)


def whole_numbers(text: str, flag: str) -> tuple[int, ...]:
    """Positive whole numbers separated by commas.

    >>> whole_numbers("25, 50,100", "--batches")
    (25, 50, 100)
    """
    try:
        found = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise ConfigError(f"{flag} {text!r}: write whole numbers from 1 separated by commas, for example 25,50,100")
    return found


@dataclass(frozen=True)
class Drift:
    """How the end of a long run differs from its beginning, its first window (warm-up) left out."""

    percent: float
    device_mib: float
    host_mib: float

    @property
    def flat(self) -> bool:
        """Whether time and device memory stayed (within 5 % and 1 MiB)."""
        steady = not abs(self.device_mib) > FLAT_MIB  # nan, where there is no device, is no growth
        return abs(self.percent) <= FLAT_PERCENT and steady


def drift(rows: Sequence[GrowthRow]) -> Drift | None:
    """First against last tenth of a long run's windows; None where there are fewer than three.

    Each side is a median, so that a window in which the machine was busy elsewhere does not count.
    """
    windows = [row for row in rows if row.axis == "steps"][1:]
    if len(windows) < 2:
        return None
    tenth = max(1, len(windows) // 10)

    def change(name: str) -> tuple[float, float]:
        first, last = ([getattr(row, name) for row in part] for part in (windows[:tenth], windows[-tenth:]))
        return statistics.median(first), statistics.median(last)

    before, after = change("milliseconds")
    device, host = change("allocated_mib"), change("host_mib")
    return Drift(100 * (after / before - 1), device[1] - device[0], host[1] - host[0])


def host_mib() -> float:
    """What this process holds in the machine's memory; nan where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return math.nan
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def read_growth(path: Path) -> list[dict[str, Any]]:
    """Rows written before, with numbers as numbers, for the plot."""
    if not path.is_file():
        raise DataError(f"there is no file {path}; measure first, with --out {path.name}")
    with path.open(newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    numbers = [entry.name for entry in fields(GrowthRow) if entry.type in ("int", "float")]
    try:
        return [{**row, **{name: float(row[name]) for name in numbers}} for row in rows]
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{path} does not hold rows of `slomofast bench growth`") from None
