from __future__ import annotations

import dataclasses
import errno
import os
import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import slomofast as sf
from slomofast.bench import Job, RunOptions, Store, comparable, evaluate, resolve, run_job
from slomofast.bench import run as run_module
from slomofast.bench.cost import DeviceMemory, Yardstick, cost_figures, forward_seconds, typical
from slomofast.bench.outcome import out_of_memory
from slomofast.bench.parts import job_data, job_model, pick_device, restricted
from slomofast.bench.run import attempt, checkpoint_path, keep
from slomofast.bench.source import fit_source
from slomofast.bench.trace import Diagnostics, member_errors
from slomofast.core.errors import ConfigError, DataError, InputError
from slomofast.core.fingerprint import fingerprint
from slomofast.core.registry import describe
from slomofast.metrics import Curve
from slomofast.streams import Stream


def make_stream(job: Job, setting: str = "continual") -> Stream:
    return Stream(setting, job_data(job), batch_size=10, images_per_domain=30)


def test_a_record_knows_the_source_images_that_its_method_learned_from(tiny: Job) -> None:
    other = dataclasses.replace(tiny, source="glyphs")
    assert resolve(other).fingerprints["source"] == resolve(tiny).fingerprints["source"] == ""
    learned = resolve(dataclasses.replace(other, method="rmt"))
    assert len(learned.fingerprints["source"]) > 6 and learned.id != resolve(dataclasses.replace(tiny, method="rmt")).id


def test_evaluate_yields_a_step_per_batch(tiny: Job) -> None:
    stream = make_stream(tiny)
    steps = list(evaluate(sf.adapt(job_model(tiny), "tent"), stream))
    assert [step.position for step in steps] == list(range(6)) == list(range(len(stream)))
    assert all(step.logits.shape == (10, 10) and not step.logits.requires_grad for step in steps)
    assert all(step.seconds > 0 and step.peak_bytes > 2**20 for step in steps)
    assert [bool((step.domain == step.segment).all()) for step in steps] == [True] * 6
    assert "entropy" in steps[0].diagnostics


def test_evaluate_predicts_before_it_learns(tiny: Job) -> None:
    """The first batch is predicted as by the unadapted method; later ones depend on having learned."""
    stream = make_stream(tiny)
    learned = [s.logits for s in evaluate(sf.adapt(job_model(tiny), "tent", lr=0.05), stream)]
    fixed = [s.logits for s in evaluate(sf.adapt(job_model(tiny), "bn"), stream)]
    assert torch.allclose(learned[0], fixed[0], atol=1e-5)
    assert not torch.allclose(learned[5], fixed[5], atol=1e-3)


def test_evaluate_resets_where_the_stream_says_so(tiny: Job) -> None:
    adapter = sf.adapt(job_model(tiny), "tent", lr=0.05)
    steps = list(evaluate(adapter, make_stream(tiny, "episodic"), timing=False))
    fresh = sf.adapt(job_model(tiny), "tent", lr=0.05)
    alone = Stream("continual", job_data(tiny), batch_size=10, images_per_domain=30, domains=["fog"])
    expected = [s.logits for s in evaluate(fresh, alone, timing=False)]
    assert all(torch.equal(step.logits, logits) for step, logits in zip(steps[3:], expected, strict=True))
    assert steps[0].seconds is None


def test_a_part_of_the_classes(tiny: Job) -> None:
    """Labels 0, 1, 2 stand for the network's classes 7, 2, 4: logits are cut, before adaptation where possible."""
    data, model = job_data(tiny), job_model(tiny)
    mask = np.array([7, 2, 4])
    images = torch.rand(5, 3, 32, 32)
    small = restricted(model, mask, images[:2])
    assert small is not None and torch.allclose(small(images), model(images)[:, mask], atol=1e-6)
    assert model(images).shape == (5, 10)
    data.class_mask = mask
    stream = Stream("continual", data, batch_size=10, images_per_domain=10)
    (step, *_) = evaluate(sf.adapt(model, "source"), stream)
    assert step.logits.shape == (10, 3)
    assert torch.equal(step.logits, model(stream.batch(0).images)[:, mask])
    assert restricted(nn.Sequential(nn.Flatten(), nn.Softmax(1)), mask, images) is None


