"""Run one job from start, or from its checkpoint, to its record."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import slomofast
from slomofast.bench.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from slomofast.bench.cost import DeviceMemory, Yardstick, cost_figures
from slomofast.bench.evaluate import evaluate, peak_bytes
from slomofast.bench.job import Job, Resolved, plain
from slomofast.bench.outcome import collected_warnings, environment, failure, out_of_memory, reason_for
from slomofast.bench.parts import (
    job_data,
    job_model,
    job_setting,
    job_stream,
    pick_device,
    probe_images,
    resolve,
    restricted,
    untrained,
)
from slomofast.bench.source import fit_source, requirements
from slomofast.bench.store import FORMAT, Record, Store
from slomofast.bench.trace import Diagnostics, forgetting_figures, member_errors, member_figures, prototype_features
from slomofast.core.errors import ConfigError, unknown_name
from slomofast.metrics import Curve, ForgettingProbe, Step, summarise
from slomofast.streams import Stream

ON_OOM = ("fail", "micro-batch")


@dataclass(frozen=True)
class RunOptions:
    """How jobs run, as opposed to what they are: nothing here but a trial's limit changes a result beyond rounding.

    Attributes:
        device: `cpu`, `cuda`, `cuda:1`, ...; None takes a GPU where there is one.
        checkpoint_every: steps between checkpoints; 0 writes none but that of `until`.
        on_oom: `fail` records a job that runs out of memory as failed; `micro-batch` tries once more with half the
            batch size and says so in the record.
        notify_every: seconds between progress messages.
        until: the moment (`time.time()`) when a running job writes a checkpoint and stops, and no other is begun;
            None for never.
        source_seconds: how long a method may look at source images; None for all of them. For trials alone.
    """

    device: str | None = None
    checkpoint_every: int = 200
    on_oom: str = "fail"
    notify_every: float = 0.5
    until: float | None = None
    source_seconds: float | None = None

    def __post_init__(self) -> None:
        if self.on_oom not in ON_OOM:
            raise unknown_name("reaction to running out of memory", self.on_oom, ON_OOM)
        if self.checkpoint_every < 0:
            raise ConfigError(f"checkpoint_every is {self.checkpoint_every}; give steps, or 0 for none on the way")

    def on(self, device: str | None) -> RunOptions:
        """The same on another device."""
        return dataclasses.replace(self, device=device)

    @property
    def time_is_up(self) -> bool:
        """Whether jobs are to stop."""
        return self.until is not None and time.time() >= self.until


class Stopped(NamedTuple):
    """In place of a record: a job that stopped because its time was up, after so many steps."""

    id: str
    step: int
    steps: int


class _TimeUp(Exception):
    """Raised out of a job that stops; how far it came is in its argument."""


class Progress(NamedTuple):
    """How far a job is; `error` is the percent wrong of everything seen in this sitting."""

    id: str
    step: int
    steps: int
    error: float
    place: str
    cycle: int


def run_job(
    job: Job,
    store: Store | str | Path,
    on_step: Callable[[Step], None] | None = None,
    checkpoint_every: int = 200,
    device: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Record:
    """The record of a job: read from the store if it is there, otherwise run now and stored.

    An interrupted job continues from its last checkpoint; on the CPU the result is the same to the last bit as
    without the interruption. A damaged record is set aside with a warning and made again. Errors are raised, not
    recorded (a sweep records them: see `attempt`); a folder that cannot be written to is one, before the work.
    """
    store = store if isinstance(store, Store) else Store(store)
    resolved = resolve(job)
    before = len(store.damaged)
    record = finished_record(store, resolved.id)
    for file in store.damaged[before:]:
        warnings.warn(f"a damaged record was set aside as {file}; its job runs again", stacklevel=2)
    if record is not None:
        return record
    store.check_writable()
    options = RunOptions(device=device, checkpoint_every=checkpoint_every)
    return keep(execute(resolved, store, options, on_progress, on_step), store)


def finished_record(store: Store, id: str) -> Record | None:
    """The whole record of a job that has run to its end, or None; a damaged one is set aside."""
    row = store.row(id)
    return store.find(id) if row is not None and row.status == "done" else None


def attempt(
    resolved: Resolved,
    store: Store,
    options: RunOptions,
    on_progress: Callable[[Progress], None] | None = None,
) -> Record | Stopped:
    """Run a job and give back its record whatever happens: failures are records too. The caller stores it.

    Only a job whose time is up has none; it continues from its checkpoint when it is run again.
    """
    try:
        return execute(resolved, store, options, on_progress)
    except _TimeUp as stop:
        return Stopped(resolved.id, *stop.args)
    except Exception as error:
        if not out_of_memory(error):
            return failure(resolved, reason_for(error), error)
        if options.on_oom == "fail" or resolved.job.batch_size == 1:
            advice = "" if options.on_oom != "fail" else "; --on-oom micro-batch tries again with half the batch"
            return failure(resolved, f"out of memory with batch size {resolved.job.batch_size}{advice}", error)
    return _smaller(resolved, store, options, on_progress)


def _smaller(
    resolved: Resolved, store: Store, options: RunOptions, on_progress: Callable[[Progress], None] | None
) -> Record | Stopped:
    """One more try with half the batch; the record keeps the id of what was asked for and says what was done."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    size = resolved.job.batch_size // 2
    half = dataclasses.replace(resolved, job=dataclasses.replace(resolved.job, batch_size=size), id=_half(resolved.id))
    note = f"out of memory with batch size {resolved.job.batch_size}: ran with {size} instead"
    try:
        record = execute(half, store, options, _renamed(on_progress, resolved.id))
    except _TimeUp as stop:
        return Stopped(resolved.id, *stop.args)
    except Exception as error:
        reason = "out of memory again" if out_of_memory(error) else reason_for(error)
        return failure(resolved, f"{note}; then: {reason}", error)
    return record | {"id": resolved.id, "warnings": [note, *record["warnings"]], "micro_batch": size}


