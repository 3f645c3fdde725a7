"""Choosing hyper-parameters without looking at the test corruptions.

The validation stream is made of the four extra corruptions at severities 3 and 5, each in a cyclic order whose first
cycle is the continual one, or in another setting; severities may also follow one another. A method's candidates are all
combinations of the given values. Where a method predicts with several members, every combination of them is scored from
the same run, since members do not influence learning.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import slomofast
from slomofast.bench.evaluate import evaluate
from slomofast.bench.source import clean_batches
from slomofast.bench.steps import append_rows, columns_of
from slomofast.bench.trace import member_sums
from slomofast.core.errors import ConfigError, DataError
from slomofast.core.registry import describe
from slomofast.corruptions import EXTRA
from slomofast.data.catalog import DataSet
from slomofast.streams import Stream, make_setting

SEVERITIES = (3.0, 5.0)
COLUMNS = ["method", "options", "error", "by_severity_and_cycle", "members"]  # of a table, before the facts


@dataclass
class Candidate:
    """One combination of options and its errors in percent: by severity and cycle, their mean, and by members.

    A severity that comes again counts its cycles on.
    """

    options: dict[str, Any]
    errors: dict[tuple[float, int], float] = field(default_factory=dict)
    members: dict[str, float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """Mean over severities and cycles."""
        return sum(self.errors.values()) / len(self.errors)

    @property
    def best_members(self) -> str:
        """The combination of members with the lowest error, with that error."""
        if not self.members:
            return ""
        name = min(self.members, key=self.members.__getitem__)
        return f"{name} {self.members[name]:.2f}"


def combinations(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All choices of one value per option.

    >>> combinations({"lr": [1, 2], "restore": [0]})
    [{'lr': 1, 'restore': 0}, {'lr': 2, 'restore': 0}]
    """
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def search(
    method: str,
    candidates: Sequence[Mapping[str, Any]],
    model: nn.Module,
    data: DataSet,
    *,
    cycles: int = 2,
    severities: Sequence[float] = SEVERITIES,
    images_per_domain: int | None = None,
    batch_size: int = 200,
    seed: int = 0,
    runtime: Mapping[str, Any] | None = None,
    preset: str | None = None,
    setting: str = "cyclic",
    in_turn: bool = False,
    source: DataSet | None = None,
    done: Callable[[Candidate], None] = lambda candidate: None,
) -> list[Candidate]:
    """Run every candidate over the validation stream; `done` hears of each as it ends. Best first.

    Options that the method refuses are found before the first candidate runs.

    `cycles` belongs to the setting `cyclic`. `in_turn`: severities follow one another in one long stream instead of
    meeting a fresh adapter each; the mild ones at its end show what the method has lost on the way. `source`: training
    images, for methods that need them.
    """
    tested = set(data.domains) - set(EXTRA)
    if tested:
        raise ConfigError(f"the search must not see test corruptions; open the data with domains={list(EXTRA)}")
    for options in candidates:
        describe(method).adapter.Config.build(options, preset)
    results = []
    for options in candidates:
        candidate = Candidate(dict(options))
        scores: dict[str, list[float]] = {}
        adapter = None
        for severity in severities:
            stream = Stream(
                make_setting(setting, cycles=cycles) if setting == "cyclic" else setting,
                data,
                batch_size=batch_size,
                seed=seed,
                severity=severity,
                images_per_domain=images_per_domain,
            )
            if adapter is None or not in_turn:
                adapter = slomofast.adapt(model, method, preset=preset, seed=seed, **(runtime or {}), **options)
                if adapter.needs_source:
                    if source is None:
                        raise ConfigError(f"{method} learns from training images first: name them with --source")
                    adapter.fit_source(clean_batches(source, batch_size, method))
            passed = sum(known == severity for known, _ in candidate.errors)
            counts: dict[int, int] = {}
            wrong: dict[int, dict[str, Tensor]] = {}
            for step in evaluate(adapter, stream, timing=False):
                counts[step.cycle] = counts.get(step.cycle, 0) + len(step.target)
                held = wrong.setdefault(step.cycle, {})
                for name, logits in {"": step.logits, **member_sums(adapter.member_logits)}.items():
                    missed = (logits.argmax(1) != step.target).sum()
                    held[name] = held[name] + missed if name in held else missed
            for cycle, sums in wrong.items():
                for name, value in sums.items():
                    error = 100.0 * float(value) / counts[cycle]
                    if name:
                        scores.setdefault(name, []).append(error)
                    else:
                        candidate.errors[severity, passed + cycle] = error
        candidate.members = {name: sum(errors) / len(errors) for name, errors in scores.items()}
        results.append(candidate)
        done(candidate)
    return sorted(results, key=lambda found: found.mean)


def check_table(path: Path) -> bool:
    """Whether the folder of a CSV file had to be made; an error where the file holds another table."""
    missing = not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    if (held := columns_of(path)) and held[: len(COLUMNS)] != COLUMNS:
        raise DataError(f"--out {path} holds other columns ({', '.join(held[:4])}, ...); name another file")
    return missing


def write_table(path: Path, method: str, candidates: Sequence[Candidate], facts: Mapping[str, str]) -> None:
    """Append candidates to a CSV file (made with its header where it is not there); other columns are refused."""
    rows = []
    for candidate in candidates:
        options = " ".join(f"{key}={_text(value)}" for key, value in candidate.options.items()) or "defaults"
        errors = " ".join(f"s{level:g}c{cycle + 1}={error:.2f}" for (level, cycle), error in candidate.errors.items())
        members = " ".join(f"{name}={error:.2f}" for name, error in candidate.members.items())
        values = (method, options, f"{candidate.mean:.3f}", errors, members)
        rows.append({**dict(zip(COLUMNS, values, strict=True)), **facts})
    append_rows(path, rows)


def _text(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
