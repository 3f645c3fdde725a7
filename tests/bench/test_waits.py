"""What host and device do in a step, read from traces: one made by hand, one from the profiler."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import slomofast as sf
from slomofast.bench.profile import (
    AUGMENTATION,
    BACKWARD,
    ELEMENTWISE,
    FORWARD,
    KINDS,
    LOSSES,
    NORM,
    REST,
    WEIGHTS,
    kind_of,
    read_trace,
)
from slomofast.bench.waits import guarded, marked_parts, watch_steps
from slomofast.core.neighbours import Neighbours
from slomofast.core.optim import FlatOptimizer
from slomofast.methods import slomo_fast
from slomofast.models import load_source


def event(cat: str, name: str, start: float, length: float, thread: int = 1, **arguments: Any) -> dict[str, Any]:
    """One line of a Chrome trace; times in microseconds after an arbitrary origin."""
    return {
        "ph": "X", "cat": cat, "name": name, "ts": 5e9 + start, "dur": length, "tid": thread, "args": arguments,
    }  # fmt: skip


def launch(number: int, at: float, thread: int = 1, call: str = "cudaLaunchKernel") -> dict[str, Any]:
    return event("cuda_runtime", call, at, 4, thread, correlation=number)


def kernel(number: int, name: str, start: float, length: float, **arguments: Any) -> dict[str, Any]:
    return event("kernel", name, start, length, 7, correlation=number, **arguments)


EVENTS = [
    {"ph": "M", "name": "process_name"},
    event("user_annotation", "slomofast: step", 0, 1000),
    event("user_annotation", "slomofast: step", 1000, 1000),
    event("gpu_user_annotation", "slomofast: step", 100, 1900, 7),
    event("user_annotation", "Torch-Compiled Region", 0, 900),
    # before the first step: not counted
    event("cuda_runtime", "cudaDeviceSynchronize", -50, 20),
    # forward: convolution found by the number, norm by its name, relu by time on the thread
    event("cpu_op", "aten::conv2d", 10, 40, **{"External id": 11}),
    event("cpu_op", "aten::cudnn_convolution", 20, 20, **{"External id": 12}),
    launch(1, 25),
    kernel(1, "sm90_xmma_something", 100, 300, **{"External id": 12}),
    launch(2, 60, call="cuLaunchKernelEx"),
    kernel(2, "_norm_apply", 400, 100),
    event("cpu_op", "aten::relu", 80, 20),
    launch(3, 85),
    kernel(3, "void at::native::vectorized_elementwise_kernel<4>", 500, 50),
    # backward, on a thread of its own
    event("cpu_op", "autograd::engine::evaluate_function: ConvolutionBackward0", 200, 100, 2),
    event("cpu_op", "aten::convolution_backward", 210, 80, 2, **{"External id": 30}),
    launch(4, 220, 2),
    kernel(4, "cutlass_thing", 550, 200, **{"external id": 30}),
    # parts of the step
    event("user_annotation", "slomofast: optimiser, EMA, restoration", 400, 50),
    launch(5, 410),
    kernel(5, "void at::native::vectorized_elementwise_kernel<4>", 750, 50),
    event("user_annotation", "slomofast: augmentation", 500, 50),
    launch(6, 510),
    kernel(6, "grid_sampler_2d_kernel", 800, 50),
    # second step: reads a number while kernel 6 runs no more, then while kernel 7 runs
    event("cpu_op", "aten::item", 1010, 30),
    event("cpu_op", "aten::_local_scalar_dense", 1012, 25),
    launch(8, 1014, call="cudaMemcpyAsync"),
    event("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 1018, 2, 7, correlation=8),
    event("cuda_runtime", "cudaStreamSynchronize", 1016, 8, correlation=9),
    launch(7, 1100),
    kernel(7, "reduce_kernel", 1110, 890),
    event("cuda_runtime", "cudaStreamSynchronize", 1200, 800, correlation=10),
    # after the last step: not counted
    event("cuda_runtime", "cudaDeviceSynchronize", 2100, 20),
]


def test_kernels_are_traced_to_what_launched_them() -> None:
    trace = read_trace({"traceEvents": EVENTS})
    assert trace.on_device and len(trace.steps) == 2
    kinds = [span.kind for span in trace.work]
    assert kinds == [FORWARD, NORM, ELEMENTWISE, BACKWARD, WEIGHTS, AUGMENTATION, REST, REST]
    assert [span.step for span in trace.work] == [0] * 6 + [1] * 2
    costs = {cost.kind: cost for cost in trace.costs()}
    assert costs[FORWARD].milliseconds == pytest.approx(0.15) and costs[FORWARD].kernels == 0.5
    assert sum(cost.percent for cost in costs.values()) == pytest.approx(100)
    assert trace.kernels == 4


def test_what_no_recording_launched_is_no_pass() -> None:
    """Kernel 2 is replayed; 1, 3 and 4 are then of the losses; optimiser and augmentation stay what they are."""
    events = [
        launch(2, 60, call="cudaGraphLaunch") if e == launch(2, 60, call="cuLaunchKernelEx") else e for e in EVENTS
    ]
    trace = read_trace({"traceEvents": events})
    kinds = [span.kind for span in trace.work if span.step == 0]
    assert kinds == [LOSSES, NORM, LOSSES, LOSSES, WEIGHTS, AUGMENTATION]
    beside = 300 + 50 + 200 + 50 + 50 + 2 + 890
    assert trace.beside_passes == pytest.approx(100 * beside / (beside + 100))
    assert math.isnan(read_trace({"traceEvents": EVENTS}).beside_passes)


def test_waits_are_told_from_reads_of_an_idle_device() -> None:
    trace = read_trace({"traceEvents": EVENTS})
    assert [call.milliseconds for call in trace.waits] == [pytest.approx(0.8)]
    assert len(trace.idle_waits) == 1
    assert trace.counts() == {
        "cudaStreamSynchronize": 2, "cudaDeviceSynchronize": 0, "cudaEventSynchronize": 0, "Memcpy DtoH": 1,
        "aten::item": 1, "aten::_local_scalar_dense": 1, "aten::nonzero": 0,
    }  # fmt: skip


def test_busy_is_the_covered_part() -> None:
    trace = read_trace({"traceEvents": EVENTS})
    assert trace.busy == pytest.approx(100 * (750 + 2 + 890) / 1900)


def test_lanes_begin_with_the_first_step_shown() -> None:
    trace = read_trace({"traceEvents": EVENTS})
    lanes = trace.lanes(1)
    assert set(lanes) == {"host", "device"}
    assert trace.marks(1)["host"] == [(0.0, pytest.approx(1.0), "step 2")]
    assert [label for *_, label in trace.marks(5)["device"]] == ["step 1", "step 2"]
    assert lanes["device"] == [(pytest.approx(0.018), pytest.approx(0.02), REST), (pytest.approx(0.11), 1.0, REST)]
    assert {kind for *_, kind in lanes["host"]} == {"launch", "wait"}
    assert len(trace.lanes(2)["device"]) == 8


@pytest.mark.parametrize(
    ("kernel", "operators", "kind"),
    [
        ("_norm_statistics", [], NORM),
        ("_norm_gradient_sums", ["NormBackward"], NORM),
        ("_image_moments", [], NORM),
        ("_image_gradient_sums", ["_NeighbourlyBackward"], NORM),
        ("_gather", [], NORM),
        ("void at::native::_scatter_gather_elementwise_kernel", ["aten::gather"], ELEMENTWISE),
        ("void at::native::batch_norm_backward_reduce", ["aten::native_batch_norm_backward"], NORM),
        ("triton_per_fused__native_batch_norm_legit_0", [], NORM),
        ("reduce_kernel", ["aten::linalg_vector_norm"], REST),
        ("sm80_xmma_wgrad_implicit_gemm", [], BACKWARD),
        ("sm90_xmma_fprop_implicit_gemm", [], FORWARD),
        ("nvjet_tst_128x64", ["aten::mm", "autograd::engine::evaluate_function: AddmmBackward0"], BACKWARD),
        ("nvjet_tst_128x64", ["aten::addmm", "aten::linear"], FORWARD),
        ("void nchwToNhwcKernel", ["aten::cudnn_convolution"], FORWARD),
        ("void multi_tensor_apply_kernel", ["aten::_foreach_lerp_"], WEIGHTS),
        ("triton_poi_fused_relu_3", [], ELEMENTWISE),
        ("void at_cuda_detail::cub::DeviceRadixSortKernel", ["aten::sort"], REST),
        ("", ["aten::clamp_min"], ELEMENTWISE),
        ("", ["aten::resolve_conj"], REST),
    ],
)
def test_kinds(kernel: str, operators: list[str], kind: str) -> None:
    assert kind_of(kernel, operators) == kind


def test_marks_are_taken_away_again() -> None:
    adapter = sf.adapt(load_source("wrn_10_1"), "slomo_fast", probe=torch.rand(4, 3, 8, 8))
    before = slomo_fast.augment, slomo_fast.ema_update, FlatOptimizer.step
    with pytest.raises(KeyError), marked_parts(adapter):
        assert all(now is not was for now, was in zip(_marked_now(), before, strict=True))
        raise KeyError
    assert _marked_now() == before


def _marked_now() -> tuple[Any, ...]:
    return slomo_fast.augment, slomo_fast.ema_update, FlatOptimizer.step


def test_a_step_on_the_cpu_falls_into_all_kinds() -> None:
    report = watch_steps(
        load_source("wrn_10_1"), [torch.rand(4, 3, 8, 8)], "slomo_fast_star", steps=2, warm_up=1
    )  # fmt: skip
    trace = report.trace
    assert not trace.on_device and report.refused is None and report.milliseconds > 0
    assert {cost.kind for cost in trace.costs()} == set(KINDS) - {LOSSES}  # told by recordings, which a CPU has not
    assert len(trace.steps) == 2 and list(trace.lanes()) == list(trace.marks()) == ["host"]
    assert trace.counts()["aten::item"] > 0  # a CPU reads its verdicts at once; there is nothing to wait for
    assert "host_name" not in report.chrome


def test_statistics_gathered_by_image_are_normalisation(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Neighbours.set
    monkeypatch.setattr(Neighbours, "set", lambda self, rows: real(self, (rows + torch.eye(len(rows))) / 2))
    report = watch_steps(load_source("wrn_10_1"), [torch.rand(4, 3, 8, 8)], "slomo_fast_star", steps=2, warm_up=1)
    assert NORM in {cost.kind for cost in report.trace.costs()}


def test_a_method_that_needs_source_data_gets_it() -> None:
    images = torch.rand(4, 3, 8, 8)
    report = watch_steps(
        load_source("wrn_10_1"), [images], "rmt", steps=1, warm_up=1, source=lambda: [(images, torch.arange(4))]
    )
    assert report.trace.costs()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestOnCuda:
    @pytest.mark.parametrize("method", ["slomo_fast", "slomo_fast_star"])
    def test_a_step_waits_for_nothing(self, method: str) -> None:
        images = [torch.rand(50, 3, 32, 32, device="cuda") for _ in range(2)]
        report = watch_steps(load_source("wrn_16_4").cuda(), images, method, precision="bf16", steps=3, warm_up=3)
        assert report.refused == ""
        assert report.trace.on_device and not report.trace.waits
        assert {FORWARD, BACKWARD, NORM, WEIGHTS, AUGMENTATION} <= {cost.kind for cost in report.trace.costs()}

    def test_a_method_that_waits_is_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from slomofast.methods.tent import Tent

        real = Tent.adapt
        monkeypatch.setattr(Tent, "adapt", lambda self, x: (real(self, x), float(real(self, x).sum()))[0])
        images = torch.rand(50, 3, 32, 32, device="cuda")
        report = watch_steps(load_source("wrn_16_4").cuda(), [images], "tent", steps=2, warm_up=2)
        assert "synchronizing" in report.refused.lower()
        calls = report.trace.waits + report.trace.idle_waits
        assert len(calls) >= 2 and report.trace.copies_to_host >= 2
        assert torch.cuda.get_sync_debug_mode() == 0


def test_there_is_no_guard_on_a_cpu() -> None:
    adapter = sf.adapt(load_source("wrn_10_1"), "source")
    assert guarded(adapter, [torch.rand(2, 3, 8, 8)]) is None
