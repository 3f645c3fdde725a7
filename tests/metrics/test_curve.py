"""Recording a step leaves the device to its work."""

import torch
from made_steps import step
from torch.utils._python_dispatch import TorchDispatchMode

from slomofast.metrics import Curve, Step


class Copies(TorchDispatchMode):
    """Notes, for every copy to a device, whether the host may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.free: list[bool] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        named = kwargs or {}
        if function is torch.ops.aten._to_copy.default and str(named.get("device")) == "meta":
            self.free.append(bool(named.get("non_blocking")))
        return function(*args, **named)


def test_copies_to_the_device_are_not_waited_for() -> None:
    mixed = step(0, [0, 0, 1, 2, 2, 1, 0, 0, 1, 2], 4)
    there = Step(mixed.logits.to("meta"), mixed.target, mixed.domain, mixed.severity)
    with Copies() as copies:
        Curve().update(there)
    assert copies.free == [True, True]  # the targets and the domains


def test_a_mixed_batch_is_taken_apart() -> None:
    curve = Curve()
    curve.update(step(0, [5, 5, 1, 2, 2, 1, 5, 5, 1, 2], 4))
    assert curve["by_domain"] == [[[1, 3, 1], [2, 3, 1], [5, 4, 2]]]