def test_the_classes_go_to_the_device_once(tiny: Job, monkeypatch) -> None:
    stream = make_stream(tiny)
    stream.data.class_mask = mask = np.array([7, 2, 4])
    adapter, real, made = sf.adapt(job_model(tiny), "source"), torch.as_tensor, []

    def as_tensor(data: object, **options: object) -> torch.Tensor:
        made.extend([options] if data is mask else [])
        return real(data, **options)

    monkeypatch.setattr(torch, "as_tensor", as_tensor)
    assert len(list(evaluate(adapter, stream))) == 6
    assert made == [{"device": torch.device("cpu")}]


class Spoilt:
    """A stream with a batch that holds a NaN."""

    def __init__(self, stream: Stream, position: int) -> None:
        self.stream, self.data, self.position = stream, stream.data, position

    def __iter__(self):
        for batch in self.stream:
            bad = batch.position == self.position
            yield dataclasses.replace(batch, images=batch.images * float("nan")) if bad else batch


@pytest.mark.parametrize(("setting", "position"), [("continual", 5), ("episodic", 2)])
def test_a_bad_batch_is_told_of_though_no_call_follows(tiny: Job, setting: str, position: int) -> None:
    adapter = sf.adapt(job_model(tiny), "source", check_input="deferred")
    steps = []
    with pytest.raises(InputError, match="held NaN or Inf"):
        for step in evaluate(adapter, Spoilt(make_stream(tiny, setting), position)):
            steps.append(step.position)
    assert steps[-1] == position


def test_no_checkpoint_is_written_after_a_bad_batch(tiny: Job, tmp_path, monkeypatch) -> None:
    real_adapt, real_batch = sf.adapt, Stream.batch

    def batch(self: Stream, position: int):
        found = real_batch(self, position)
        return dataclasses.replace(found, images=found.images * float("nan")) if position == 3 else found

    monkeypatch.setattr(sf, "adapt", lambda *args, **named: real_adapt(*args, **{**named, "check_input": "deferred"}))
    monkeypatch.setattr(Stream, "batch", batch)
    for _ in range(2):  # a second attempt must not pass over it
        record = attempt(resolve(tiny), Store(tmp_path), RunOptions(device="cpu", checkpoint_every=4))
        assert record["status"] == "failed" and "held NaN or Inf" in record["reason"]


def test_record_tells_the_whole_story(tiny: Job, tmp_path) -> None:
    job = dataclasses.replace(
        tiny, setting="cyclic", method="slomo_fast", options={"lr": 1e-3}, metrics=("forgetting", "recovery", "cost")
    )
    seen = []
    record = run_job(job, tmp_path, on_step=seen.append, device="cpu")
    assert len(seen) == 12
    stored = Store(tmp_path).get(record["id"])
    assert {k: v for k, v in stored.items() if k != "checksum"} == record
    curve = Curve.from_dict(record["curve"])
    wrong = [int((s.logits.argmax(1) != s.target).sum()) for s in seen]
    assert curve["wrong"] == wrong
    assert record["metrics"]["error"]["samples"] == pytest.approx(100 * sum(wrong) / 120)
    assert record["job"]["overrides"] == {"lr": 1e-3} and record["job"]["options"]["lr"] == 1e-3
    assert len(record["diagnostics"]["queue_fill"]) == 12
    assert [s["domain"] for s in record["segments"]] == ["gaussian_noise", "fog"] * 2
    assert set(record["metrics"]["forgetting"]["members"]) == {"student", "fast", "slow"}
    assert len(record["metrics"]["forgetting"]["matrix"]) == 4
    assert record["metrics"]["forgetting"]["matrix"][0][1] is None
    cost = record["metrics"]["cost"]
    assert cost["forward_multiple"] > 1 and cost["milliseconds_p95"] >= cost["milliseconds_median"] > 0
    assert record["fingerprints"]["stream"] and record["environment"]["torch"] == torch.__version__


def test_errors_of_the_members_and_of_their_sums(tiny: Job, tmp_path) -> None:
    plain = dataclasses.replace(tiny, method="slomo_fast", options={"calibrate": False})
    record = run_job(plain, tmp_path, device="cpu")
    members = record["metrics"]["members"]
    assert len(members) == 7  # three alone, three pairs, all
    # uncalibrated, the method predicts with the plain sum of all three
    assert members["student+fast+slow"] == pytest.approx(record["metrics"]["error"]["samples"], abs=1e-3)
    alone = run_job(
        dataclasses.replace(plain, options={"calibrate": False, "members": ("slow",)}), tmp_path, device="cpu"
    )
    assert members["slow"] == pytest.approx(alone["metrics"]["error"]["samples"], abs=1e-3)


