"""Run a job in child processes that are killed at random moments, until one of them finishes.

Started by test_resume.py as a fresh process: it imports everything once and forks, so that a child costs only the
job itself and the test can afford many kills.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time

import torch

from slomofast.bench import Job, Store, resolve, run_job


def one_child(job: Job, folder: str, every: int, life: float | None) -> bool:
    """Fork, run, and kill after `life` seconds; says whether the child finished by itself."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run_job(job, folder, checkpoint_every=every, device="cpu")
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + (life if life is not None else 60.0)
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if status != 0:
                raise SystemExit(f"the child failed by itself: {status}")
            return True
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if life is None:
        raise SystemExit("the last child did not finish")
    return False


def main(folder: str, job: Job, every: int, kills: int, seed: int) -> None:
    torch.set_num_threads(1)
    draw = random.Random(seed)
    id = resolve(job).id
    begun = time.monotonic()
    one_child(job, f"{folder}/calm", every, None)
    whole = time.monotonic() - begun
    killed = 0
    while killed < kills and not (Store(f"{folder}/killed").record_path(id)).exists():
        if one_child(job, f"{folder}/killed", every, draw.uniform(0.0, 0.6 * whole)):
            break
        killed += 1
    if not Store(f"{folder}/killed").record_path(id).exists():
        one_child(job, f"{folder}/killed", every, None)
    print(json.dumps({"id": id, "killed": killed, "seconds": whole}))


if __name__ == "__main__":
    main(sys.argv[1], Job.from_dict(json.loads(sys.argv[2])), *map(int, sys.argv[3:6]))
