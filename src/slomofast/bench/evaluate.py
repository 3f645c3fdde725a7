"""Run an adapter over a stream, one step at a time.

`evaluate` is a generator: metrics, progress bars, records and early stops are loops around it. The adapter sees
images only; targets and domain names travel past it.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from slomofast.metrics import Step
from slomofast.streams import Batch, Stream


class Seconds:
    """The time between two points of a CUDA queue, asked for without waiting for the queue.

    Reading it (`float(seconds)`) waits until the second point is passed; whoever collects steps does that in bulk,
    so that measuring does not slow down what is measured.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._first = torch.cuda.Event(enable_timing=True)
        self._last = torch.cuda.Event(enable_timing=True)
        self._first.record(self._stream)
        self._value: float | None = None

    def stop(self) -> Seconds:
        """Mark the second point; returns itself."""
        self._last.record(self._stream)
        return self

    def __float__(self) -> float:
        if self._value is None:
            self._last.synchronize()
            self._value = self._first.elapsed_time(self._last) / 1000
        return self._value


def evaluate(adapter: Any, stream: Stream, *, timing: bool = True) -> Iterator[Step]:
    """Yield a `Step` for every batch of `stream`: predict and learn, then say what happened.

    Where the stream asks for it (`episodic`), the adapter is reset first. `step.seconds` is the wall time of the
    adapter's call on the CPU and the time on the device's queue on CUDA; None with `timing=False`. Where the data's
    labels are a part of the network's classes (`class_mask`), the logits are cut to these. What the adapter has still
    to say of its input (`check_input="deferred"`) it says before a reset and at the end.

    >>> import slomofast as sf                                                     # doctest: +SKIP
    >>> for step in sf.evaluate(adapter, stream):                                  # doctest: +SKIP
    ...     print(step.position, (step.logits.argmax(1) != step.target).float().mean())
    """
    mask = getattr(stream.data, "class_mask", None)
    check = getattr(adapter, "check", lambda: None)
    columns: Tensor | None = None
    for batch in stream:
        if batch.reset:
            check()
            adapter.reset()
        step = take_step(adapter, batch, timing=timing)
        if mask is not None:
            if columns is None:  # made once: a copy to the device would make the host wait in every step
                columns = torch.as_tensor(mask, device=step.logits.device)
            step = replace(step, logits=step.logits[:, columns])
        yield step
    check()


def take_step(adapter: Any, batch: Batch, *, timing: bool = True) -> Step:
    """Let the adapter predict one batch and learn from it."""
    logits, seconds = timed_call(adapter, batch.images) if timing else (adapter(batch.images), None)
    return Step(
        logits=logits,
        target=batch.target,
        domain=batch.domain,
        severity=batch.severity,
        position=batch.position,
        segment=batch.segment,
        cycle=batch.cycle,
        visit=batch.visit,
        seconds=seconds,
        peak_bytes=peak_bytes(batch.images.device),
        diagnostics=dict(getattr(adapter, "logged", {})),
    )


def timed_call(adapter: Any, images: Tensor) -> tuple[Tensor, Any]:
    """The adapter's logits of a batch, and its time: a float, or a `Seconds` to be read later on CUDA."""
    if images.device.type == "cuda":
        clock = Seconds(images.device)
        return adapter(images), clock.stop()
    start = time.perf_counter()
    return adapter(images), time.perf_counter() - start


def peak_bytes(device: torch.device) -> int:
    """The most memory in use so far: of the device on CUDA, of the whole process otherwise."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
