"""Watching some steps of a method: under PyTorch's guard against waiting, and under its profiler.

What the profiler recorded is read by `bench.profile`.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import slomofast
from slomofast.bench.cost import typical
from slomofast.bench.profile import AUGMENTATION, MARK, STEP, WEIGHTS, StepTrace, read_trace
from slomofast.bench.steps import timed_steps

# functions of these modules, as a method's own module names them, are parts of a step that can be told by time
_PARTS = {"slomofast.augment": AUGMENTATION, "slomofast.core.params": WEIGHTS, "slomofast.core.optim": WEIGHTS}


@dataclass(frozen=True)
class WaitReport:
    """A trace, the time of a step without the profiler, and what PyTorch's own guard against waiting said.

    `refused` is None where there is no such guard (a CPU), empty where it had nothing to refuse.
    """

    trace: StepTrace
    milliseconds: float
    refused: str | None
    chrome: Mapping[str, Any]


def watch_steps(
    network: nn.Module,
    images: Sequence[Tensor],
    method: str,
    *,
    precision: str = "fp32",
    compile: bool = False,
    graphs: bool = False,
    steps: int = 4,
    warm_up: int = 10,
    source: Callable[[], Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> WaitReport:
    """Warm a method up on batches in turn, time some steps, guard some, record some."""
    device = images[0].device
    adapter = slomofast.adapt(
        network,
        method,
        precision=precision,
        compile=compile,
        graphs=graphs,
        channels_last=device.type == "cuda",
        check_input="deferred",
        **(options or {}),
    )
    if adapter.needs_source and source is not None:
        adapter.fit_source(source())
    for number in range(max(1, warm_up)):
        adapter(images[number % len(images)])
    shown = [images[number % len(images)] for number in range(steps)]
    milliseconds = 1e3 * typical(timed_steps(adapter, shown))
    refused = guarded(adapter, shown)
    chrome = record(adapter, shown)
    return WaitReport(read_trace(chrome), milliseconds, refused, chrome)


def guarded(adapter: slomofast.Adapter, batches: Sequence[Tensor]) -> str | None:
    """Take steps while PyTorch refuses to wait for the device; what it refused, or nothing. None on a CPU.

    The device is given a nap before each step, so that it is behind the host as in a long run.
    """
    if batches[0].device.type != "cuda":
        return None
    adapter.check()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the guard calls itself a prototype
            torch.cuda.set_sync_debug_mode("error")
        for images in batches:
            torch.cuda._sleep(20_000_000)
            adapter(images)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize(batches[0].device)
    return ""


def record(adapter: slomofast.Adapter, batches: Sequence[Tensor]) -> dict[str, Any]:
    """The Chrome trace of one step for each batch; the first recording, which sets the profiler up, is thrown away."""
    from torch.profiler import ProfilerActivity, profile, record_function

    on_gpu = batches[0].device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with marked_parts(adapter):
        for recorded in (batches[:1], batches):
            adapter.check()
            with profile(activities=activities) as profiler:
                for images in recorded:
                    with record_function(STEP):
                        adapter(images)
                if on_gpu:
                    torch.cuda.synchronize(images.device)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        chrome = loaded(file.read_text(errors="replace"))
    chrome.pop("host_name", None)
    return chrome


def loaded(text: str) -> dict[str, Any]:
    """A Chrome trace from its text. Some versions write numbers that JSON does not know; they become null.

    >>> loaded('{"args": {"blocks per SM": -inf, "name": "inf"}}')
    {'args': {'blocks per SM': None, 'name': 'inf'}}
    """
    found: dict[str, Any] = json.loads(re.sub(r'(":\s*)-?(?:inf|nan)\b', r"\1null", text), strict=False)
    return found


@contextmanager
def marked_parts(adapter: slomofast.Adapter) -> Iterator[None]:
    """Mark augmentation, optimiser, moving averages and restoration of a method in the profiler's record.

    The functions are wrapped where the method's module names them, and given back afterwards.
    """
    modules = {sys.modules[cls.__module__] for cls in type(adapter).__mro__ if not cls.__module__.startswith("torch")}
    optimisers: set[Any] = {type(m) for m in adapter.modules() if _PARTS.get(type(m).__module__) == WEIGHTS}
    places: list[tuple[Any, str, Any, str]] = [(cls, "step", cls.step, WEIGHTS) for cls in optimisers]
    for module in modules - {sys.modules["builtins"]}:
        for name, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__ in _PARTS:
                places.append((module, name, value, _PARTS[value.__module__]))
    try:
        for owner, name, value, kind in places:
            setattr(owner, name, _marked(value, kind))
        yield
    finally:
        for owner, name, value, _ in places:
            setattr(owner, name, value)


def _marked(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
    from torch.profiler import record_function

    @functools.wraps(function)
    def marked(*arguments: Any, **named: Any) -> Any:
        with record_function(MARK + kind):
            return function(*arguments, **named)

    return marked
