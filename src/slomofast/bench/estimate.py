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
from slomofast.bench.parts import job_data, job_stream
from slomofast.bench.run import RunOptions, execute
from slomofast.bench.store import Row, Store
from slomofast.core.errors import SlomofastError
from slomofast.metrics import Step

# records from before a field was there say nothing of it, which means no
_BARE = ("method", "options", "data", "model", "batch_size", "precision", "compile", "graphs", "channels_last")
_LOOK = 0.5  # looking at a batch, for the output and each member, in steps; a method's own share lies around this
_WARM, _TIMED = 1, 3  # steps of a calibration: the first pays for everything that happens once


@dataclass
class Estimator:
    """Seconds a job will take on this machine.

    What is known of a kind of job (same method, network, data and batch size) comes from the records of a store;
    `calibrate` runs a few steps of kinds nobody has run. A kind without either is taken as the mean of the others.
    """

    rates: dict[str, float] = field(default_factory=dict)  # kind -> seconds per step, all work included
    calibrated: dict[str, float] = field(default_factory=dict)  # kind -> seconds of a bare step
    lengths: dict[str, Length] = field(default_factory=dict)  # job id -> length of its stream

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
        """Run a few steps of one job of every unknown kind, until about `budget` seconds are spent.

        A job looks at source images for at most a fifth of what is left; the step that uses up the rest is its last.
        """
        begun = time.perf_counter()
        for resolved in jobs:
            left = budget - (time.perf_counter() - begun)
            if left > 0 and not self.knows(resolved):
                rate = seconds_per_step(resolved, options, left)
                if rate is not None:
                    self.calibrated[_bare_kind_of(resolved.describe())] = rate

    def knows(self, resolved: Resolved) -> bool:
        """Whether a job's time comes from records or steps of its kind, and not from those of others."""
        job = resolved.describe()
        return _kind_of(job) in self.rates or _bare_kind_of(job) in self.calibrated

    def learn(self, resolved: Resolved, seconds: float) -> None:
        """Take in how long a job really took."""
        self.rates[_kind_of(resolved.describe())] = seconds / max(1, self.steps(resolved))

    def steps(self, resolved: Resolved) -> int:
        """Batches of the job's stream."""
        return self._length(resolved).steps

    def seconds(self, resolved: Resolved) -> float:
        """Expected time of a job; NaN when nothing at all is known."""
        job, length = resolved.describe(), self._length(resolved)
        if (rate := self.rates.get(_kind_of(job))) is not None:
            return rate * length.steps
        everything = [*self.rates.values(), *self.calibrated.values()]
        guess = sum(everything) / len(everything) if everything else math.nan
        return self.calibrated.get(_bare_kind_of(job), guess) * (length.steps + _LOOK * length.looks)

    def _length(self, resolved: Resolved) -> Length:
        if resolved.id not in self.lengths:
            self.lengths[resolved.id] = stream_length(resolved)
        return self.lengths[resolved.id]


@dataclass(frozen=True)
class Length:
    """Batches to learn from, and held-out images to look at along the way, in batches."""

    steps: int
    looks: float


def _kind_of(job: Mapping[str, object]) -> str:
    return canonical({name: job.get(name, False) for name in (*_BARE, "held_out", "setting")})


def _bare_kind_of(job: Mapping[str, object]) -> str:
    return canonical({name: job.get(name, False) for name in _BARE})


def stream_length(resolved: Resolved) -> Length:
    """Length of a job's stream, without measuring anything; orders do not change it."""
    job = resolved.job
    data = job_data(job)
    stream = job_stream(resolved, data, source_errors=dict.fromkeys(data.domains, 0.0), matrices=_AnyMatrix())
    looks, seen, last = 0.0, set[int](), None
    if resolved.held_out:
        batches = len(stream.held_out_index()) / job.batch_size
        for segment in stream.segments:
            seen |= set(segment.domains)
            looks += batches * len(seen) * (segment.visit != last)
            last = segment.visit
    return Length(stream.total, looks)


class _AnyMatrix(dict[str, np.ndarray]):
    """A matrix for every pair: paths differ with it, the number of batches does not."""

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: str) -> np.ndarray:
        return np.zeros((11, 11))


def seconds_per_step(resolved: Resolved, options: RunOptions, budget: float = math.inf) -> float | None:
    """Time of one step from a few taken now on a short continual stream; None if the job cannot run.

    No step is begun after `budget` seconds; a first step that took longer counts with all that happens once.
    """
    begun = time.perf_counter()
    job = dataclasses.replace(
        resolved.job,
        setting="continual",
        setting_options={},
        images_per_domain=resolved.job.batch_size * (_WARM + _TIMED),
        domains=(job_data(resolved.job).domains[0],),
        metrics=("error",),
    )
    marks: list[float] = []

    def heard(step: Step) -> None:
        if not marks:
            marks.append(time.perf_counter() - float(step.seconds or 0.0))
        marks.append(_when_done(step))
        if marks[-1] - begun > budget:
            raise _Enough

    short = dataclasses.replace(resolved, job=job, id=f"{resolved.id}-calibration")
    with tempfile.TemporaryDirectory(prefix="slomofast-") as folder:
        try:
            trial = dataclasses.replace(options, until=None, source_seconds=budget / 5)
            execute(short, Store(folder), trial, on_step=heard)
        except _Enough:
            pass
        except (SlomofastError, RuntimeError, MemoryError):
            return None
    if len(marks) < 2:
        return None
    first = min(_WARM, len(marks) - 2)
    return (marks[-1] - marks[first]) / (len(marks) - 1 - first)


class _Enough(Exception):
    """Raised out of a trial whose time is up."""


def _when_done(step: Step) -> float:
    """The time when the step's work is really over, also on a device that works ahead."""
    step.logits.sum().item()
    return time.perf_counter()
