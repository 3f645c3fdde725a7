"""Passes replayed as CUDA graphs give what the networks give, and leave everything else as it was."""

import copy
import subprocess
import sys

import pytest
import torch

import slomofast as sf
from slomofast.core.graphs import Recorder
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


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("method", sf.list_methods())
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replayed_steps_agree_with_plain_ones(method: str, precision: str) -> None:
    outputs = {}
    stream = [x.cuda() for x in batches(10, size=32)]
    stream.insert(6, stream[0][:5])  # a short batch in between
    labels = torch.arange(32) % 4
    for graphs in (False, True):
        adapter = sf.adapt(tiny_net().cuda(), method, graphs=graphs, precision=precision, channels_last=True)
        if adapter.needs_source:
            adapter.fit_source([(stream[0], labels), (stream[1], labels)])
        outputs[graphs] = [adapter(x) for x in stream]
        held = outputs[graphs][-1].clone()
        adapter.predict(stream[0])
        assert torch.equal(held, outputs[graphs][-1])  # what was returned is not written to again
        if graphs and method in ("tent", "slomo_fast_star"):
            assert adapter.student.recorder.passes
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
