"""Passes replayed as CUDA graphs give what the networks give, and leave everything else as it was."""

import copy
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch

import slomofast as sf
from slomofast.core import graphs
from slomofast.core.errors import ModelError
from slomofast.core.graphs import Recorder
from slomofast.core.norms import measuring
from slomofast.core.split import Classifier
from slomofast.streams.prefetch import ahead
from slomofast.testing import batches, tiny_net

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_nothing_is_recorded_on_a_cpu() -> None:
    adapter = sf.adapt(tiny_net(), "slomo_fast", graphs=True)
    plain = sf.adapt(tiny_net(), "slomo_fast")
    for x in batches(4):
        torch.testing.assert_close(adapter(x), plain(x), rtol=0, atol=0)
    assert adapter.student.recorder is None


def test_a_copied_network_has_no_recorder() -> None:
    adapter = sf.adapt(tiny_net(), "tent")
    adapter(batches(1)[0])
    adapter.student.recorder = Recorder(adapter.student.body, "fp32")
    assert copy.deepcopy(adapter.student).recorder is None
    assert adapter.export()(batches(1)[0]).shape[0] == len(batches(1)[0])


def test_one_recorded_pass_serves_all_images_of_memo() -> None:
    adapter = sf.adapt(tiny_net(), "memo", views=2)
    x = batches(1)[0][:4]
    adapter(x)
    adapter.student.recorder = Recorder(adapter.student.body, "fp32")  # which counts on any device
    adapter(x)
    learning = [key[-1] for key in adapter.student.recorder._seen if key[2]]
    assert learning == [0]  # always the first of the passes that learn


def test_passes_that_gather_statistics_are_recorded_apart_from_those_that_use_them() -> None:
    adapter = sf.adapt(tiny_net(), "rotta", capacity=8, update_every=8)
    stream = batches(4, size=32)
    adapter(stream[0])  # the bank is full after it
    adapter.student.recorder = Recorder(adapter.student.body, "fp32")  # which counts on any device
    adapter.teacher.recorder = Recorder(adapter.teacher.body, "fp32")
    for x in stream[1:]:
        adapter(x)
    assert {key[3:] for key in adapter.student.recorder._seen} == {(True, 0)}  # one serves all updates of a batch
    assert {(key[0][0], key[3]) for key in adapter.teacher.recorder._seen} == {(32, False), (8, True)}


def test_recording_leaves_no_trace_in_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = sf.adapt(tiny_net(), "rotta")
    x = batches(1)[0]
    adapter.prepare(x)
    network = adapter.teacher.body

    def run(view: torch.nn.Module, sample: torch.Tensor) -> torch.Tensor:  # what a recording does to the buffers
        with torch.no_grad():
            for _ in range(3):
                view(sample)
        return sample

    monkeypatch.setattr(graphs, "_Replay", run)
    places = [(buffer.data_ptr(), buffer.clone()) for buffer in network.buffers()]
    with measuring(adapter):
        Recorder(network, "fp32")._record(x, learning=False)
        assert places
        for buffer, (place, value) in zip(network.buffers(), places, strict=True):
            assert buffer.data_ptr() == place and torch.equal(buffer, value)
        run(network, x)
    assert not all(torch.equal(buffer, value) for buffer, (_, value) in zip(network.buffers(), places, strict=True))


def test_after_a_broken_recording_no_other_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("operation not permitted\nand more")

    monkeypatch.setattr(graphs, "_Replay", fail)
    monkeypatch.setattr(Recorder, "broken", "")
    recorder = Recorder(torch.nn.Flatten(), "fp32")
    with pytest.raises(ModelError, match=r"\(operation not permitted\); start a new process, with graphs=False"):
        recorder._record(torch.rand(2, 3), learning=False)
    assert gc.isenabled()
    with pytest.raises(ModelError, match="an earlier failure"):
        Recorder(torch.nn.Flatten(), "fp32")


