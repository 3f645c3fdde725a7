"""Interrupted jobs end in the same record as undisturbed ones."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from slomofast.bench import Job, RunOptions, Store, comparable, resolve, run_job
from slomofast.bench.checkpoint import read_checkpoint, write_checkpoint
from slomofast.bench.run import checkpoint_path, execute
from slomofast.core.registry import list_methods

ALL = ("adaptation", "forgetting", "recovery", "calibration", "cost")


class Unplugged(Exception):
    """Stands for a power cut."""


def interrupted(job: Job, store: Store, every: int, at: list[int]) -> dict:
    """Run the job, pulling the plug before the given positions are recorded, then to the end."""
    for stop in at:

        def pull(step: object, stop: int = stop) -> None:
            if step.position >= stop:  # type: ignore[attr-defined]
                raise Unplugged

        with pytest.raises(Unplugged):
            run_job(job, store, on_step=pull, checkpoint_every=every, device="cpu")
    return run_job(job, store, checkpoint_every=every, device="cpu")


@pytest.mark.parametrize("setting", ["cyclic", "mixed", "episodic", "hard2easy"])
def test_every_setting_resumes_exactly(tiny: Job, tmp_path, setting: str) -> None:
    method = "slomo_fast" if setting == "cyclic" else "tent"
    job = dataclasses.replace(tiny, setting=setting, method=method, metrics=ALL)
    calm = run_job(job, tmp_path / "calm", checkpoint_every=2, device="cpu")
    broken = interrupted(job, Store(tmp_path / "broken"), 2, [0, 3, 4])
    assert comparable(broken) == comparable(calm)
    assert broken["environment"]["interruptions"] == 2
    assert calm["environment"]["interruptions"] == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", list_methods())
def test_every_method_resumes_exactly(tiny: Job, tmp_path, monkeypatch, method: str) -> None:
    monkeypatch.setattr("slomofast.bench.parts.SOURCE_GLYPHS", 20)
    # a trained network: of a random one some methods learn nothing, and dpcore refuses it
    few = {"batch_size": 5, "images_per_domain": 10, "metrics": ("error",)}
    job = dataclasses.replace(tiny, method=method, model="glyphs", **few)
    calm = run_job(job, tmp_path / "calm", checkpoint_every=0, device="cpu")
    assert comparable(interrupted(job, Store(tmp_path / "broken"), 2, [2])) == comparable(calm)


def test_how_often_is_saved_does_not_matter(tiny: Job, tmp_path) -> None:
    often = run_job(tiny, tmp_path / "often", checkpoint_every=1, device="cpu")
    never = run_job(tiny, tmp_path / "never", checkpoint_every=0, device="cpu")
    assert comparable(often) == comparable(never)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "digit"])
def test_a_damaged_checkpoint_costs_time_only(tiny: Job, tmp_path, damage: str) -> None:
    calm = run_job(tiny, tmp_path / "calm", checkpoint_every=2, device="cpu")
    store = Store(tmp_path / "broken")
    with pytest.raises(Unplugged):
        run_job(tiny, store, on_step=_pull_at(3), checkpoint_every=2, device="cpu")
    path = checkpoint_path(store, resolve(tiny).id)
    raw = bytearray(path.read_bytes())
    if damage == "flip":
        raw[len(raw) // 2] ^= 0xFF
    if damage == "digit":  # of what was measured
        raw[raw.index(b'"wrong": [') + len(b'"wrong": [')] ^= 1
    path.write_bytes({"cut": raw[: len(raw) // 2], "empty": b""}.get(damage, raw))
    assert comparable(run_job(tiny, store, checkpoint_every=2, device="cpu")) == comparable(calm)


def test_a_checkpoint_of_another_state_of_the_method_costs_time_only(tiny: Job, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("slomofast.bench.parts.SOURCE_GLYPHS", 20)
    job = dataclasses.replace(tiny, method="rmt")
    calm = run_job(job, tmp_path / "calm", device="cpu")
    store = Store(tmp_path / "broken")
    with pytest.raises(Unplugged):
        run_job(job, store, on_step=_pull_at(3), checkpoint_every=2, device="cpu")
    path = checkpoint_path(store, resolve(job).id)
    key = torch.load(path, weights_only=True)["job"]
    state = read_checkpoint(path, key, torch.device("cpu"))
    assert state is not None and state.position == 2
    former = {name: value for name, value in state.adapter.items() if not name.startswith("optimizer")}
    write_checkpoint(path, dataclasses.replace(state, adapter=former))
    record = run_job(job, store, checkpoint_every=0, device="cpu")
    (told,) = set(record["warnings"]) - set(calm["warnings"])
    assert "does not load" in told and "starts over" in told and not path.exists()
    assert comparable(record | {"warnings": calm["warnings"]}) == comparable(calm)


def _pull_at(stop: int):
    def pull(step) -> None:
        if step.position >= stop:
            raise Unplugged

    return pull


def test_the_checkpoint_goes_once_the_record_is_there(tiny: Job, tmp_path) -> None:
    store = Store(tmp_path)
    with pytest.raises(Unplugged):
        run_job(tiny, store, on_step=_pull_at(3), checkpoint_every=2, device="cpu")
    path = checkpoint_path(store, resolve(tiny).id)
    assert path.exists()
    run_job(tiny, store, device="cpu")
    assert not path.exists()


def test_a_checkpoint_of_another_job_is_not_used(tiny: Job, tmp_path) -> None:
    store, other = Store(tmp_path), dataclasses.replace(tiny, seed=1)
    with pytest.raises(Unplugged):
        run_job(tiny, store, on_step=_pull_at(3), checkpoint_every=2, device="cpu")
    checkpoint_path(store, resolve(tiny).id).rename(checkpoint_path(store, resolve(other).id))
    record = run_job(other, store, device="cpu")
    assert record["environment"]["interruptions"] == 0
    assert len(record["curve"]["position"]) == 6


def test_global_random_numbers_do_not_matter(tiny: Job, tmp_path) -> None:
    resolved = resolve(dataclasses.replace(tiny, method="slomo_fast"))
    torch.manual_seed(1)
    first = execute(resolved, Store(tmp_path), RunOptions(device="cpu"))
    torch.manual_seed(2)
    second = execute(resolved, Store(tmp_path), RunOptions(device="cpu"), on_step=lambda _: torch.rand(3))
    assert comparable(first) == comparable(second)


def test_killed_at_random_moments(tmp_path) -> None:
    """kill -9, again and again: in the middle of a step, of a checkpoint, of writing the record."""
    job = Job(
        "slomo_fast",
        setting="cyclic",
        data_options={"size": 60, "domains": "gaussian_noise,fog"},
        model="wrn_10_1",
        batch_size=10,
        images_per_domain=50,
        metrics=("calibration",),
    )
    script = Path(__file__).with_name("kill_loop.py")
    words = [sys.executable, str(script), str(tmp_path), json.dumps(job.to_dict()), "2", "6", "7"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    news = json.loads(done.stdout.splitlines()[-1])
    assert news["killed"] >= 3
    calm, killed = (Store(tmp_path / name).get(news["id"]) for name in ("calm", "killed"))
    assert comparable(killed) == comparable(calm)
    assert killed["environment"]["interruptions"] >= 1
