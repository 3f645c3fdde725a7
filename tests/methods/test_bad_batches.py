"""Batches that hold NaN, and steps that break off halfway: neither leaves a trace in what a method has gathered."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import slomofast as sf
from slomofast.core.norms import TestTimeNorm
from slomofast.testing import CLASSES, batches, tiny_net

GATHERED: dict[str, tuple[str, str, Mapping[str, Any], Callable[[sf.Adapter], list[Tensor]]]] = {
    "roid": ("roid", "batch", {}, lambda a: [a.average]),
    "cmf": ("cmf", "batch", {}, lambda a: [a.average]),
    "bn ema": ("bn", "batch", {"statistics": "ema"}, lambda a: list(a.student.buffers())),
    "usual predictions": ("slomo_fast", "layer", {}, lambda a: [a.vote.usual]),
    "certainty": ("slomo_fast", "batch", {"weighting": "certainty"}, lambda a: [a.average]),
}


@pytest.mark.parametrize("name", GATHERED)
@pytest.mark.filterwarnings("ignore:.*was not finite")
def test_a_bad_batch_under_the_deferred_check_is_not_gathered(name: str) -> None:
    method, kind, options, gathered = GATHERED[name]
    adapter = sf.adapt(tiny_net(kind), method, check_input="deferred", **options)
    first, second, third = batches(3)
    adapter(first)
    before = [tensor.clone() for tensor in gathered(adapter)]
    adapter(torch.full_like(second, float("nan")))
    assert before and all(torch.equal(a, b) for a, b in zip(before, gathered(adapter), strict=True))
    with pytest.raises(sf.InputError, match="held NaN or Inf"):
        adapter(third)
    adapter(third)
    assert not all(torch.equal(a, b) for a, b in zip(before, gathered(adapter), strict=True))


class Breaking(nn.Module):
    """A network that breaks off at a chosen pass."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.left = network, -1

    def forward(self, x: Tensor) -> Tensor:
        if self.left == 0:
            self.left = -1
            raise RuntimeError("out of memory")
        self.left -= 1
        return self.network(x)


@pytest.mark.parametrize(("method", "options"), [("bn", {"statistics": "ema"}), ("rotta", {"update_every": 4})])
def test_a_step_that_breaks_off_does_not_leave_the_statistics_moving(method: str, options: dict[str, Any]) -> None:
    adapter = sf.adapt(tiny_net(), method, **options)
    first, second = batches(2)
    adapter(first)
    adapter.student.body = Breaking(adapter.student.body)
    adapter.student.body.left = 0
    with pytest.raises(RuntimeError, match="out of memory"):
        adapter(second)
    assert not any(layer.measuring for layer in adapter.modules() if isinstance(layer, TestTimeNorm))
    before = [buffer.clone() for buffer in adapter.buffers()]
    adapter.predict(first)
    assert all(torch.equal(a, b) for a, b in zip(before, adapter.buffers(), strict=True))


def test_sar_comes_back_from_nearby_when_its_second_pass_breaks_off() -> None:
    adapter = sf.adapt(tiny_net(), "sar", entropy_margin=1.0)
    first, second = batches(2)
    adapter(first)
    before = [p.clone() for p in adapter.student.parameters()]
    adapter.student.body = Breaking(adapter.student.body)
    adapter.student.body.left = 1
    with pytest.raises(RuntimeError, match="out of memory"):
        adapter(second)
    assert all(torch.equal(a, b) for a, b in zip(before, adapter.student.parameters(), strict=True))


def test_mirror_images_are_judged_by_the_first_batch_that_has_sure_predictions() -> None:
    adapter = sf.adapt(tiny_net(), "slomo_fast")
    adapter.prepare(batches(1)[0])
    unsure = torch.zeros(8, CLASSES)
    sure = 20.0 * nn.functional.one_hot(torch.arange(8) % CLASSES, CLASSES).float()
    adapter._with_mirror_image(unsure, unsure)
    adapter.steps = 1
    assert adapter.agreement < 0 and adapter.logged["mirror_agreement"] == 0
    adapter._with_mirror_image(sure, sure)
    assert adapter.agreement == 1
    adapter._with_mirror_image(sure, sure.roll(1, 1))
    torch.testing.assert_close(adapter.agreement, torch.tensor(0.9))


def test_eata_takes_a_second_gradient_of_plain_passes_alone() -> None:
    """Compiled and recorded passes give their gradient once."""
    adapter = sf.adapt(tiny_net(), "eata", preset="source_free", fisher_images=40)
    passes: list[int] = []

    def recorder(x: Tensor) -> Tensor:
        passes.append(len(x))
        return adapter.student.body(x)

    stream = batches(4, size=20)
    adapter.prepare(stream[0])
    adapter.student.recorder = recorder
    for x in stream:
        adapter(x)
    assert adapter.fisher_seen == 40 and passes == [20, 20]
