"""Jobs on a CUDA device: times without waiting at every step, device memory, resuming."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from slomofast.bench import Job, Processes, RunOptions, Store, Sweep, run_job, run_sweep
from slomofast.bench.evaluate import Seconds, evaluate
from slomofast.bench.parts import job_data, job_model
from slomofast.streams import Stream

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_record_has_device_times_and_memory(tiny: Job, tmp_path) -> None:
    record = run_job(dataclasses.replace(tiny, method="slomo_fast"), tmp_path, device="cuda")
    assert all(0 < seconds < 60 for seconds in record["curve"]["seconds"])
    assert record["metrics"]["cost"]["peak_device_bytes"] > 2**20
    assert record["metrics"]["cost"]["forward_multiple"] > 1
    assert record["environment"]["device"].startswith("cuda (")


def test_times_are_read_late(tiny: Job) -> None:
    import slomofast as sf

    device = torch.device("cuda")
    stream = Stream("continual", job_data(tiny, device), batch_size=10, images_per_domain=30, device=device)
    steps = list(evaluate(sf.adapt(job_model(tiny, device), "tent"), stream))
    assert all(isinstance(step.seconds, Seconds) and float(step.seconds) > 0 for step in steps)


def test_resumes_after_an_interruption(tiny: Job, tmp_path) -> None:
    def pull(step) -> None:
        if step.position == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(tiny, tmp_path, on_step=pull, checkpoint_every=2, device="cuda")
    record = run_job(tiny, tmp_path, checkpoint_every=2, device="cuda")
    assert record["environment"]["interruptions"] == 1 and record["curve"]["position"] == list(range(6))


def test_two_workers_share_the_gpu(tiny: Job, tmp_path) -> None:
    sweep = Sweep("shared", "", tuple(dataclasses.replace(tiny, method=m) for m in ("source", "bn", "tent")))
    summary = run_sweep(sweep, Store(tmp_path), Processes(2, per_gpu=2), RunOptions(device="cuda"))
    assert summary.ran == 3 and summary.ok


@pytest.mark.parametrize("change", [{"precision": "bf16"}, {"channels_last": True}])
def test_fast_forms_run(tiny: Job, tmp_path, change: dict) -> None:
    record = run_job(dataclasses.replace(tiny, **change), tmp_path, device="cuda")
    assert len(record["curve"]["wrong"]) == 6
