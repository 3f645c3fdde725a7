"""Reading a profile of some steps: what ran when, who waited for whom, what kind of work a kernel was.

Everything is read from the profiler's Chrome trace, whose layout is the same in all versions of PyTorch. A kernel is
traced back to the call that launched it, and from there to the operators and the part of the step around that call;
this is how kernels get their kind. Where the networks' passes are replayed as CUDA graphs, a kernel launched by itself
belongs to none of them.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FORWARD, BACKWARD, NORM = "convolution forward", "convolution backward", "normalisation"
ELEMENTWISE, WEIGHTS, AUGMENTATION = "activation, elementwise", "optimiser, EMA, restoration", "augmentation"
LOSSES, REST = "losses, queues, copies", "rest"
KINDS = (FORWARD, BACKWARD, NORM, ELEMENTWISE, LOSSES, WEIGHTS, AUGMENTATION, REST)
"""Matrix products count with the convolutions; casts and copies between formats with the elementwise work."""
BESIDE = (LOSSES, WEIGHTS, AUGMENTATION)
"""What is no network's pass. Where the passes are recorded, all that no recording launched counts with the losses."""
LAUNCH, WAIT, OTHER = "launch", "wait", "other call"
CALLS = (LAUNCH, WAIT, OTHER)

MARK = "slomofast: "
STEP = MARK + "step"
_WAITING_CALLS = re.compile(
    r"^(cuda(Stream|Device|Event)Synchronize|cu(Stream|Ctx|Event)Synchronize|cudaMemcpy|cudaFree)(_v\d+|_ptsz)*$"
)
_LAUNCHING_CALLS = re.compile(r"Launch|Mem(cpy|set)\w*Async")
_REPLAYING_CALLS = re.compile(r"GraphLaunch")
READS = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero")
TO_HOST = "Memcpy DtoH"
_NORM_NAMES = re.compile(
    r"(batch|group|layer|instance|rms)_?norm|\b_norm_|\b_image_(moments|apply|gradient)|\b_gather\b|\bbn_(fw|bw)"
    r"|\b_Neighbourly",
    re.I,
)
_PRODUCT_OPS = re.compile(
    r"conv(\d|_|olution)|\baten::(linear|addmm|mm|bmm|baddbmm|matmul|einsum)\b|attention|\b(Addmm|Mm|Bmm|Linear)Backward",
    re.I,
)
_PRODUCT_KERNELS = re.compile(r"gemm|conv(\d|_|olution|olve)|xmma|cutlass|nvjet|winograd|fprop|dgrad|wgrad", re.I)
_BACKWARD_NAMES = re.compile(r"backward|dgrad|wgrad|bprop", re.I)
_ELEMENTWISE_KERNELS = re.compile(r"elementwise|vectorized|unrolled|triton_poi|activation", re.I)
_ELEMENTWISE_OPS = re.compile(
    r"^aten::(add|sub|rsub|mul|div|relu|threshold|clamp|clamp_min|clamp_max|where|exp|expm1|log|sqrt|pow|square|neg|abs"
    r"|sigmoid|tanh|gelu|silu|copy|to|_to_copy|fill|zero|lerp|isfinite|remainder|masked_fill|bitwise_\w+)(_backward)?_?$"
)


@dataclass(frozen=True)
class Span:
    """Something that took time: a kernel, a copy, an operator, a call. Times in milliseconds since the first step."""

    name: str
    start: float
    end: float
    kind: str
    step: int
    launched: float = math.nan

    @property
    def milliseconds(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True)
class KindCost:
    """The part of one kind in a step: milliseconds, share of all kinds, kernels (operators on a CPU)."""

    kind: str
    milliseconds: float
    percent: float
    kernels: float


