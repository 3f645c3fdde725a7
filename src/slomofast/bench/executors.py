"""Where jobs run: in this process, in several processes, or on a Ray cluster.

All three call the same function for a job (`run.attempt`), so a record does not depend on who ran it. They differ
in who survives what: a worker process that dies (killed, out of memory, a crash in native code) takes one job with
it, which is given to the next worker and continues from its checkpoint; after `LIVES` deaths the job is recorded
as failed.

Bits on the CPU depend on the number of threads torch uses. Give `threads` explicitly to make records of different
executors equal to the last digit.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import torch

from slomofast.bench.job import Resolved
from slomofast.bench.outcome import failure
from slomofast.bench.run import Progress, RunOptions, Stopped, attempt, keep
from slomofast.bench.store import Record, Store
from slomofast.core.errors import ConfigError

LIVES = 3


class Listener(Protocol):
    """Who wants to know: a dashboard, a log, a test."""

    def started(self, id: str, worker: str) -> None:
        """A job begins (again, when its worker died)."""

    def progressed(self, progress: Progress) -> None:
        """A running job has made some steps."""

    def finished(self, record: Record) -> None:
        """A job is done or failed, and its record is in the store."""

    def stopped(self, job: Stopped) -> None:
        """A job has no record yet, because the time was up."""


class Silent:
    """A listener that does nothing."""

    def started(self, id: str, worker: str) -> None: ...

    def progressed(self, progress: Progress) -> None: ...

    def finished(self, record: Record) -> None: ...

    def stopped(self, job: Stopped) -> None: ...


@dataclass(frozen=True)
class InProcess:
    """One job after the other, here."""

    threads: int | None = None

    def run(self, jobs: Sequence[Resolved], store: Store, options: RunOptions, listener: Listener) -> None:
        """Run all jobs and put their records into the store."""
        if self.threads:
            torch.set_num_threads(self.threads)
        for resolved in jobs:
            if options.time_is_up:
                return
            listener.started(resolved.id, "here")
            tell(attempt(resolved, store, options, listener.progressed), store, listener)


def tell(outcome: Record | Stopped, store: Store, listener: Listener) -> None:
    """Store a record and say so, or say that there is none yet."""
    if isinstance(outcome, Stopped):
        listener.stopped(outcome)
    else:
        listener.finished(keep(outcome, store))


def available_cores() -> int:
    """Processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Processes:
    """`workers` processes on this machine, several per GPU if asked.

    `threads` is the number of torch threads of each (default: an equal share of the cores). `plugins` are modules
    each process imports first, for methods and data sets that are registered by hand.
    """

    workers: int
    threads: int | None = None
    per_gpu: int = 1
    plugins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ConfigError(f"workers is {self.workers}; at least one process is needed")
        if self.per_gpu < 1:
            raise ConfigError(f"per_gpu is {self.per_gpu}; at least one job runs on a GPU")

    def run(self, jobs: Sequence[Resolved], store: Store, options: RunOptions, listener: Listener) -> None:
        """Run all jobs and put their records into the store; a dead worker is replaced."""
        waiting = deque(jobs)
        deaths: dict[str, int] = {}
        count = min(self.workers, len(jobs))
        crew: list[_Worker] = []
        try:
            while waiting or any(worker.job for worker in crew):
                if options.time_is_up:
                    waiting.clear()
                while len(crew) < count and waiting:
                    crew.append(self._hire(_free_number(crew), store, options))
                for worker in crew:
                    if worker.job is None and waiting:
                        worker.give(waiting.popleft())
                        listener.started(worker.job_id, worker.process.name)
                for worker in _ready(crew):
                    message = worker.receive()
                    if isinstance(message, Progress):
                        listener.progressed(message)
                    elif isinstance(message, Stopped):
                        worker.job = None
                        listener.stopped(message)
                    elif message is not None:
                        worker.job = None
                        listener.finished(message)
                    else:
                        crew.remove(worker)
                        job, code = worker.bury()
                        deaths[job.id] = deaths.get(job.id, 0) + 1
                        if deaths[job.id] < LIVES:
                            waiting.appendleft(job)
                        else:
                            reason = f"its worker process died {LIVES} times (last exit code {code})"
                            listener.finished(keep(failure(job, reason), store))
        finally:
            for worker in crew:
                worker.dismiss()

    def _hire(self, number: int, store: Store, options: RunOptions) -> _Worker:
        threads = self.threads or max(1, available_cores() // self.workers)
        gpus = torch.cuda.device_count() if options.device in (None, "cuda") else 0
        device = f"cuda:{number // self.per_gpu % gpus}" if gpus else options.device
        setup = _Setup(str(store.path), options.on(device), threads, self.plugins, tuple(sys.path))
        return _Worker.hire(number, setup)


@dataclass(frozen=True)
class _Setup:
    store: str
    options: RunOptions
    threads: int
    plugins: tuple[str, ...]
    path: tuple[str, ...]


@dataclass
class _Worker:
    """A process and the pipe to it. Each has its own pipe: a killed process cannot leave a shared lock behind."""

    number: int
    process: Any
    pipe: Connection
    job: Resolved | None = field(default=None)

    @classmethod
    def hire(cls, number: int, setup: _Setup) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, setup), name=f"worker {number}", daemon=True)
        process.start()
        theirs.close()
        return cls(number, process, ours)

    @property
    def job_id(self) -> str:
        return self.job.id if self.job else ""

    def give(self, job: Resolved) -> None:
        self.job = job
        with contextlib.suppress(OSError):  # a dead worker is noticed when its answer is read
            self.pipe.send(job)

    def receive(self) -> Any:
        """The next message, or None when the process is gone."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return None

    def bury(self) -> tuple[Resolved, int | None]:
        """The job a dead worker leaves behind, and its exit code."""
        assert self.job is not None
        self.pipe.close()
        self.process.join(5)
        return self.job, self.process.exitcode

    def dismiss(self) -> None:
        self.pipe.close()
        if self.job is not None:
            self.process.terminate()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()


def _free_number(crew: Iterable[_Worker]) -> int:
    """The lowest number no worker has; numbers decide which GPU a worker uses."""
    taken = {worker.number for worker in crew}
    return next(number for number in itertools.count() if number not in taken)


def _ready(crew: Iterable[_Worker]) -> list[_Worker]:
    """Workers with something to say; a process that died counts, its pipe reads as ended."""
    by_pipe = {worker.pipe: worker for worker in crew if worker.job is not None}
    return [by_pipe[pipe] for pipe in wait(list(by_pipe), timeout=1.0)]  # type: ignore[index]


def _serve(pipe: Connection, setup: _Setup) -> None:
    """A worker's life: take a job, run it, store its record, say so; end when nobody is at the other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    prepare_worker(setup.threads, setup.plugins, setup.path)
    store = Store(setup.store)

    def notify(progress: Progress) -> None:
        try:
            pipe.send(progress)
        except OSError:
            os._exit(1)  # the parent is gone; raising here would record the job as failed

    with contextlib.suppress(EOFError, OSError):
        while True:
            outcome = attempt(pipe.recv(), store, setup.options, notify)
            pipe.send(outcome if isinstance(outcome, Stopped) else keep(outcome, store))


def prepare_worker(threads: int, plugins: Iterable[str], path: Iterable[str] = ()) -> None:
    """Make a fresh process like the one that wants work done: import path, threads, plug-ins."""
    sys.path.extend(entry for entry in path if entry not in sys.path)
    torch.set_num_threads(threads)
    for name in plugins:
        importlib.import_module(name)


Executor = InProcess | Processes
