"""Passes of a network as CUDA graphs: recorded once per batch shape, then replayed without the host's help.

A step of a many-network method launches thousands of small kernels, and a slow host cannot launch them as fast as the
device runs them. A recorded pass is one launch. Weights stay where they are and are read when the graph runs, so that
updates in place are seen. What a graph returns is copied, since the next replay writes to the same memory.

A pass that learns keeps its activations until its gradient is taken, so each such pass of a step has a graph of its
own; passes without gradient share one. Passes in which norm layers gather statistics are kept apart from those that
use them; recording runs a pass a few times, and what was gathered meanwhile is put back. A shape that was not seen
before runs as usual until it has come back often enough to be worth recording, so a short last batch costs nothing.
"""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from slomofast.core.errors import ModelError
from slomofast.core.fused import kernels_on
from slomofast.core.norms import TestTimeNorm
from slomofast.core.split import logits_of

RECORDING = threading.RLock()
"""Held while a pass is recorded: what other threads do on the device meanwhile would break the recording."""
PATIENCE = 3  # passes of one kind before it is recorded
MOST = 12  # recorded passes of one network; further kinds run as usual


class Recorder:
    """The recorded passes of one network.

    Args:
        network: images to features; its parameters must stay where they are.
        precision: `fp32`, or `bf16` autocast.
    """

    broken: ClassVar[str] = ""  # why no pass can be recorded in this process any more

    def __init__(self, network: nn.Module, precision: str) -> None:
        if Recorder.broken:
            raise ModelError(f"{Recorder.broken}; an earlier failure left CUDA unusable for graphs in this process")
        self.network, self.precision = network, precision
        self.learns = any(p.requires_grad for p in network.parameters())
        self._norms = [m for m in network.modules() if isinstance(m, TestTimeNorm)]
        self.passes: dict[tuple[Any, ...], Callable[[Tensor], Tensor]] = {}
        self._seen: Counter[tuple[Any, ...]] = Counter()
        self._taken: Counter[tuple[Any, ...]] = Counter()
        self._unrecorded = False  # whether a pass of this step that learns ran as usual

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of a network has other weights and starts without recordings."""
        return

    def new_step(self) -> None:
        """All activations of the step before are free again."""
        self.gradients_taken()
        self._unrecorded = False

    def gradients_taken(self) -> None:
        """All gradients of the passes so far are taken: their graphs may serve again in the same step."""
        self._taken.clear()

    def __call__(self, x: Tensor) -> Tensor:
        learning = self.learns and torch.is_grad_enabled()
        kind = (tuple(x.shape), x.dtype, learning, any(norm.measuring for norm in self._norms))
        key = (*kind, self._taken[kind])
        if learning:
            self._taken[kind] += 1
        found = self.passes.get(key)
        if found is None:
            self._seen[key] += 1
            rare = self._seen[key] < PATIENCE or len(self.passes) >= MOST
            # gradients of a usual pass may still be due on another stream, which a recording must not touch
            if rare or (learning and self._unrecorded) or not x.is_cuda or x.requires_grad:
                self._unrecorded |= learning
                return logits_of(self.network(x))
            found = self._record(x, learning)
            self.passes[key] = found
        return found(x).clone()

    def _record(self, x: Tensor, learning: bool) -> Callable[[Tensor], Tensor]:
        sample = x.detach().clone()
        view = _Pass(self.network, self.precision)
        try:
            # the pass has an autocast of its own
            with RECORDING, _nothing_freed(), _buffers_kept(self.network), torch.autocast("cuda", enabled=False):
                if learning:
                    return cast(Callable[[Tensor], Tensor], torch.cuda.make_graphed_callables(view, (sample,)))
                return _Replay(view, sample)
        except RuntimeError as error:  # what runs after a broken recording may be wrong: no silent fallback
            Recorder.broken = (
                f"a pass could not be recorded as a CUDA graph ({str(error).splitlines()[0]}); start a new process, "
                "with graphs=False if the pass waits for the host or differs from call to call, or if threads "
                "of yours use the device meanwhile"
            )
            raise ModelError(Recorder.broken) from error


@contextmanager
def _nothing_freed() -> Iterator[None]:
    """No garbage collection inside: freeing another adapter's graphs or memory would break the recording."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _buffers_kept(network: nn.Module) -> Iterator[None]:
    """What passes inside gather in the network's buffers is undone at the end; the buffers stay where they are."""
    buffers = list(network.buffers())
    before = [buffer.clone() for buffer in buffers]
    yield
    for buffer, value in zip(buffers, before, strict=True):
        buffer.copy_(value)


class _Pass(nn.Module):
    """A network under the adapter's autocast, with no casts kept from one pass to the next."""

    def __init__(self, network: nn.Module, precision: str) -> None:
        super().__init__()
        self.network, self.precision = network, precision

    def forward(self, x: Tensor) -> Tensor:
        half = torch.autocast("cuda", torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False)
        with half, kernels_on():
            return logits_of(self.network(x))


class _Replay:
    """A recorded pass without gradient."""

    def __init__(self, view: nn.Module, sample: Tensor) -> None:
        self.sample = sample
        side = torch.cuda.Stream(sample.device)
        side.wait_stream(torch.cuda.current_stream(sample.device))
        with torch.no_grad(), torch.cuda.stream(side):
            for _ in range(2):  # kernels are chosen and built before the recording
                view(sample)
        torch.cuda.current_stream(sample.device).wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.result = view(sample)

    def __call__(self, x: Tensor) -> Tensor:
        self.sample.copy_(x)
        self.graph.replay()
        return self.result