@dataclass
class StepTrace:
    """Steps as the profiler saw them.

    `work` are the device's kernels and copies, or the outermost operators on a CPU; `calls` what the host asked of the
    driver; `steps` the time the host spent in each step.
    """

    steps: list[tuple[float, float]] = field(default_factory=list)
    work: list[Span] = field(default_factory=list)
    calls: list[Span] = field(default_factory=list)
    reads: Counter[str] = field(default_factory=Counter)
    on_device: bool = False

    @property
    def waits(self) -> list[Span]:
        """Calls that stopped the host until the device was through with a kernel launched before."""
        return [call for call in self.calls if call.kind == WAIT and self._busy_at(call.start)]

    @property
    def idle_waits(self) -> list[Span]:
        """Calls that would have waited, but found the device with nothing left to do."""
        return [call for call in self.calls if call.kind == WAIT and not self._busy_at(call.start)]

    @property
    def copies_to_host(self) -> int:
        """Copies from the device to the host."""
        return sum(span.name.startswith(TO_HOST) for span in self.work)

    def counts(self) -> dict[str, int]:
        """How often each call, copy and operator that can make the host wait occurred in all steps."""
        calls = Counter(call.name for call in self.calls if call.kind == WAIT)
        basic = dict.fromkeys(("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"), 0)
        device = {**basic, **calls, TO_HOST: self.copies_to_host} if self.on_device else {}
        return {**device, **{name: self.reads[name] for name in READS}}

    def costs(self) -> list[KindCost]:
        """The parts of a step by kind, those that do not occur left out."""
        count, total = max(1, len(self.steps)), sum(span.milliseconds for span in self.work) or math.nan
        found = []
        for kind in KINDS:
            mine = [span.milliseconds for span in self.work if span.kind == kind]
            if mine:
                found.append(KindCost(kind, sum(mine) / count, 100 * sum(mine) / total, len(mine) / count))
        return found

    @property
    def beside_passes(self) -> float:
        """Percent of the work that is no network's pass; nan where the passes were not recorded as graphs."""
        if not any(_REPLAYING_CALLS.search(call.name) for call in self.calls):
            return math.nan
        return sum(cost.percent for cost in self.costs() if cost.kind in BESIDE)

    @property
    def kernels(self) -> float:
        """Kernels in a step, copies and fills included; operators on a CPU."""
        return len(self.work) / max(1, len(self.steps))

    @property
    def busy(self) -> float:
        """Percent of the time between the first and the last kernel in which the device did something."""
        if not self.work:
            return math.nan
        covered, reached = 0.0, -math.inf
        for span in sorted(self.work, key=lambda span: span.start):
            covered += max(0.0, span.end - max(span.start, reached))
            reached = max(reached, span.end)
        return 100 * covered / max(reached - min(span.start for span in self.work), 1e-9)

    def lanes(self, shown: int = 2) -> dict[str, list[tuple[float, float, str]]]:
        """Bars of the last `shown` steps by lane: (start, end, kind), from where the host enters the first of them."""
        first = max(0, len(self.steps) - shown)
        low = self.steps[first][0]
        ends = [span.end for span in self.work if span.step >= first] + [self.steps[-1][1]]

        def bars(spans: Sequence[Span]) -> list[tuple[float, float, str]]:
            kept = [span for span in spans if span.end > low and span.start < max(ends)]
            return [(max(span.start, low) - low, span.end - low, span.kind) for span in kept]

        return {"host": bars(self.calls), "device": bars(self.work)} if self.on_device else {"host": bars(self.work)}

    def marks(self, shown: int = 2) -> dict[str, list[tuple[float, float, str]]]:
        """When the host, and when the device, was at each of the last `shown` steps, on the clock of `lanes`."""
        first = max(0, len(self.steps) - shown)
        low = self.steps[first][0]
        names = ("host", "device") if self.on_device else ("host",)
        found: dict[str, list[tuple[float, float, str]]] = {name: [] for name in names}
        for number in range(first, len(self.steps)):
            start, end = self.steps[number]
            found["host"].append((start - low, end - low, f"step {number + 1}"))
            mine = [span for span in self.work if span.step == number]
            if self.on_device and mine:
                ends = min(span.start for span in mine) - low, max(span.end for span in mine) - low
                found["device"].append((*ends, f"step {number + 1}"))
        return found

    def _busy_at(self, time: float) -> bool:
        return any(
            span.launched < time < span.end and not span.name.startswith(("Memcpy", "Memset")) for span in self.work
        )


def read_trace(chrome: Mapping[str, Any]) -> StepTrace:
    """The steps of a Chrome trace recorded by `record`."""
    events = [e for e in chrome["traceEvents"] if e.get("ph") == "X" and "ts" in e]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for event in sorted(events, key=lambda e: (float(e["ts"]), -float(e.get("dur", 0)))):
        groups.setdefault(str(event.get("cat", "")), []).append(event)
    annotations = groups.get("user_annotation", [])
    origin = min((float(e["ts"]) for e in annotations if e["name"] == STEP), default=0.0)
    clock = _Clock(origin)
    steps = _Ranges([(*clock.times(e), STEP) for e in annotations if e["name"] == STEP])
    parts = _Ranges([(*clock.times(e), e["name"].removeprefix(MARK)) for e in annotations if _is_part(e["name"])])
    operators = _Operators(groups.get("cpu_op", []), clock)
    trace = StepTrace(steps=[(start, end) for start, end, _ in steps.rows])
    launches: dict[int, tuple[float, Any]] = {}
    replays: set[int] = set()
    for event in groups.get("cuda_runtime", []) + groups.get("cuda_driver", []):
        start, end = clock.times(event)
        if (correlation := _argument(event, "correlation")) is not None:
            launches.setdefault(int(correlation), (start, event.get("tid")))
            if _REPLAYING_CALLS.search(event["name"]):
                replays.add(int(correlation))
        if (step := steps.index(start)) is not None:
            trace.calls.append(Span(event["name"], start, end, _call_kind(event["name"]), step))
    for event in groups.get("kernel", []) + groups.get("gpu_memcpy", []) + groups.get("gpu_memset", []):
        start, end = clock.times(event)
        number = int(_argument(event, "correlation") or -1)
        launched, thread = launches.get(number, (start, None))
        step = steps.index(launched)
        if step is None:
            continue
        stack = operators.around(_argument(event, "external id"), thread, launched)
        kind = kind_of(event["name"], stack, parts.name(launched))
        if replays and number not in replays and kind not in BESIDE:
            kind = LOSSES
        trace.work.append(Span(event["name"], start, end, kind, step, launched))
    trace.on_device = bool(trace.work)
    for place, (start, end) in enumerate(operators.times):
        if (step := steps.index(start)) is None:
            continue
        stack = operators.stack(place)
        if stack[0] in READS:
            trace.reads[stack[0]] += 1
        if not trace.on_device and stack[0].startswith("aten::") and not any(n.startswith("aten::") for n in stack[1:]):
            trace.work.append(Span(stack[0], start, end, kind_of("", stack, parts.name(start)), step))
    trace.work.sort(key=lambda span: span.start)
    trace.calls.sort(key=lambda span: span.start)
    return trace


