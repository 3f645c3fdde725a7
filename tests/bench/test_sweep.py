from __future__ import annotations

import dataclasses
import math
import multiprocessing
import os
import signal
import time
from typing import Any

import pytest
import torch

import slomofast as sf
from slomofast.bench import (
    InProcess,
    Job,
    Processes,
    RunOptions,
    Store,
    Sweep,
    comparable,
    list_presets,
    load_preset,
    make_plan,
    parse_sweep,
    preset_text,
    resolve,
    run_sweep,
)
from slomofast.bench.estimate import Estimator, Length, seconds_per_step, stream_length
from slomofast.bench.run import attempt
from slomofast.bench.source import FirstBatches
from slomofast.core.adapter import Adapter
from slomofast.core.errors import ConfigError
from slomofast.streams import list_settings

CPU = RunOptions(device="cpu", checkpoint_every=2, notify_every=0.0)
FILE = """
title = "tiny"
[paths]
place = "here"
[defaults]
model = "wrn_10_1"
batch_size = 10
images_per_domain = 20
data = "small"
[data.small]
spec = "glyphs"
data_options = { size = 60, domains = "gaussian_noise,fog" }
[[grid]]
methods = ["source", { name = "tent", lr = 1e-2 }]
settings = ["continual", { name = "cyclic", cycles = 3 }]
seeds = [0, 1]
[[grid]]
methods = ["source", "bn"]
"""


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.starts: list[str] = []
        self.progress: list[Any] = []
        self.records: list[dict] = []
        self.stops: list[Any] = []

    def started(self, id: str, worker: str) -> None:
        self.starts.append(id)

    def progressed(self, progress: Any) -> None:
        self.progress.append(progress)

    def finished(self, record: dict) -> None:
        self.records.append(record)

    def stopped(self, job: Any) -> None:
        self.stops.append(job)


def small_sweep(tiny: Job, methods: tuple[str, ...] = ("source", "bn", "tent")) -> Sweep:
    return Sweep("small", "", tuple(dataclasses.replace(tiny, method=m) for m in methods))


def contents(store: Store) -> dict[str, Any]:
    return {record["id"]: comparable(record) for record in store}


# reading


