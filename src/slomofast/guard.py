"""A watch over an adapter in production: notices without labels that it goes astray, and puts it right.

What a network is surest of it rarely gets wrong, also under a shift, as long as its weights are the trained ones. So a
reference that never learns, the source network with the statistics of the batch, looks at a batch now and then, and
the adapter is asked for the same answer on the quarter it is surest of. A healthy adapter gives it nearly always,
however much better it has become on the rest; one that collapses does not.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from slomofast.core.adapter import Adapter
from slomofast.core.errors import ConfigError, ModelError, unknown_name
from slomofast.core.fingerprint import model_fingerprint
from slomofast.core.norms import norm_kinds
from slomofast.core.registry import describe

Action = Literal["roll_back", "reset", "freeze", "warn"]
Reference = Literal["auto", "batch", "source"]
SOON = 50  # windows in which one alarm counts as the next of another
SMALL = 16  # images of a batch whose own statistics say too little of them
ENOUGH = 48  # answers that are compared before a share of them says anything


@dataclass(frozen=True)
class Alarm:
    """One time the guard stepped in: after which step, how low the agreement was, and what it did."""

    step: int
    agreement: float
    action: str


class Guard:
    """An adapter that is stopped when it goes astray. Call it, and `predict`, as the adapter itself.

    Every `every` batches the reference looks at the batch, too (one forward pass, and the host waits for the device
    once). If the agreement on what the reference is surest of is below `lowest` in `window` looks together (in more of
    small batches, until 48 answers are compared):

    - `roll_back` returns to an earlier state in which the agreement was high, at least one window old; the next alarm,
      if it comes soon, to the state before the first batch,
    - `reset` returns to the state before the first batch,
    - `freeze` rolls back and goes on without learning, `warn` only says so.

    The batch at hand is then predicted again. If `most` alarms come within fifty windows, learning ends with the last.

    Args:
        adapter: what to watch, before its first batch or later.
        model: the source model it was made from.
        action: what to do.
        every: batches between two looks.
        window: looks that count together.
        lowest: least share of equal answers.
        surest: share of a batch that is compared.
        most: alarms within fifty windows after which learning ends; 0 for never.
        reference: `batch` normalises with the statistics of the batch, `source` with those of the model; `auto` takes
            the batch's where there is BatchNorm and the batch has 16 images.
        on_alarm: called with each `Alarm`, to tell somebody.

    Two states are kept where the adapter is: weights, optimiser states and buffers (`warn` and `reset` keep none).

    >>> import slomofast as sf
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.LayerNorm(8), nn.Linear(8, 3))
    >>> guard = sf.Guard(sf.adapt(net, "tent"), net, every=2)
    >>> for _ in range(4):
    ...     logits = guard(torch.rand(20, 3, 2, 2))
    >>> guard.agreement > 0.8, guard.alarms, guard.frozen
    (True, [], False)
    """

    def __init__(
        self,
        adapter: Adapter,
        model: nn.Module,
        action: Action = "roll_back",
        *,
        every: int = 5,
        window: int = 4,
        lowest: float = 0.95,
        surest: float = 0.25,
        most: int = 3,
        reference: Reference = "auto",
        on_alarm: Callable[[Alarm], None] | None = None,
    ) -> None:
        if not isinstance(adapter, Adapter):
            raise ModelError(f"expected an adapter, as sf.adapt makes it, got {type(adapter).__name__}")
        if adapter.source_fingerprint not in ("", model_fingerprint(model)):
            raise ModelError("the adapter was made from another model than the one given; give its source model")
        if action not in get_args(Action):
            raise unknown_name("action", action, get_args(Action))
        if reference not in get_args(Reference):
            raise unknown_name("reference", reference, get_args(Reference))
        for name, value, least in (("every", every, 1), ("window", window, 1), ("most", most, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"{name} is {value!r}; give a whole number from {least}")
        for name, share in (("lowest", lowest), ("surest", surest)):
            if not 0 < share <= 1:
                raise ConfigError(f"{name} is {share!r}; give a share above 0 and at most 1, such as 0.8")
        self.adapter, self.action = adapter, action
        self.every, self.window, self.lowest, self.surest, self.most = every, window, lowest, surest, most
        self.on_alarm = on_alarm
        batch_norm = reference == "batch" or (reference == "auto" and "batch" in norm_kinds(model))
        looks = {"source": "source"} | ({"batch": "bn"} if batch_norm else {})
        self._references = {name: _plain(model, method, adapter) for name, method in looks.items()}
        self._least = SMALL if reference == "auto" else 1
        self._looks: deque[tuple[int, int]] = deque()  # equal answers, and how many were compared
        self._good: list[dict[str, Any]] = []  # two states with a high agreement, the older one first
        self.seen = self._kept_at = 0
        self.frozen = False
        self.alarms: list[Alarm] = []
        self._pardoned = 0  # alarms before the last thaw

    def __call__(self, x: Tensor) -> Tensor:
        """Predict a batch and learn from it, unless frozen; logits as the adapter returns them."""
        if self.frozen:
            return self.adapter.predict(x)
        logits = self.adapter(x)
        self.seen += 1
        if self.seen % self.every:
            return logits
        self._look(x, logits)
        if not self.ready:
            return logits
        if self.agreement < self.lowest:
            self._step_in()
            return logits if self.action == "warn" else self.adapter.predict(x)
        if self.agreement >= (1 + self.lowest) / 2:
            self._remember()
        return logits

    def predict(self, x: Tensor) -> Tensor:
        """Predict a batch without learning."""
        return self.adapter.predict(x)

    @property
    def agreement(self) -> float:
        """Share of equal answers where the reference is surest, in the last looks; 1 before the first."""
        return sum(equal for equal, _ in self._looks) / self._compared if self._looks else 1.0

    @property
    def ready(self) -> bool:
        """Whether enough answers have been compared for the agreement to count."""
        return len(self._looks) >= self.window and self._compared >= ENOUGH

    @property
    def _compared(self) -> int:
        return sum(compared for _, compared in self._looks)

    @property
    def logged(self) -> dict[str, Tensor]:
        """What the adapter logged in its last step, and the agreement."""
        return {**self.adapter.logged, "guard_agreement": torch.tensor(self.agreement)}

    def freeze(self) -> None:
        """Go on without learning."""
        self.frozen = True

    def thaw(self) -> None:
        """Learn again; the alarms so far no longer count."""
        self.frozen = False
        self._pardoned = len(self.alarms)
        self._looks.clear()

    def reset(self) -> None:
        """Return the adapter to the state before its first batch, and forget what was watched."""
        self.adapter.reset()
        self._good.clear()
        self.seen = self._kept_at = 0
        self.alarms.clear()
        self.thaw()

    def check(self) -> None:
        """What the adapter has still to say of its input."""
        self.adapter.check()

    @torch.no_grad()
    def _look(self, x: Tensor, logits: Tensor) -> None:
        """Compare the answers on what the reference is surest of; what is not finite agrees with nothing."""
        small = len(x) < self._least or "batch" not in self._references
        reference = self._references["source" if small else "batch"](x).softmax(1)
        sure, label = reference.max(1)
        chosen = sure.topk(max(1, round(self.surest * len(x)))).indices
        same = (logits.argmax(1) == label) & logits.isfinite().all(1)
        self._looks.append((int(same[chosen].sum()), len(chosen)))
        while len(self._looks) > self.window and self._compared - self._looks[0][1] >= ENOUGH:
            self._looks.popleft()

    def _remember(self) -> None:
        """Keep the state, if the one before is a window old."""
        old = len(self._looks) * self.every
        if self.action in ("roll_back", "freeze") and self.seen - self._kept_at >= old:
            self._good = [*self._good[-1:], deepcopy(self.adapter.state_dict())]
            self._kept_at = self.seen

    def _step_in(self) -> None:
        """Do what is to be done, and say so."""
        soon = SOON * self.window * self.every
        before = sum(self.seen - alarm.step <= soon for alarm in self.alarms[self._pardoned :])
        freezes = self.action == "freeze" or (self.action != "warn" and 0 < self.most <= before + 1)
        back = self._good[0] if self._good and not before and self.action != "reset" else None
        if self.action != "warn" and back is None:
            self.adapter.reset()
            self._good.clear()
        elif back is not None:
            self.adapter.load_state_dict(back)
            del self._good[1:]  # the younger one may be what led here
        done = "reset" if self.action == "roll_back" and back is None else self.action
        alarm = Alarm(self.seen, self.agreement, done + (" and freeze" if freezes and done != "freeze" else ""))
        self.frozen = freezes
        self._looks.clear()
        self.alarms.append(alarm)
        warnings.warn(
            f"{self.adapter.method} agrees with the source on {alarm.agreement:.0%} of what that is surest of, after "
            f"{alarm.step} batches: {alarm.action}",
            stacklevel=3,
        )
        if self.on_alarm is not None:
            self.on_alarm(alarm)


def _plain(model: nn.Module, method: str, like: Adapter) -> Adapter:
    """A reference that does not learn, computed as the watched adapter is."""
    kind = describe(method).adapter
    return kind(model, kind.Config.build({}), replace(like.runtime, check_input="off"))