def test_member_errors_by_hand() -> None:
    logits = {
        "a": torch.tensor([[3.0, 0.0, 2.0], [1.0, 0.0, 0.0]]),
        "b": torch.tensor([[0.0, 2.9, 2.0], [0.0, 0.0, 4.0]]),
    }
    found = member_errors(logits, torch.tensor([2, 2]))  # sums: [3, 2.9, 4] and [1, 0, 4]
    assert {name: float(value) for name, value in found.items()} == {"error_a": 100, "error_b": 50, "error_a+b": 0}


def test_a_preset_among_the_options_is_what_runs(tiny: Job, tmp_path) -> None:
    def loss(options: dict, folder: str) -> float:
        job = dataclasses.replace(tiny, method="slomo_fast_star", options=options, metrics=("calibration",))
        return run_job(job, tmp_path / folder, device="cpu")["metrics"]["calibration"]["nll"]

    spelled = describe("slomo_fast_star").adapter.Config.PRESETS["paper"]
    assert loss({"preset": "paper"}, "a") == loss(dict(spelled), "b") != loss({}, "c")


def test_a_record_that_exists_is_not_made_again(tiny: Job, tmp_path) -> None:
    first = run_job(tiny, tmp_path, device="cpu")

    def never(_: object) -> None:
        raise AssertionError("the job ran again")

    again = run_job(tiny, tmp_path, on_step=never, device="cpu")
    assert again["started"] == first["started"] and again["curve"] == first["curve"]


def test_source_errors_are_measured_once_and_kept(tiny: Job, tmp_path, monkeypatch) -> None:
    job = dataclasses.replace(tiny, setting="easy2hard")
    record = run_job(job, tmp_path, device="cpu")
    errors = record["job"]["source_errors"]
    assert set(errors) == {"gaussian_noise", "fog"}
    order = [s["domain"] for s in record["segments"]]
    assert order == sorted(errors, key=errors.__getitem__)
    monkeypatch.setattr("slomofast.bench.source.measure_source_errors", None)  # calling it again would fail
    reverse = run_job(dataclasses.replace(job, setting="hard2easy"), tmp_path, device="cpu")
    assert reverse["job"]["source_errors"] == errors


def test_source_knowledge_is_fitted_once_and_survives_a_reset(tiny: Job, tmp_path, monkeypatch) -> None:
    job = dataclasses.replace(tiny, method="eata", setting="episodic")
    monkeypatch.setattr("slomofast.bench.parts.SOURCE_GLYPHS", 40)
    fitted = run_job(job, tmp_path, device="cpu")
    assert not any("--source" in note for note in fitted["warnings"])  # glyphs have training images of their own
    Store(tmp_path).discard(fitted["id"])
    monkeypatch.setattr("slomofast.bench.source.clean_batches", None)  # fitting again would fail
    again = run_job(job, tmp_path, device="cpu")
    assert again["started"] and comparable(again) == comparable(fitted)


def fitted(job: Job, model: nn.Module, cache: Path) -> dict:
    resolved, data = resolve(job), job_data(job)
    adapter = sf.adapt(model, job.method, probe=torch.rand(2, 3, 32, 32))
    fit_source(adapter, resolved, data, cache)
    return adapter.state_dict()


