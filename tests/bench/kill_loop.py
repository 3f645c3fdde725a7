"""Run a job in child processes that are killed at random moments, until one of them finishes.

Started by test_resume.py as a fresh process: it imports everything once and forks, so that a child costs only the
job itself and the test can afford many kills. Every other kill comes at any time, the others shortly after a
checkpoint was written, so that the job gets on and is resumed for certain.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from slomofast.bench import Job, Store, resolve, run_job
from slomofast.bench.parts import job_data


def one_child(job: Job, folder: str, every: int, doomed: Callable[[], bool]) -> bool:
    """Fork, run, and kill once `doomed` says so; says whether the child finished by itself."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run_job(job, folder, checkpoint_every=every, device="cpu")
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + 60
    while not doomed():
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if status != 0:
                raise SystemExit(f"the child failed by itself: {status}")
            return True
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            raise SystemExit("the child did not finish")
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def after(seconds: float) -> Callable[[], bool]:
    """Doomed when this much time has passed."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def after_checkpoint(path: Path, seconds: float) -> Callable[[], bool]:
    """Doomed this long after the next checkpoint appears."""
    before, seen = _stamp(path), list[float]()

    def doomed() -> bool:
        if not seen and _stamp(path) not in (before, None):
            seen.append(time.monotonic())
        return bool(seen) and time.monotonic() > seen[0] + seconds

    return doomed


def _stamp(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def main(folder: str, job: Job, every: int, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    draw = random.Random(seed)
    id = resolve(job).id
    job_data(job).load("fog", 5, torch.arange(60).numpy())  # drawn once, inherited by all children
    begun = time.monotonic()
    one_child(job, f"{folder}/calm", every, lambda: False)
    whole = time.monotonic() - begun
    store, killed, finished = Store(f"{folder}/killed"), 0, False
    checkpoint = store.folder("checkpoints") / f"{id}.pt"
    while killed < kills and not finished:
        doom = after(draw.uniform(0, whole)) if killed % 2 else after_checkpoint(checkpoint, draw.uniform(0, 0.05))
        finished = one_child(job, str(store.path), every, doom)
        killed += not finished
    if not finished:
        one_child(job, str(store.path), every, lambda: False)
    print(json.dumps({"id": id, "killed": killed, "seconds": whole}))


if __name__ == "__main__":
    main(sys.argv[1], Job.from_dict(json.loads(sys.argv[2])), *map(int, sys.argv[3:6]))
