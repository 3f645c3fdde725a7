"""From several looks at a batch to one prediction: mirror images, and members that vote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from slomofast.losses import label_calibration

MIRROR_HOLDS = 0.7  # share of sure predictions that must be the same for the mirror image
USUAL_SHARE = 0.05  # of a batch in the mean of what is predicted


def mirror_holds(agreement: Tensor) -> Tensor:
    """Whether a mirror image means the same, by the share of sure predictions that are the same for it."""
    return agreement >= MIRROR_HOLDS


def mirrored(x: Tensor, agreement: Tensor) -> Tensor:
    """The mirror images, where they mean the same."""
    return torch.where(mirror_holds(agreement), x.flip(-1), x)


class Mirror(nn.Module):
    """A network that looks at the mirror image, or answers with the mean of both looks."""

    agreement: Tensor

    def __init__(self, network: nn.Module, agreement: Tensor, both: bool) -> None:
        super().__init__()
        self.network, self.both = network, both
        self.register_buffer("agreement", agreement)

    def forward(self, x: Tensor) -> Tensor:
        other = cast(Tensor, self.network(mirrored(x, self.agreement)))
        return (other + self.network(x)) / 2 if self.both else other


class Vote(nn.Module):
    """The members' logits added up, calibrated for the batch's classes and brought back to one network's scale.

    Args:
        classes: how many there are.
        looks: how often members looked at the images, where it was not once; they count as often.
        calibrate: multiply the posterior by the batch's estimated class prior.
        relative: that prior is relative to the mean prediction of the last batches, see `remember`.
        smoothing: added to every class count of the prior.
        soften: divide the sum by the number of looks.
    """

    usual: Tensor

    def __init__(
        self,
        classes: int,
        looks: Mapping[str, int],
        *,
        calibrate: bool = True,
        relative: bool = False,
        smoothing: float = 1.0,
        soften: bool = True,
    ) -> None:
        super().__init__()
        self.looks, self.calibrate, self.relative = looks, calibrate, relative
        self.smoothing, self.soften = smoothing, soften
        self.register_buffer("usual", torch.full((classes,), 1.0 / classes))

    def forward(self, logits: Mapping[str, Tensor]) -> Tensor:
        total = self._sum(logits)
        if self.calibrate:
            total = label_calibration(total, self.smoothing, self.usual if self.relative else None)
        if self.soften:
            total = total / sum(self.looks.get(name, 1) for name in logits)
        return total.log_softmax(1) if self.calibrate else total

    @torch.no_grad()
    def remember(self, logits: Mapping[str, Tensor], steps: int, usable: Tensor) -> None:
        """Take a batch into the mean of what is predicted: of all batches at first, then of about the last twenty.

        Nothing is kept where nothing is compared with it, nor of a batch that is not `usable` (0-d).
        """
        if not (self.calibrate and self.relative):
            return
        predicted = self._sum(logits).softmax(1)
        now = (predicted.sum(0) + 1) / (len(predicted) + len(self.usual))
        self.usual.lerp_(torch.where(usable & torch.isfinite(now), now, self.usual), max(USUAL_SHARE, 1 / (steps + 1)))

    def _sum(self, logits: Mapping[str, Tensor]) -> Tensor:
        return torch.stack([self.looks.get(name, 1) * member.float() for name, member in logits.items()]).sum(0)
