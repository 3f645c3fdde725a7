"""Jobs on a Ray cluster, started here or joined.

Each job is one Ray task that declares the processors (or the share of a GPU) it needs. Records come back to the
driver, which stores them; progress comes through a small actor. A task whose worker is lost is handed out again and
continues from its checkpoint where the machines share the store's folder, or from the start where they do not.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slomofast.bench.executors import LIVES, Listener, available_cores, prepare_worker, tell
from slomofast.bench.job import Resolved
from slomofast.bench.outcome import failure
from slomofast.bench.run import Progress, RunOptions, Stopped, attempt
from slomofast.bench.store import Record, Store
from slomofast.core.errors import ConfigError

_TOKEN = ".same-folder"


@dataclass(frozen=True)
class RayCluster:
    """Runs jobs as Ray tasks. `address` None starts a cluster on this machine, otherwise joins that one.

    `threads` is how many processors a job asks for and how many torch threads it uses (default: one, or the
    machine's share when `workers` is given); `per_gpu` jobs share a GPU when the device is CUDA.
    """

    address: str | None = None
    workers: int | None = None
    threads: int | None = None
    per_gpu: int = 1
    plugins: tuple[str, ...] = ()

    def run(self, jobs: Sequence[Resolved], store: Store, options: RunOptions, listener: Listener) -> None:
        """Run all jobs and put their records into the store."""
        ray = _import_ray()
        ours = not ray.is_initialized()
        if ours:
            _start(ray, self.address)
        try:
            self._run(ray, jobs, store, options, listener)
        finally:
            if ours:
                ray.shutdown()

    def _run(self, ray: Any, jobs: Sequence[Resolved], store: Store, options: RunOptions, listener: Listener) -> None:
        threads = self.threads or max(1, available_cores() // (self.workers or available_cores()))
        gpus = ray.cluster_resources().get("GPU", 0) if options.device != "cpu" else 0
        task = ray.remote(max_retries=0, num_cpus=threads, num_gpus=1 / self.per_gpu if gpus else 0)(_work)
        board = ray.remote(num_cpus=0)(_Board).remote()
        token = uuid.uuid4().hex
        (store.path / _TOKEN).write_text(token)
        setup = _Setup(str(store.path.resolve()), token, options, threads, self.plugins, tuple(sys.path))

        waiting, running = deque(jobs), dict[Any, Resolved]()
        deaths: dict[str, int] = {}
        limit = self.workers or len(jobs)
        try:
            while waiting or running:
                if options.time_is_up:
                    waiting.clear()
                while waiting and len(running) < limit:
                    job = waiting.popleft()
                    running[task.remote(job, setup, board)] = job
                done, _ = ray.wait(list(running), timeout=0.3) if running else ([], [])
                _relay(ray, board, listener)
                for reference in done:
                    job = running.pop(reference)
                    outcome = self._collect(ray, reference, job, deaths)
                    if outcome is None:
                        waiting.append(job)
                    else:
                        tell(outcome, store, listener)
        finally:
            for reference in running:
                with contextlib.suppress(Exception):
                    ray.cancel(reference, force=True)
            ray.kill(board)
            (store.path / _TOKEN).unlink(missing_ok=True)

    def _collect(self, ray: Any, reference: Any, job: Resolved, deaths: dict[str, int]) -> Record | Stopped | None:
        """What came of a finished task; None when its worker was lost and it deserves another."""
        try:
            return ray.get(reference)
        except ray.exceptions.RayError as error:
            if isinstance(error, ray.exceptions.RayTaskError):
                return failure(job, f"the task failed on its worker: {error.cause!r}", error)
            deaths[job.id] = deaths.get(job.id, 0) + 1
            if deaths[job.id] < LIVES:
                return None
            return failure(job, f"its Ray worker was lost {LIVES} times (last: {type(error).__name__})", error)


@dataclass(frozen=True)
class _Setup:
    store: str
    token: str
    options: RunOptions
    threads: int
    plugins: tuple[str, ...]
    path: tuple[str, ...]


class _Board:
    """The actor that workers write their progress on."""

    def __init__(self) -> None:
        self.news: dict[str, Any] = {}

    def post(self, id: str, entry: Any) -> None:
        self.news[id] = entry

    def take(self) -> dict[str, Any]:
        news, self.news = self.news, {}
        return news


def _work(job: Resolved, setup: _Setup, board: Any) -> Record | Stopped:
    """What a Ray worker does: run the job where the store can be seen, or in a scratch folder."""
    prepare_worker(setup.threads, setup.plugins, setup.path)
    board.post.remote(job.id, None)

    def notify(progress: Progress) -> None:
        board.post.remote(job.id, tuple(progress))

    options = setup.options
    shared = Path(setup.store) / _TOKEN
    with contextlib.suppress(OSError):
        if shared.read_text() == setup.token:
            return attempt(job, Store(setup.store), options, notify)
    with tempfile.TemporaryDirectory(prefix="slomofast-") as folder:
        return attempt(job, Store(folder), options, notify)


def _relay(ray: Any, board: Any, listener: Listener) -> None:
    for id, entry in ray.get(board.take.remote()).items():
        if entry is None:
            listener.started(id, "ray")
        else:
            listener.progressed(Progress(*entry))


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise ConfigError("--ray needs Ray: pip install 'slomofast[ray]'") from None
    return ray


def _start(ray: Any, address: str | None) -> None:
    quiet = {"include_dashboard": False} if address is None else {}
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level="error", **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        place = f"join the Ray cluster at {address!r}" if address else "start Ray on this machine"
        raise ConfigError(f"cannot {place}: {error}") from error