def test_grids_expand_to_every_combination_once() -> None:
    jobs = parse_sweep(FILE).jobs
    assert len(jobs) == 9  # 2 x 2 x 2, and of the second grid only bn is new
    assert {(j.method, j.setting, j.seed) for j in jobs} == {
        *((m, s, seed) for m in ("source", "tent") for s in ("continual", "cyclic") for seed in (0, 1)),
        ("bn", "continual", 0),
    }
    tent = next(j for j in jobs if j.method == "tent" and j.setting == "cyclic")
    assert tent.options == {"lr": 1e-2} and tent.setting_options == {"cycles": 3}
    assert tent.data == "glyphs" and tent.data_options["size"] == 60


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tent", "tnet", "did you mean 'tent'"),
        ("cyclic", "ciclic", "did you mean 'cyclic'"),
        ("seeds", "seed_s", "did you mean 'seeds'"),
        ("batch_size", "batchsize", "did you mean 'batch_size'"),
        ("[defaults]", "[defalts]", "did you mean 'defaults'"),
        ("[[grid]]", "[[gird]]", "did you mean 'grid'"),
        ('spec = "glyphs"', 'spec = "pack:${plase}"', "plase.*neither in .paths. nor an environment variable"),
        ('spec = "glyphs"', 'spec = "pack:${place"', r"pack:\$\{place' has a \$ that begins no name; .* \$\$ for"),
        ('methods = ["source", "bn"]', "seeds = [0]", "names no methods"),
        ("title =", "title", "not valid TOML"),
    ],
)
def test_mistakes_in_a_file_are_named(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_sweep(FILE.replace(old, new))


def test_paths_are_filled_in_and_replaced() -> None:
    text = FILE.replace('spec = "glyphs"', 'spec = "pack:${place}/a.npz"')
    assert parse_sweep(text).jobs[0].data == "pack:here/a.npz"
    assert parse_sweep(text, paths={"place": "/there"}).jobs[0].data == "pack:/there/a.npz"
    with pytest.raises(ConfigError, match="did you mean 'place'"):
        parse_sweep(text, paths={"plce": "/there"})


def test_paths_are_filled_in_at_every_depth() -> None:
    text = """
[paths]
d = "here"
[defaults]
data_options = { files = "${d}/a", wnids = ["${d}"] }
[[grid]]
data = ["imagenet_c:${d}/c"]
methods = [{ name = "reservoirtta", vgg19 = "${d}/v.pth" }]
"""
    (job,) = parse_sweep(text).jobs
    assert job.data == "imagenet_c:here/c" and job.data_options == {"files": "here/a", "wnids": ["here"]}
    assert job.options == {"vgg19": "here/v.pth"}


def test_methods_not_installed_can_be_left_out() -> None:
    sweep = parse_sweep(FILE.replace('"bn"', '"not_there_yet"'), skip_unknown=True)
    assert {j.method for j in sweep.jobs} == {"source", "tent"}
    assert sweep.missing == ("not_there_yet",)


PRESETS = [
    "everything", "paper-architectures", "paper-ccc", "paper-cyclic", "paper-efficiency",
    "paper-lifelong", "paper-stochastic", "paper-summary", "quick",
]  # fmt: skip


def test_presets_are_all_there() -> None:
    assert list_presets() == PRESETS
    with pytest.raises(ConfigError, match="did you mean 'quick'"):
        preset_text("quik")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_read_and_explain_themselves(name: str) -> None:
    sweep = load_preset(name)
    assert sweep.title == name and sweep.about
    assert len(sweep.jobs) >= 5
    assert preset_text(name).startswith("#")
    assert {"source", "slomo_fast", "slomo_fast_star"} <= {job.method for job in sweep.jobs}


def test_quick_preset_resolves_without_any_file() -> None:
    ids = [resolve(job).id for job in load_preset("quick").jobs]
    assert len(set(ids)) == len(ids) == 15


def test_everything_is_every_method_in_every_setting() -> None:
    jobs = load_preset("everything").jobs
    named = [job.setting if isinstance(job.setting, str) else job.setting["name"] for job in jobs]
    methods, settings = {job.method for job in jobs}, set(named)
    assert methods == set(sf.list_methods()) - {"memo"}  # an image at a time, far slower than any other
    assert settings == set(list_settings()) - {"correlated"}
    assert len(jobs) == len(methods) * len(settings)


# running


def test_a_sweep_runs_what_is_missing(tiny: Job, tmp_path) -> None:
    store, sweep = Store(tmp_path), small_sweep(tiny)
    heard = Heard()
    summary = run_sweep(sweep, store, options=CPU, listener=heard)
    assert (summary.ran, summary.skipped, summary.ok) == (3, 0, True)
    assert [r["id"] for r in heard.records] == heard.starts == [resolve(j).id for j in sweep.jobs]
    assert heard.progress[-1].step == heard.progress[-1].steps == 6
    again = run_sweep(sweep, Store(tmp_path), options=CPU)
    assert (again.ran, again.skipped) == (0, 3)
    changed = dataclasses.replace(sweep, jobs=(*sweep.jobs, dataclasses.replace(tiny, options={"lr": 0.5})))
    assert [r.job.options for r in make_plan(changed, store).todo] == [{"lr": 0.5}]


def test_a_damaged_record_is_run_again(tiny: Job, tmp_path) -> None:
    store, sweep = Store(tmp_path), small_sweep(tiny, ("bn",))
    run_sweep(sweep, store, options=CPU)
    before = contents(store)
    path = store.record_path(resolve(sweep.jobs[0]).id)
    path.write_bytes(path.read_bytes()[:-500])
    summary = run_sweep(sweep, Store(tmp_path), options=CPU)
    assert summary.ran == 1 and [p.name for p in summary.damaged] == [path.name + ".damaged-1"]
    assert contents(Store(tmp_path)) == before


def test_failing_jobs_do_not_stop_the_others(tiny: Job, tmp_path) -> None:
    too_long = dataclasses.replace(tiny, images_per_domain=999)
    no_data = dataclasses.replace(tiny, data="pack:/nowhere.npz", data_options={})
    sweep = Sweep("mixed luck", "", (too_long, no_data, tiny))
    store = Store(tmp_path)
    summary = run_sweep(sweep, store, options=CPU)
    assert summary.ran == 1 and len(summary.failed) == 2 and not summary.ok
    reasons = {row.reason for row in store.rows().values() if row.status == "failed"}
    assert any("999" in r for r in reasons) and any("nowhere" in r for r in reasons)
    again = run_sweep(sweep, Store(tmp_path), options=CPU)
    assert (again.ran, again.skipped, len(again.failed)) == (0, 1, 2)
    assert len(make_plan(sweep, store, retry_failed=True).todo) == 1  # what cannot be completed is always looked at


def test_a_job_that_can_start_after_all_replaces_its_failure(tiny: Job, tmp_path, monkeypatch) -> None:
    from slomofast.models import load_source, save_weights

    path = tmp_path / "late.safetensors"
    sweep = Sweep("late", "", (dataclasses.replace(tiny, weights=(str(path),)),))
    store = Store(tmp_path / "runs")
    assert len(run_sweep(sweep, store, options=CPU).failed) == 1
    save_weights(load_source("wrn_10_1"), path)
    assert run_sweep(sweep, store, options=CPU).ran == 1
    assert [row.status for row in store.rows().values()] == ["done"]


def test_looking_at_held_out_images_counts(tiny: Job) -> None:
    job = dataclasses.replace(tiny, setting="cyclic", metrics=("forgetting",))
    length = stream_length(resolve(job))  # six of sixty images, batches of ten; one domain seen, then two
    assert length.steps == 12 and length.looks == pytest.approx(0.6 * (1 + 2 + 2 + 2))


def test_estimates_come_from_records_or_calibration(tiny: Job, tmp_path) -> None:
    store, sweep = Store(tmp_path), small_sweep(tiny, ("source", "tent"))
    plan = make_plan(sweep, store)
    unknown = Estimator()
    assert stream_length(plan.todo[0]) == Length(6, 0)
    assert unknown.seconds(plan.todo[0]) != unknown.seconds(plan.todo[0])
    unknown.calibrate(plan.todo, CPU, budget=0.0)
    assert not any(map(unknown.knows, plan.todo))
    unknown.calibrate(plan.todo, CPU)
    assert all(map(unknown.knows, plan.todo))
    assert all(0 < unknown.seconds(job) < 60 for job in plan.todo)
    assert not list(tmp_path.glob("*.json"))
    run_sweep(sweep, store, options=CPU)
    known = Estimator.from_records(store.rows().values(), "cpu")
    row = store.row(plan.todo[1].id)
    assert row is not None and known.seconds(plan.todo[1]) == pytest.approx(row.seconds)


def test_a_trial_looks_at_few_source_images_and_ends_with_its_time(tiny: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, steps = [], []
    fit = Adapter.fit_source
    monkeypatch.setattr(Adapter, "fit_source", lambda self, loader: fit(self, [seen.append(1) or b for b in loader]))
    play = Adapter.forward
    monkeypatch.setattr(Adapter, "forward", lambda self, x: (steps.append(1), play(self, x))[1])
    job = resolve(dataclasses.replace(tiny, method="rmt", batch_size=2))
    assert seconds_per_step(job, CPU, 1e-9) is not None
    assert len(seen) == len(steps) == 1
    assert seconds_per_step(job, CPU, 1e9) is not None
    assert len(seen) > 10 and len(steps) == 1 + 4


def test_batches_of_a_trial_are_the_same_each_time() -> None:
    batches = [(torch.full((1,), float(n)), torch.zeros(1)) for n in range(5)]
    few = FirstBatches(batches, 0.0)
    assert [len(list(few)), len(list(few))] == [1, 1]
    some = FirstBatches(batches, math.inf)
    assert [len(list(some)), len(list(some))] == [5, 5]
    assert list(FirstBatches([], 1.0)) == []


# other processes


class Assassin(Heard):
    """Kills the worker that runs a job as soon as it has made some steps, a number of times."""

    def __init__(self, victim: str, kills: int) -> None:
        super().__init__()
        self.victim, self.kills = victim, kills

    def progressed(self, progress: Any) -> None:
        super().progressed(progress)
        if progress.id == self.victim and progress.step >= 3 and self.kills > 0:
            self.kills -= 1
            for child in multiprocessing.active_children():
                os.kill(child.pid, signal.SIGKILL)
            time.sleep(0.1)


def test_worker_processes_give_the_same_records_even_when_killed(tiny: Job, tmp_path) -> None:
    long = dataclasses.replace(tiny, setting="cyclic")
    sweep = Sweep(
        "killed", "", (long, dataclasses.replace(tiny, method="bn"), dataclasses.replace(tiny, method="source"))
    )
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    run_sweep(sweep, here, InProcess(threads=1), CPU)
    assassin = Assassin(resolve(long).id, kills=1)
    summary = run_sweep(sweep, there, Processes(2, threads=1), CPU, assassin)
    assert summary.ran == 3 and len(assassin.records) == 3
    assert assassin.starts.count(resolve(long).id) >= 2  # more on a busy machine, where a new worker may be late
    assert contents(here) == contents(there)


def test_a_job_that_kills_every_worker_is_given_up(tiny: Job, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("slomofast.bench.executors.LIVES", 1)
    assassin = Assassin(resolve(tiny).id, kills=9)
    options = RunOptions(device="cpu", notify_every=0.0)
    summary = run_sweep(Sweep("deadly", "", (tiny,)), Store(tmp_path), Processes(1, threads=1), options, assassin)
    assert not summary.ok and "died 1 times (last exit code -9)" in summary.failed[0][2]
    row = Store(tmp_path).row(resolve(tiny).id)
    assert row is not None and row.status == "failed"


def test_a_sweep_whose_time_is_up_goes_on_from_there(tiny: Job, tmp_path, monkeypatch) -> None:
    sweep, calm, store = small_sweep(tiny), Store(tmp_path / "calm"), Store(tmp_path / "short")
    run_sweep(sweep, calm, options=CPU)
    asked = iter(range(99))  # before each job, and after each of its steps but the last
    monkeypatch.setattr(RunOptions, "time_is_up", property(lambda self: self.until is not None and next(asked) > 8))
    heard, limited = Heard(), dataclasses.replace(CPU, until=0.0)
    summary = run_sweep(sweep, store, options=limited, listener=heard)
    assert summary.ok and (summary.ran, summary.left) == (1, 2)
    assert heard.stops == [(resolve(sweep.jobs[1]).id, 3, 6)] and len(heard.starts) == 2
    summary = run_sweep(sweep, store, options=CPU)
    assert (summary.skipped, summary.ran, summary.left) == (1, 2, 0)
    assert contents(store) == contents(calm)
    assert store.find(resolve(sweep.jobs[1]).id)["environment"]["interruptions"] == 1


def test_a_stopped_job_goes_on_though_no_checkpoints_are_asked_for(tiny: Job, tmp_path) -> None:
    options = RunOptions(device="cpu", checkpoint_every=0, until=0.0)
    for step in (1, 2):
        assert attempt(resolve(tiny), Store(tmp_path), options) == (resolve(tiny).id, step, 6)
    summary = run_sweep(small_sweep(tiny), Store(tmp_path), options=options)
    assert (summary.ran, summary.left) == (0, 3)
    record = attempt(resolve(tiny), Store(tmp_path), dataclasses.replace(options, until=None))
    assert record["environment"]["interruptions"] == 2 and record["curve"]["position"] == list(range(6))


def stopped_by_workers(sweep: Sweep, store: Store, executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that find their time to be up, which the process that hands out jobs does not."""
    heard = Heard()
    with monkeypatch.context() as here:
        here.setattr(RunOptions, "time_is_up", False)
        summary = run_sweep(sweep, store, executor, dataclasses.replace(CPU, until=0.0), heard)
    assert summary.ok and (summary.ran, summary.left) == (0, len(sweep.jobs))
    assert {(stop.step, stop.steps) for stop in heard.stops} == {(1, 6)}
    assert {stop.id for stop in heard.stops} == {resolve(job).id for job in sweep.jobs}


def test_worker_processes_stop_when_the_time_is_up(tiny: Job, tmp_path, monkeypatch) -> None:
    sweep, here, there = small_sweep(tiny), Store(tmp_path / "here"), Store(tmp_path / "there")
    executor = Processes(2, threads=1)
    stopped_by_workers(sweep, there, executor, monkeypatch)
    heard = Heard()
    assert run_sweep(sweep, there, executor, dataclasses.replace(CPU, until=0.0), heard).left == 3 and not heard.starts
    run_sweep(sweep, here, options=CPU)
    assert run_sweep(sweep, there, executor, CPU).left == 0
    assert contents(here) == contents(there)
    assert {record["environment"]["interruptions"] for record in there} == {1}


def test_executors_refuse_nonsense() -> None:
    with pytest.raises(ConfigError, match="workers is 0"):
        Processes(0)
    with pytest.raises(ConfigError, match="per_gpu is 0"):
        Processes(1, per_gpu=0)


def test_ray_gives_the_same_records_and_survives_a_lost_worker(tiny: Job, tmp_path, monkeypatch) -> None:
    ray = pytest.importorskip("ray")
    from slomofast.bench.cluster import RayCluster

    long = dataclasses.replace(tiny, setting="cyclic", setting_options={"cycles": 6}, method="slomo_fast")
    sweep = Sweep("ray", "", (long, dataclasses.replace(tiny, method="bn")))
    here, there = Store(tmp_path / "here"), Store(tmp_path / "there")
    run_sweep(sweep, here, InProcess(threads=1), CPU)

    class Thief(Heard):
        stolen = 0

        def progressed(self, progress: Any) -> None:
            super().progressed(progress)
            if progress.id == resolve(long).id and progress.step >= 3 and not self.stolen:
                self.stolen = kill_ray_worker()

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        thief = Thief()
        summary = run_sweep(sweep, there, RayCluster(threads=1), CPU, thief)
        stopped_by_workers(small_sweep(tiny), Store(tmp_path / "stopped"), RayCluster(threads=1), monkeypatch)
        late = dataclasses.replace(CPU, until=0.0)
        assert run_sweep(small_sweep(tiny), Store(tmp_path / "late"), RayCluster(threads=1), late).left == 3
    finally:
        ray.shutdown()
    assert thief.stolen, "no worker was killed: the test tested nothing"
    assert summary.ran == 2 and summary.ok
    assert len(thief.starts) == 3  # on a busy machine the short job may still run, and its worker be the one killed
    assert contents(here) == contents(there)


def kill_ray_worker() -> int:
    """Kill the process of this machine that is running `_work`; its id, or 0 if none was found."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    title = file.read()
            except OSError:
                continue
            if title.startswith(b"ray::_work"):
                os.kill(int(entry), signal.SIGKILL)
                return int(entry)
    return 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[grid]]\nmethods = [{ name = "tent", lr = "fast" }]', r"grid 1: lr must be float, got 'fast'"),
        ('[[grid]]\nmethods = [{ name = "bn", nope = 1 }]', r"grid 1: .*'nope'"),
        ('[[grid]]\nmethods = ["bn"]\nsettings = [{ name = "cyclic", cycels = 2 }]', r"grid 1: .*'cycels'.*'cycles'"),
        ('[[grid]]\nmethods = ["bn"]\nseeds = []', "seeds is an empty list"),
        ('[[grid]]\nmethods = ["bn"]\nimages_per_domain = "many"', "images_per_domain must be a whole number"),
        ('[grid]\nmethods = ["bn"]', "double brackets"),
        ('[data.x]\nmodel = "wrn_10_1"\n[[grid]]\nmethods = ["bn"]', r"\[data.x\] has no spec"),
        ('data = ["a"]\n[[grid]]\nmethods = ["bn"]', r"mine.toml: \[data.NAME\] is a table, got \['a'\]"),
        ('data.x = "pack:a"\n[[grid]]\nmethods = ["bn"]', r"\[data.x\] is a table, got 'pack:a'"),
        ('grid = ["bn"]', r"\[\[grid\]\] is a table, got 'bn'"),
        (
            '[[grid]]\nmethods = ["bn"]\ndata = [{ spec = "glyphs" }]',
            r"grid 1: data names .*, got \{'spec': 'glyphs'\}",
        ),
        ('plugins = ["no_such_package"]\n[[grid]]\nmethods = ["bn"]', r"plugin 'no_such_package' cannot be imported"),
    ],
)
def test_mistakes_in_a_file_are_named_before_anything_runs(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_sweep(text, "mine.toml")


def test_all_metrics_have_a_short_name() -> None:
    (job,) = parse_sweep('[[grid]]\nmethods = ["bn"]\nmetrics = "all"', "mine.toml").jobs
    assert {"error", "adaptation", "forgetting", "recovery", "calibration", "cost"} == set(job.metrics)


def test_recorded_passes_are_another_kind_of_job(tiny: Job) -> None:
    plain, recorded = resolve(tiny), resolve(dataclasses.replace(tiny, graphs=True))
    known = Estimator(lengths={plain.id: Length(6, 0), recorded.id: Length(6, 0)})
    known.learn(plain, 6.0)
    known.learn(recorded, 3.0)
    assert (known.seconds(plain), known.seconds(recorded)) == (6.0, 3.0)