def test_no_batch_is_made_while_a_pass_is_recorded() -> None:
    made: list[int] = []

    def batches_made() -> Iterator[int]:
        for k in range(6):
            made.append(k)
            yield k

    stream = ahead(batches_made(), 2)
    with graphs.RECORDING:
        found = threading.Thread(target=lambda: made.append(-next(stream)), daemon=True)
        found.start()
        time.sleep(0.2)
        assert not made
    found.join()
    assert list(stream) == [1, 2, 3, 4, 5] and sorted(made) == [0, 0, 1, 2, 3, 4, 5]


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("method", sf.list_methods())
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replayed_steps_agree_with_plain_ones(method: str, precision: str) -> None:
    outputs = {}
    stream = [x.cuda() for x in batches(10, size=32)]
    stream.insert(6, stream[0][:5])  # a short batch in between
    labels = torch.arange(32) % 4
    for recorded in (False, True):
        often = {"rotta": {"update_every": 8, "capacity": 8}, "slomo_fast_star": {"past_share": 0.5}}.get(method, {})
        adapter = sf.adapt(tiny_net().cuda(), method, graphs=recorded, precision=precision, channels_last=True, **often)
        if adapter.needs_source:
            adapter.fit_source([(stream[0], labels), (stream[1], labels)])
        outputs[recorded] = [adapter(x) for x in stream]
        held = outputs[recorded][-1].clone()
        adapter.predict(stream[0])
        assert torch.equal(held, outputs[recorded][-1])  # what was returned is not written to again
        if recorded and method in ("tent", "rotta", "petta", "slomo_fast_star"):
            weights_alone = {"anchor", "recent", "past"}  # nobody looks with these
            looking = [
                m for name, m in adapter.named_children() if isinstance(m, Classifier) and name not in weights_alone
            ]
            assert looking and all(network.recorder.passes for network in looking)
            adapter.reset()
            torch.testing.assert_close(adapter(stream[0]), outputs[True][0], rtol=1e-3, atol=1e-3)
    bound = {"fp32": 2e-3, "bf16": 0.25}[precision]
    for one, other in zip(outputs[False], outputs[True], strict=True):
        torch.testing.assert_close(one, other, rtol=bound, atol=bound)


class Dropping(torch.nn.Module):
    """A network that lets go of something old while it is being recorded, and makes much garbage."""

    def __init__(self, old: object) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 4, 3)
        self.old = [old]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            self.old.clear()
            for _ in range(5000):
                ring: list[object] = []
                ring.append(ring)
        return self.layer(x).mean((2, 3))


@pytest.mark.gpu
@needs_cuda
def test_an_old_adapter_is_not_freed_while_a_pass_is_recorded() -> None:
    images = torch.rand(16, 3, 16, 16, device="cuda")
    first = Recorder(torch.nn.Conv2d(3, 4, 3).cuda().requires_grad_(False), "fp32")
    for _ in range(4):
        first(images)
    ring: list[object] = [first, torch.rand(2**22, device="cuda")]
    ring.append(ring)
    network = Dropping(ring).cuda().requires_grad_(False)
    del first, ring
    second = Recorder(network, "fp32")
    for _ in range(6):
        torch.testing.assert_close(second(images), network.layer(images).mean((2, 3)), rtol=1e-3, atol=1e-3)
    assert second.passes


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("method", ["bn", "tent", "slomo_fast_star"])
def test_batches_made_on_the_device_by_another_thread_do_not_disturb(method: str) -> None:
    def made() -> Iterator[torch.Tensor]:
        for x in batches(12, size=32):
            for k in range(20):  # new memory, copies both ways and waits, as decoding and corrupting images does
                torch.rand(2**20 + 1000 * k, device="cuda").sum().item()
            yield x.to("cuda")

    adapter = sf.adapt(tiny_net().cuda(), method, graphs=True)
    plain = sf.adapt(tiny_net().cuda(), method)
    for x in ahead(made(), 2):
        torch.testing.assert_close(adapter(x), plain(x), rtol=2e-3, atol=2e-3)
    assert any(recorder.passes for recorder in adapter._recorders())


WAITING = """
import torch
from slomofast.core.errors import ModelError
from slomofast.core.graphs import Recorder

class Waiting(torch.nn.Module):
    def forward(self, x):
        return x.mean((2, 3)) * float(x.sum())

recorder, images = Recorder(Waiting(), "fp32"), torch.rand(4, 3, 8, 8, device="cuda")
try:
    for _ in range(5):
        recorder(images)
except ModelError as error:
    print(error)
"""


@pytest.mark.gpu
@needs_cuda
def test_a_pass_that_cannot_be_recorded_is_an_error() -> None:
    """In a process of its own, since CUDA is in no good state afterwards."""
    done = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True)
    assert "graphs=False" in done.stdout, done.stderr