def _renamed(on_progress: Callable[[Progress], None] | None, id: str) -> Callable[[Progress], None] | None:
    return None if on_progress is None else lambda progress: on_progress(progress._replace(id=id))


def execute(
    resolved: Resolved,
    store: Store,
    options: RunOptions,
    on_progress: Callable[[Progress], None] | None = None,
    on_step: Callable[[Step], None] | None = None,
) -> Record:
    """Do the work of a job and return its record without storing it; checkpoints go into the store's folder."""
    with collected_warnings() as noted:
        run = _Run(resolved, store, options)
        if not run.resume():
            del run  # its memory is needed
            run = _Run(resolved, store, options)
        run.play(on_progress, on_step)
        return run.record(noted)


class _Run:
    """A job in progress: its objects and what has been measured so far."""

    def __init__(self, resolved: Resolved, store: Store, options: RunOptions) -> None:
        job, self.resolved, self.options = resolved.job, resolved, options
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self.device = pick_device(options.device)
        self.checkpoint_path = checkpoint_path(store, resolved.id)
        cache = store.folder("cache")
        data = job_data(job, self.device)
        model = job_model(job, self.device)
        if untrained(job):
            warnings.warn(
                f"the network {job.model} has random weights, so that its errors mean nothing; name trained ones with "
                "--weights",
                stacklevel=2,
            )
        if data.class_mask is not None and (part := restricted(model, data.class_mask, probe_images(data, 0))):
            model, data.class_mask = part, None
        facts = requirements(resolved, data, model, cache, job_setting(job).requirements())
        self.source_errors: dict[str, float] | None = facts.get("source_errors")
        self.stream = job_stream(resolved, data, device=self.device, **facts)
        probe = probe_images(data, job.severity).to(self.device)
        self.memory = DeviceMemory(self.device)
        with self.memory.of_method():
            self.adapter = slomofast.adapt(
                model,
                job.method,
                seed=job.seed,
                precision=job.precision,
                probe=probe,
                # Waiting for the device to say that all pixels are finite would cost a stop per step.
                check_input="now" if self.device.type == "cpu" else "deferred",
                compile=job.compile,
                graphs=job.graphs,
                channels_last=job.channels_last,
                **{"preset": data.family, **job.options},
            )
            if self.adapter.needs_source:
                fit_source(self.adapter, resolved, data, cache, options.source_seconds)
        self.yardstick: Yardstick | None = None
        if "cost" in job.metrics:
            images = self.stream.batch(0).images
            if job.channels_last:
                images = images.contiguous(memory_format=torch.channels_last)
            self.yardstick = Yardstick(model, images, job.precision)
        self.curve = Curve.for_stream(self.stream)
        self.diagnostics = Diagnostics()
        self.probe = ForgettingProbe(self.stream) if resolved.held_out else None
        self.position = 0
        self.seconds = 0.0
        self.interruptions = 0

    def resume(self) -> bool:
        """Continue from the checkpoint of this job, if there is one.

        False where it does not load, for example because the method has changed: it is removed, a warning says so, and
        this object, which may hold a part of it, is not to be used.
        """
        try:
            with self.memory.of_method():
                self._load()
        except Exception as error:  # a state of other code may raise anything
            if out_of_memory(error):
                raise
            self.checkpoint_path.unlink(missing_ok=True)
            warnings.warn(
                f"the checkpoint of this job does not load ({reason_for(error)}); it was removed, and the job starts "
                "over",
                stacklevel=2,
            )
            return False
        return True

    def _load(self) -> None:
        state = read_checkpoint(self.checkpoint_path, self._state_key(), self.device)
        if state is None:
            return
        self.adapter.load_state_dict(state.adapter)
        self.curve = Curve.from_dict(state.trace["curve"])
        self.diagnostics = Diagnostics(state.trace["diagnostics"], state.position)
        if self.probe is not None:
            self.probe.load_dict(state.trace["held_out"])
        self.position, self.seconds = state.position, state.seconds
        self.interruptions = state.interruptions + 1

    def play(self, on_progress: Callable[[Progress], None] | None, on_step: Callable[[Step], None] | None) -> None:
        """Take every remaining step of the stream."""
        begun, every = time.perf_counter() - self.seconds, self.options.checkpoint_every
        meter = _Meter(self.resolved.id, self.stream, self.options.notify_every, on_progress)
        self.memory.start()
        for step in evaluate(self.adapter, self.stream.from_position(self.position)):
            self.curve.update(step)
            self.diagnostics.update({**step.diagnostics, **member_errors(self.adapter.member_logits, step.target)})
            self.position = step.position + 1
            if self.probe is not None:
                with self.memory.leave_out(self.probe):
                    self.probe.observe(self.adapter, step.position)
            if self.yardstick is not None:
                self.yardstick.update(step.position)
            if on_step is not None:
                on_step(step)
            meter.update(step)
            self.seconds = time.perf_counter() - begun
            if self.position < self.stream.total:
                stop = self.options.time_is_up
                if stop or (every and self.position % every == 0):
                    self._save()
                if stop:
                    raise _TimeUp(self.position, self.stream.total)

    def _save(self) -> None:
        self.adapter.check()  # a bad batch is not noted in the state
        trace = {
            "curve": self.curve.to_dict(),
            "diagnostics": self.diagnostics.to_dict(),
            "held_out": None if self.probe is None else self.probe.to_dict(),
        }
        state = Checkpoint(
            self._state_key(),
            self.position,
            self.adapter.state_dict(),
            trace,
            self.seconds,
            self.interruptions,
        )
        write_checkpoint(self.checkpoint_path, state)

    def _state_key(self) -> str:
        """A checkpoint belongs to one job on one stream under one version of the program."""
        return f"{self.resolved.id} {self.stream.fingerprint} {slomofast.__version__} {self.device.type}"

    def record(self, noted: list[str]) -> Record:
        """Everything that happened, as plain types."""
        job, curve = self.resolved.job, self.curve.to_dict()
        metrics: dict[str, Any] = summarise(self.curve, [m for m in job.metrics if m not in ("forgetting", "cost")])
        if self.probe is not None:
            metrics["forgetting"] = forgetting_figures(self.probe.to_dict())
        if self.yardstick is not None:
            metrics["cost"] = cost_figures(
                curve["seconds"],
                curve["count"],
                forward=self.yardstick.seconds,
                peak_device=self.memory.peak,
                peak_host=peak_bytes(torch.device("cpu")),
                trainable_share=self.adapter.trainable_share(),
            )
        diagnostics = self.diagnostics.to_dict()
        if members := member_figures(diagnostics, curve["count"]):
            metrics["members"] = members
        names = self.stream.domains
        segments = [
            row | {"domain": names[row["domain"]] if row["domain"] >= 0 else None} for row in self.stream.table()
        ]
        return plain(
            {
                "format": FORMAT,
                "id": self.resolved.id,
                "status": "done",
                "reason": None,
                "job": self.resolved.describe() | ({"source_errors": self.source_errors} if self.source_errors else {}),
                "environment": environment(self.device) | {"interruptions": self.interruptions},
                "fingerprints": {**self.resolved.fingerprints, "stream": self.stream.fingerprint},
                "started": self.started,
                "seconds": round(self.seconds, 3),
                "curve": curve,
                "segments": segments,
                "metrics": metrics,
                "diagnostics": diagnostics,
                "skipped_steps": self.adapter.skipped,
                "warnings": noted,
                "prototypes": prototype_features(self.adapter),
            }
        )


