"""Which methods make the host wait for a CUDA device in a step: only those that say so."""

import pytest
import torch

import slomofast as sf
from slomofast.testing import batches, synthetic_batch, tiny_net

WAITING = {
    "cotta": "whether the anchor is unsure",
    "deyo": "number of sure images",
    "dpcore": "whether the domain is known",
    "lame": "end of the iteration",
    "lcotta": "axes of the queue, once per sampled gradient",
    "petta": "which images enter the bank, and the divergence",
    "reservoirtta": "whether a domain was opened",
    "rotta": "which images enter the bank",
    "tca": "whether the anchor is unsure",
}
NEVER = {
    "deyo": {"subset": "mask"},
    "lcotta": {"interval": 100},
    "reservoirtta": {"init": "source"},
    "tca": {"threshold": 0.0},
}
"""Options under which a waiting method does not wait."""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("net", ["batch", "layer"])
@pytest.mark.parametrize("method", [m for m in sf.list_methods() if m not in WAITING or m in NEVER])
def test_a_step_does_not_wait_for_the_device(method: str, net: str, precision: str) -> None:
    options = NEVER.get(method, {})
    adapter = sf.adapt(tiny_net(net).cuda(), method, check_input="off", precision=precision, **options)
    if adapter.needs_source:
        generator = torch.Generator().manual_seed(9)
        adapter.fit_source([synthetic_batch(16, generator) for _ in range(6)])
    stream = [x.cuda() for x in batches(4)]
    for x in stream[:2]:  # first calls build networks and choose kernels
        adapter(x)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        logits = adapter(stream[2])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(logits).all()
