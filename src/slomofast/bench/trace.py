"""What a run collects besides its curve: the adapter's own figures, forgetting, prototypes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from slomofast.memory import PrototypeQueues
from slomofast.metrics import forgetting

_CLASSES, _DIRECTIONS = 20, 24
_FLUSH = 64  # steps whose figures may wait on the device; bounds memory, and the host waits once in this many steps


class Diagnostics:
    """The figures an adapter logs at each step, one list a name; None where a step logged nothing under it.

    >>> figures = Diagnostics()
    >>> figures.update({"entropy": 0.5}); figures.update({"queue": 3})
    >>> figures.to_dict()
    {'entropy': [0.5, None], 'queue': [None, 3.0]}
    """

    def __init__(self, columns: Mapping[str, Sequence[float | None]] | None = None, steps: int = 0) -> None:
        self._columns: dict[str, list[float | None]] = {k: list(v) for k, v in (columns or {}).items()}
        self._steps = steps
        self._waiting: list[dict[str, Tensor | float]] = []

    def update(self, values: Mapping[str, Tensor | float]) -> None:
        """Take the figures of one step; tensors are read from the device later, many at once."""
        self._waiting.append({k: v.detach() if isinstance(v, Tensor) else float(v) for k, v in values.items()})
        if len(self._waiting) >= _FLUSH:
            self._flush()

    def to_dict(self) -> dict[str, list[float | None]]:
        """All lists, each as long as there were steps; six significant digits."""
        self._flush()
        return {k: list(v) for k, v in self._columns.items()}

    @property
    def steps(self) -> int:
        """How many steps were taken in."""
        return self._steps + len(self._waiting)

    def _flush(self) -> None:
        tensors = [v.float().reshape(()) for step in self._waiting for v in step.values() if isinstance(v, Tensor)]
        device = next((t.device for t in tensors if t.device.type != "cpu"), torch.device("cpu"))
        numbers = iter(torch.stack([t.to(device) for t in tensors]).tolist() if tensors else ())
        for step in self._waiting:
            for name, value in step.items():
                column = self._columns.setdefault(name, [])
                column.extend([None] * (self._steps - len(column)))
                number = next(numbers) if isinstance(value, Tensor) else value
                column.append(float(f"{number:.6g}") if number - number == 0 else None)
            self._steps += 1
        self._waiting.clear()
        for column in self._columns.values():
            column.extend([None] * (self._steps - len(column)))


def member_sums(logits: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Summed logits of every combination of members, by their names joined with +."""
    found = {}
    for count in range(1, len(logits) + 1):
        for names in itertools.combinations(logits, count):
            found["+".join(names)] = torch.stack([logits[name].float() for name in names]).sum(0)
    return found


def member_errors(logits: Mapping[str, Tensor], target: Tensor) -> dict[str, Tensor]:
    """Error in percent of every combination of members on one batch, named `error_<members>`; stays on the device."""
    return {
        f"error_{name}": 100 * (total.argmax(1) != target.to(total.device)).float().mean()
        for name, total in member_sums(logits).items()
    }


def member_figures(diagnostics: Mapping[str, Sequence[float | None]], counts: Sequence[int]) -> dict[str, float]:
    """Error in percent of every combination of members over a whole run, from its batches' errors and sizes.

    >>> member_figures({"error_student": [10.0, 40.0], "loss": [1.0, 2.0]}, [200, 100])
    {'student': 20.0}
    """
    found = {}
    for name, errors in diagnostics.items():
        if name.startswith("error_"):
            known = [(error, count) for error, count in zip(errors, counts, strict=True) if error is not None]
            found[name.removeprefix("error_")] = sum(e * c for e, c in known) / max(1, sum(c for _, c in known))
    return found


def forgetting_figures(held_out: Mapping[str, Any]) -> dict[str, Any]:
    """What a record says about forgetting: the figures of the adapter's output, its matrix, and its members'.

    `held_out` is what `ForgettingProbe.to_dict` gives. Row i of `matrix` is the accuracy (percent) by domain after
    visit i, None for domains not seen by then.
    """
    figures = forgetting(held_out)
    names = held_out["domains"]
    visits = [names[v[0]] if len(v) == 1 else "mixed" for v in held_out["visits"]]
    members = {m: {**figures[m], "matrix": held_out["accuracy"][m]} for m in figures if m != "output"}
    return {
        **figures.get("output", {}),
        "matrix": held_out["accuracy"].get("output", []),
        "domains": names,
        "visits": visits,
        "cycles": held_out["cycles"],
        "positions": held_out["positions"],
        "members": members,
    }


def prototype_features(adapter: Any) -> dict[str, Any] | None:
    """Features a method kept by class at the end of a run, for a picture; None for methods that keep none.

    At most `_CLASSES` classes, reduced to their `_DIRECTIONS` widest directions: enough for a map of two dimensions.
    """
    queues = next((m for m in adapter.modules() if isinstance(m, PrototypeQueues)), None)
    if queues is None:
        return None
    filled = torch.isfinite(queues.entropies[:_CLASSES])
    rows = queues.features[:_CLASSES][filled].float().cpu()
    if len(rows) < 3:
        return None
    centred = rows - rows.mean(0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    flat = centred @ directions[:_DIRECTIONS].T
    classes = torch.arange(len(filled)).repeat_interleave(filled.sum(1).cpu())
    numbers = [[float(f"{value:.4g}") for value in row] for row in flat.tolist()]
    return {"features": numbers, "labels": classes.tolist()}