def test_source_knowledge_of_other_classes_is_another(tiny: Job, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("slomofast.bench.parts.SOURCE_GLYPHS", 40)
    job, model = dataclasses.replace(tiny, method="eata"), job_model(tiny)
    for classes in ([7, 2, 4], [7, 2, 5]):
        fitted(job, restricted(model, np.array(classes), torch.rand(2, 3, 32, 32)), tmp_path)
    fitted(job, model, tmp_path)
    assert len(list(tmp_path.glob("fit-eata-*.pt"))) == 3
    monkeypatch.setattr("slomofast.__version__", "0.0.1")
    fitted(job, model, tmp_path)
    assert len(list(tmp_path.glob("fit-eata-*.pt"))) == 4


def test_source_knowledge_that_does_not_load_leaves_no_trace(tiny: Job, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("slomofast.bench.parts.SOURCE_GLYPHS", 40)
    job, model = dataclasses.replace(tiny, method="eata"), job_model(tiny)
    clean = fitted(job, model, tmp_path)
    (path,) = tmp_path.glob("fit-*.pt")
    state = {name: value * 0 if isinstance(value, torch.Tensor) else value for name, value in clean.items()}
    last = [name for name, value in state.items() if isinstance(value, torch.Tensor) and value.dim()][-1]
    state[last] = torch.zeros(3, 1)
    torch.save({"state": state, "digest": fingerprint(state)}, path)
    assert fingerprint(fitted(job, model, tmp_path)) == fingerprint(clean)
    assert torch.load(path, weights_only=True)["digest"] == fingerprint(clean)


def test_source_images_of_the_stream_itself_are_confessed(tiny: Job, tmp_path) -> None:
    from slomofast.data import write_pack

    letters = job_data(tiny)
    pixels = letters.clean(np.arange(60)).permute(0, 2, 3, 1).numpy()
    path = write_pack(tmp_path / "letters.npz", pixels, letters.labels(""), list("ABCDEFGHKR"))
    job = dataclasses.replace(tiny, method="eata", data=f"pack:{path}")
    job = dataclasses.replace(job, data_options={"domains": "gaussian_noise,fog"})
    record = run_job(job, tmp_path / "runs", device="cpu")
    assert any("name training images with --source" in note for note in record["warnings"])
    assert any("wrn_10_1 has random weights" in note for note in record["warnings"])
    named = dataclasses.replace(job, source="glyphs")
    assert resolve(named).id != resolve(job).id


def test_failures_become_records(tiny: Job, tmp_path) -> None:
    resolved = resolve(dataclasses.replace(tiny, images_per_domain=500))
    record = attempt(resolved, Store(tmp_path), RunOptions(device="cpu"))
    assert record["status"] == "failed"
    assert "images_per_domain 500 is more than the 60 images" in record["reason"]
    assert "Traceback" in record["traceback"]


def _starved(limit: int):
    """A stand-in for `execute` that runs out of memory above a batch size."""
    real = run_module.execute

    def execute(resolved, *rest, **options):
        if resolved.job.batch_size > limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(resolved, *rest, **options)

    return execute


def test_out_of_memory_fails_unless_asked(tiny: Job, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(run_module, "execute", _starved(5))
    record = attempt(resolve(tiny), Store(tmp_path), RunOptions(device="cpu"))
    assert record["status"] == "failed" and "out of memory with batch size 10" in record["reason"]


def test_out_of_memory_tries_once_with_half_the_batch(tiny: Job, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(run_module, "execute", _starved(5))
    options = RunOptions(device="cpu", on_oom="micro-batch")
    store = Store(tmp_path)
    record = attempt(resolve(tiny), store, dataclasses.replace(options, checkpoint_every=2))
    half = checkpoint_path(store, f"{record['id']}-half")
    assert half.exists()  # until the record is in the store
    keep(record, store)
    assert not half.exists() and record["id"] in store
    assert record["status"] == "done" and record["id"] == resolve(tiny).id
    assert record["micro_batch"] == 5 and "ran with 5 instead" in record["warnings"][0]
    assert set(record["curve"]["count"]) == {5}
    monkeypatch.setattr(run_module, "execute", _starved(2))
    record = attempt(resolve(tiny), Store(tmp_path), options)
    assert record["status"] == "failed" and "out of memory again" in record["reason"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_out_of_memory_is_recognised(error: Exception, expected: bool) -> None:
    assert out_of_memory(error) is expected


def test_impossible_run_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'micro-batch'"):
        RunOptions(on_oom="microbatch")
    with pytest.raises(ConfigError, match="is no device"):
        pick_device("gpu0")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="torch sees no GPU"):
            pick_device("cuda")


def test_diagnostics_line_up_with_steps() -> None:
    figures = Diagnostics()
    for step in range(130):  # across two flushes
        values = {"always": torch.tensor(float(step))}
        if step >= 70:
            values["late"] = 1.0
        figures.update(values)
    halfway = Diagnostics(figures.to_dict(), figures.steps)
    halfway.update({"late": float("inf")})
    columns = halfway.to_dict()
    assert columns["always"] == [*map(float, range(130)), None]
    assert columns["late"] == [None] * 70 + [1.0] * 60 + [None]


def test_the_typical_step_counts_both_kinds_of_steps_in_turn() -> None:
    assert typical([1.0, 3.0] * 10) == typical([3.0, 1.0] * 10 + [3.0]) == 2.0  # a median of singles: 2 or 3
    assert typical([1.0, 1.0, 1.0, 5.0] * 5) == 2.0
    assert typical([1.0] * 8 + [100.0] * 4) == 1.0  # what else the machine did
    assert typical([2.0, 4.0, 6.0]) == 4.0
    turns = cost_figures([1.0, 3.0] * 6, [20] * 12, forward=0.5, peak_device=None, peak_host=None, trainable_share=None)
    assert turns["forward_multiple"] == 4.0 and turns["milliseconds_median"] == 3000.0


def test_cost_figures_by_hand() -> None:
    seconds = [9.0, 9.0, 9.0, *[0.1] * 18, 0.3, 0.01]
    counts = [20] * 22 + [2]
    figures = cost_figures(seconds, counts, forward=0.05, peak_device=None, peak_host=7, trainable_share=0.25)
    assert figures["milliseconds_median"] == pytest.approx(100)
    assert figures["milliseconds_p95"] == pytest.approx(120)  # of 19: a tenth of the way from the last but one to 300
    assert figures["forward_multiple"] == pytest.approx(2)
    assert figures["images_per_second"] == pytest.approx((19 * 20 + 2) / (1.8 + 0.3 + 0.01))
    assert figures["trainable_percent"] == 25 and figures["peak_host_bytes"] == 7
    untimed = cost_figures([None] * 2, [20] * 2, forward=None, peak_device=1, peak_host=1, trainable_share=None)
    assert untimed["milliseconds_median"] is None and untimed["forward_multiple"] is None


class FakeDevice:
    """Stands for the allocator of a CUDA device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.most = 0
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: self.now)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: self.most)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: self.use(0))

    def use(self, size: int, kept: int = 0) -> None:
        """Allocate so much, of which `kept` stays; nothing at all forgets the peak."""
        self.most = max(self.most if size else 0, self.now + size)
        self.now += kept


def test_the_memory_of_a_method_is_its_own(monkeypatch) -> None:
    device, memory = FakeDevice(monkeypatch), DeviceMemory(torch.device("cuda"))
    device.use(16_000, kept=16_000)  # images and the source network
    with memory.of_method():
        device.use(900, kept=300)  # the adapter, and what building it took
    device.use(5_000)  # the yardstick
    device.use(1, kept=-1_000)  # the source network goes
    memory.start()
    assert memory.peak == 300
    device.use(200, kept=50)  # a step, in which the adapter grows
    probe = SimpleNamespace(kept_bytes=0)
    with memory.leave_out(probe):
        device.use(7_000, kept=400)
        probe.kept_bytes = 400
    assert memory.peak == 500
    device.use(250)
    assert memory.peak == 600
    assert DeviceMemory(torch.device("cpu")).peak is None


def test_forward_time_grows_with_the_batch(tiny: Job) -> None:
    model = job_model(tiny)
    small, large = (forward_seconds(model, torch.rand(n, 3, 32, 32), "fp32", repeats=3) for n in (2, 64))
    assert 0 < small < large


def test_the_yardstick_is_laid_on_again_during_the_stream(tiny: Job) -> None:
    yardstick = Yardstick(job_model(tiny), torch.rand(4, 3, 32, 32), "fp32")
    before = len(yardstick.times)
    for position in range(45):
        yardstick.update(position)
    assert len(yardstick.times) == before + 2
    assert min(yardstick.times) <= yardstick.seconds <= max(yardstick.times)


def test_damage_that_the_index_does_not_see_is_made_good(tiny: Job, tmp_path) -> None:
    """A changed digit leaves size and time as they were: the record is set aside, named, and made again."""
    first = run_job(tiny, tmp_path, device="cpu")
    path = Store(tmp_path).record_path(first["id"])
    stat, raw = path.stat(), path.read_bytes()
    path.write_bytes(raw.replace(b'"skipped_steps": 0', b'"skipped_steps": 7'))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == stat.st_size and path.read_bytes() != raw
    with pytest.warns(UserWarning, match=f"set aside as .*{path.name}.damaged-1"):
        again = run_job(tiny, tmp_path, device="cpu")
    assert comparable(again) == comparable(first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run_job(tiny, tmp_path, device="cpu")["started"] == again["started"]


def test_a_folder_that_cannot_be_written_is_noticed_before_the_work(tiny: Job, tmp_path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    done = run_job(tiny, tmp_path, device="cpu")
    monkeypatch.setattr(run_module, "execute", lambda *_: pytest.fail("the work began"))
    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(DataError, match=re.escape(str(tmp_path)) + ".*Permission denied.*make it writable"):
        run_job(dataclasses.replace(tiny, seed=1), tmp_path, device="cpu")
    assert run_job(tiny, tmp_path, device="cpu")["id"] == done["id"]  # what is there can still be read
