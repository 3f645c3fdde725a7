"""Jobs on a CUDA device: times without waiting at every step, device memory, resuming."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from slomofast.bench import Job, Processes, RunOptions, Store, Sweep, run_job, run_sweep
from slomofast.bench.evaluate import Seconds, evaluate
from slomofast.bench.parts import job_data, job_model
from slomofast.metrics import Curve
from slomofast.streams import Stream

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_record_has_device_times_and_memory(tiny: Job, tmp_path) -> None:
    record = run_job(dataclasses.replace(tiny, method="slomo_fast"), tmp_path, device="cuda")
    assert all(0 < seconds < 60 for seconds in record["curve"]["seconds"])
    assert record["metrics"]["cost"]["peak_device_bytes"] > 2**20
    assert record["metrics"]["cost"]["forward_multiple"] > 1
    assert record["environment"]["device"].startswith("cuda (")


def test_memory_is_that_of_the_method(tiny: Job, tmp_path) -> None:
    """30 MB more of images, and looking at some of them, do not count."""
    few = dataclasses.replace(tiny, data_options={"size": 60, "domains": "gaussian_noise,fog"})
    many = dataclasses.replace(few, data_options={"size": 10_000, "domains": "gaussian_noise,fog"})
    look = dataclasses.replace(many, metrics=("cost", "forgetting"))
    used = [
        run_job(job, tmp_path / str(number), device="cuda")["metrics"]["cost"]["peak_device_bytes"]
        for number, job in enumerate((few, few, many, look))  # the first pays for the libraries' workspaces
    ]
    assert abs(used[2] - used[1]) < 2 * 2**20 and abs(used[3] - used[1]) < 2 * 2**20


def test_recording_a_mixed_step_waits_for_nothing(tiny: Job) -> None:
    import slomofast as sf

    device = torch.device("cuda")
    data = job_data(tiny, device)
    data.class_mask = np.arange(10)
    stream = Stream("mixed", data, batch_size=10, images_per_domain=30, device=device, prefetch=0)
    adapter, curve = sf.adapt(job_model(tiny, device), "source", check_input="off"), Curve()
    steps = list(evaluate(adapter, stream))
    curve.update(steps[0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in steps[1:]:
            curve.update(step)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sum(curve["count"]) == 60


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
