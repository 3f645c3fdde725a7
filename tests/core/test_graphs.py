"""Passes replayed as CUDA graphs give what the networks give, and leave everything else as it was."""

import copy

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