class _Meter:
    """Tells how far a job is, at most every so many seconds; counts on the device in between."""

    def __init__(self, id: str, stream: Stream, every: float, notify: Callable[[Progress], None] | None) -> None:
        self.id, self.stream, self.every, self.notify = id, stream, every, notify
        self.wrong: Tensor | None = None
        self.seen = 0
        self.last = 0.0

    def update(self, step: Step) -> None:
        if self.notify is None:
            return
        wrong = (step.logits.argmax(1) != step.target).sum()
        self.wrong = wrong if self.wrong is None else self.wrong + wrong
        self.seen += len(step.target)
        now = time.perf_counter()
        if now - self.last >= self.every or step.position + 1 == self.stream.total:
            self.last = now
            error = 100 * int(self.wrong) / self.seen
            place = self.stream.segments[step.segment].name
            self.notify(Progress(self.id, step.position + 1, self.stream.total, error, place, step.cycle))


def checkpoint_path(store: Store, id: str) -> Path:
    """Where the checkpoint of a job is, or would be."""
    return store.folder("checkpoints") / f"{id}.pt"


def keep(record: Record, store: Store) -> Record:
    """Store a record, and only then drop the checkpoint it makes superfluous."""
    store.put(record)
    if record["status"] == "done":
        clear_checkpoint(store, record["id"])
    return record


def clear_checkpoint(store: Store, id: str) -> None:
    """Remove checkpoints of a job that are no longer needed; the record must be in the store by then."""
    for name in (id, _half(id)):
        checkpoint_path(store, name).unlink(missing_ok=True)


def _half(id: str) -> str:
    """The name under which a job with half its batch size keeps its checkpoint."""
    return f"{id}-half"