def kind_of(kernel: str, operators: Sequence[str], part: str | None = None) -> str:
    """Kind of a kernel, from its name, the operators around its launch (innermost first) and the part of the step.

    >>> kind_of("sm90_xmma_dgrad_implicit_gemm_f32", ["aten::convolution_backward", "ConvolutionBackward0"])
    'convolution backward'
    >>> kind_of("_norm_apply", []), kind_of("vectorized_elementwise_kernel", ["aten::relu"])
    ('normalisation', 'activation, elementwise')
    """
    if part in KINDS:
        return str(part)
    names = (kernel, *operators)
    backward = any(_BACKWARD_NAMES.search(name) for name in names)
    if any(_NORM_NAMES.search(name) for name in names):
        return NORM
    if any(_PRODUCT_OPS.search(name) for name in operators) or _PRODUCT_KERNELS.search(kernel):
        return BACKWARD if backward else FORWARD
    if "multi_tensor_apply" in kernel:
        return WEIGHTS
    if _ELEMENTWISE_KERNELS.search(kernel) or (not kernel and operators and _ELEMENTWISE_OPS.match(operators[0])):
        return ELEMENTWISE
    return REST


def _call_kind(name: str) -> str:
    if _WAITING_CALLS.match(name):
        return WAIT
    return LAUNCH if _LAUNCHING_CALLS.search(name) else OTHER


def _is_part(name: str) -> bool:
    return name.startswith(MARK) and name != STEP


def _argument(event: Mapping[str, Any], name: str) -> Any:
    """An argument of an event, whose names are spelt with and without capitals by different versions."""
    return next((value for key, value in (event.get("args") or {}).items() if key.lower() == name), None)


class _Clock:
    """Milliseconds since the first step."""

    def __init__(self, origin: float) -> None:
        self.origin = origin

    def times(self, event: Mapping[str, Any]) -> tuple[float, float]:
        start = (float(event["ts"]) - self.origin) / 1e3
        return start, start + float(event.get("dur", 0)) / 1e3


class _Ranges:
    """Named stretches of time that follow one another; of nested ones the outer counts."""

    def __init__(self, rows: Sequence[tuple[float, float, str]]) -> None:
        self.rows: list[tuple[float, float, str]] = []
        for row in sorted(rows, key=lambda row: (row[0], -row[1])):
            if not self.rows or row[0] >= self.rows[-1][1]:
                self.rows.append(row)
        self._starts = [start for start, _, _ in self.rows]

    def index(self, time: float) -> int | None:
        place = bisect_right(self._starts, time) - 1
        return place if place >= 0 and time < self.rows[place][1] else None

    def name(self, time: float) -> str | None:
        place = self.index(time)
        return None if place is None else self.rows[place][2]


class _Operators:
    """Operators of the host, each with those around it on the same thread."""

    def __init__(self, events: Sequence[Mapping[str, Any]], clock: _Clock) -> None:
        self.names = [str(event["name"]) for event in events]
        self.times = [clock.times(event) for event in events]
        self._parents: list[int | None] = []
        self._by_id: dict[int, int] = {}
        self._threads: dict[Any, list[int]] = {}
        open_: dict[Any, list[int]] = {}
        for place, event in enumerate(events):  # in order of their beginnings
            stack = open_.setdefault(event.get("tid"), [])
            while stack and self.times[stack[-1]][1] <= self.times[place][0]:
                stack.pop()
            self._parents.append(stack[-1] if stack else None)
            stack.append(place)
            self._threads.setdefault(event.get("tid"), []).append(place)
            if (number := _argument(event, "external id")) is not None:
                self._by_id[int(number)] = place
        self._starts = {thread: [self.times[p][0] for p in places] for thread, places in self._threads.items()}

    def stack(self, place: int | None) -> list[str]:
        """An operator and those around it, innermost first."""
        found = []
        while place is not None:
            found.append(self.names[place])
            place = self._parents[place]
        return found

    def around(self, number: Any, thread: Any, time: float) -> list[str]:
        """The operators around a launch, found by the number both carry, else by thread and time."""
        if number is not None and int(number) in self._by_id:
            return self.stack(self._by_id[int(number)])
        place: int | None = bisect_right(self._starts.get(thread, []), time) - 1
        place = self._threads[thread][place] if place is not None and place >= 0 else None
        while place is not None and self.times[place][1] < time:
            place = self._parents[place]
        return self.stack(place)
