"""How long will it take: seconds per step from records that exist, or from a few steps taken now."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from slomofast.bench.job import Resolved, canonical
from slomofast.bench.parts import job_data, job_setting
from slomofast.bench.run import RunOptions, execute
from slomofast.bench.store import Row, Store
from slomofast.core.errors import SlomofastError
from slomofast.streams import Stream

_WARM, _TIMED = 1, 3  # steps of a calibration: the first pays for everything that happens once


@dataclass
class Estimator:
    """Seconds a job will take on this machine.

    What is known of a kind of job (same method, network, data and batch size) comes from the records of a store;
    `calibrate` runs a few steps of kinds nobody has run. A kind without either is taken as the mean of the others.
    """

    rates: dict[str, float] = field(default_factory=dict)  # kind -> seconds per step
    lengths: dict[str, int] = field(default_factory=dict)  # job id -> steps

    @classmethod
    def from_records(cls, rows: Iterable[Row], device: str) -> Estimator:
        """What the finished records made on the same kind of device say."""
        sums: dict[str, list[float]] = {}
        for row in rows:
            made_on = str(row.environment.get("device") or "")
            if row.status == "done" and row.steps and made_on.startswith(device):
                sums.setdefault(_kind_of(row.job), []).append(row.seconds / row.steps)
        return cls({kind: sum(values) / len(values) for kind, values in sums.items()})

    def calibrate(self, jobs: Sequence[Resolved], options: RunOptions, budget: float = 60.0) -> None:
        """Run a few steps of one job of every unknown kind, until `budget` seconds are spent."""
        begun = time.perf_counter()
        for resolved in jobs:
            kind = _kind_of(resolved.describe())
            if kind not in self.rates and time.perf_counter() - begun < budget:
                rate = seconds_per_step(resolved, options)
                if rate is not None:
                    self.rates[kind] = rate

    def learn(self, resolved: Resolved, seconds: float) -> None:
        """Take in how long a job really took."""
        self.rates[_kind_of(resolved.describe())] = seconds / max(1, self.steps(resolved))

    def steps(self, resolved: Resolved) -> int:
        """Batches of the job's stream."""
        if resolved.id not in self.lengths:
            self.lengths[resolved.id] = stream_length(resolved)
        return self.lengths[resolved.id]

    def seconds(self, resolved: Resolved) -> float:
        """Expected time of a job; NaN when nothing at all is known."""
        rate = self.rates.get(_kind_of(resolved.describe()))
        if rate is None:
            rate = sum(self.rates.values()) / len(self.rates) if self.rates else math.nan
        return rate * self.steps(resolved)


def _kind_of(job: Mapping[str, object]) -> str:
    parts = ("method", "options", "data", "model", "batch_size", "precision", "held_out", "compile", "channels_last")
    return canonical({name: job.get(name) for name in parts})


def stream_length(resolved: Resolved) -> int:
    """Batches of a job's stream, without measuring anything; orders do not change it."""
    job = resolved.job
    data = job_data(job)
    return Stream(
        job_setting(job),
        data,
        batch_size=job.batch_size,
        seed=job.seed,
        images_per_domain=job.images_per_domain,
        severity=job.severity,
        domains=job.domains,
        held_out=resolved.held_out,
        source_errors=dict.fromkeys(data.domains, 0.0),
        matrices=_AnyMatrix(),
    ).total


class _AnyMatrix(dict[str, np.ndarray]):
    """A matrix for every pair: paths differ with it, the number of batches does not."""

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: str) -> np.ndarray:
        return np.zeros((11, 11))


def seconds_per_step(resolved: Resolved, options: RunOptions) -> float | None:
    """Time of one step from a few taken now on a short continual stream; None if the job cannot run."""
    job = dataclasses.replace(
        resolved.job,
        setting="continual",
        setting_options={},
        images_per_domain=resolved.job.batch_size * (_WARM + _TIMED),
        domains=(job_data(resolved.job).domains[0],),
        metrics=("error",),
    )
    marks: list[float] = []
    short = dataclasses.replace(resolved, job=job, id=f"{resolved.id}-calibration")
    with tempfile.TemporaryDirectory(prefix="slomofast-") as folder:
        try:
            execute(short, Store(folder), options, on_step=lambda step: marks.append(_when_done(step)))
        except (SlomofastError, RuntimeError, MemoryError):
            return None
    if len(marks) < 2:
        return None
    first = min(_WARM, len(marks) - 2)
    return (marks[-1] - marks[first]) / (len(marks) - 1 - first)


def _when_done(step: object) -> float:
    """The time when the step's work is really over, also on a device that works ahead."""
    logits = getattr(step, "logits")  # noqa: B009
    logits.sum().item()
    return time.perf_counter()
