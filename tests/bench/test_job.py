from __future__ import annotations

import dataclasses
import shutil

import pytest

from slomofast.bench import Job, resolve
from slomofast.bench.job import canonical, digest, plain
from slomofast.bench.parts import source_data
from slomofast.core.errors import ConfigError, ModelError, SlomofastError
from slomofast.data import open_data
from slomofast.models import load_source, save_weights


def test_same_job_same_id_in_any_spelling(tiny: Job) -> None:
    expected = resolve(tiny).id
    assert resolve(Job.from_dict(tiny.to_dict())).id == expected
    written_out = dataclasses.replace(tiny, options=resolve(tiny).options, setting_options={})
    assert resolve(written_out).id == expected
    assert resolve(dataclasses.replace(tiny, severity=5, metrics=("cost", "calibration"))).id == expected


@pytest.mark.parametrize(
    "change",
    [
        {"method": "bn"},
        {"options": {"lr": 2e-3}},
        {"setting": "mixed"},
        {"seed": 1},
        {"batch_size": 5},
        {"images_per_domain": 20},
        {"severity": 3},
        {"precision": "bf16"},
        {"metrics": ("error",)},
        {"domains": ("fog",)},
        {"model": "wrn_16_1"},
        {"channels_last": True},
        {"data_options": {"size": 50, "domains": "gaussian_noise,fog"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_changes_the_result_changes_the_id(tiny: Job, change: dict) -> None:
    assert resolve(dataclasses.replace(tiny, **change)).id != resolve(tiny).id


def test_a_preset_may_be_named_among_the_options(tiny: Job) -> None:
    job = dataclasses.replace(tiny, method="slomo_fast", options={"preset": "paper", "lr": 0.5})
    found = resolve(job).options
    assert found["members"] == ["student", "slow"] and found["lr"] == 0.5


def test_setting_options_at_their_default_do_not_count(tiny: Job) -> None:
    short = dataclasses.replace(tiny, setting="cyclic")
    assert resolve(short).id == resolve(dataclasses.replace(short, setting_options={"cycles": 2})).id
    assert resolve(short).id != resolve(dataclasses.replace(short, setting_options={"cycles": 3})).id


def test_id_is_frozen() -> None:
    """An id that changes silently makes every store worthless; change this number only on purpose."""
    identity = {"method": "tent", "options": {"lr": 0.001}, "seed": 0, "domains": None, "metrics": ("error",)}
    assert canonical(identity) == '{"domains":null,"method":"tent","metrics":["error"],"options":{"lr":0.001},"seed":0}'
    assert digest(identity) == "3bc7c88f3f5a9154"


def test_weights_count_by_content_not_by_place(tiny: Job, tmp_path) -> None:
    first, moved, other = (tmp_path / f"{name}.safetensors" for name in ("first", "moved", "other"))
    model = load_source("wrn_10_1")
    save_weights(model, first)
    shutil.copy(first, moved)
    model.fc.bias.data += 1
    save_weights(model, other)
    ids = [resolve(dataclasses.replace(tiny, weights=(str(p),))).id for p in (first, moved, other)]
    assert ids[0] == ids[1] != ids[2]


def test_overwritten_weights_are_noticed(tiny: Job, tmp_path) -> None:
    path = tmp_path / "weights.safetensors"
    model = load_source("wrn_10_1")
    save_weights(model, path)
    job = dataclasses.replace(tiny, weights=(str(path),))
    before = resolve(job).id
    model.fc.bias.data += 1
    save_weights(model, path)
    assert resolve(job).id != before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "tnet"}, "did you mean 'tent'"),
        ({"setting": "continul"}, "did you mean 'continual'"),
        ({"options": {"lrr": 1.0}}, "did you mean 'lr'"),
        ({"data": "glyph"}, "did you mean 'glyphs'"),
        ({"model": "wnr_28_10"}, "did you mean 'wrn_28_10'"),
    ],
)
def test_wrong_names_get_the_nearest_right_one(tiny: Job, change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(dataclasses.replace(tiny, **change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"images_per_domain": 0}, "images_per_domain is 0"),
        ({"severity": 6}, "between 0 and 5"),
        ({"precision": "fp23"}, "did you mean 'fp32'"),
        ({"metrics": ("forgeting",)}, "did you mean 'forgetting'"),
    ],
)
def test_impossible_values_are_refused_at_once(tiny: Job, change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(tiny, **change)


def test_unknown_field_is_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'batch_size'"):
        Job.from_dict({"method": "tent", "batchsize": 3})


def test_network_with_too_few_classes_is_refused(tiny: Job) -> None:
    with pytest.raises(ModelError, match="4 logits but glyphs needs 10"):
        resolve(dataclasses.replace(tiny, model_options={"classes": 4}))


def test_plain_makes_json_of_anything() -> None:
    import numpy as np
    import torch

    value = {"a": np.float64(1.5), "b": torch.tensor([1, 2]), "c": float("nan"), 3: (True, None)}
    assert plain(value) == {"a": 1.5, "b": [1, 2], "c": None, "3": [True, None]}


def test_source_data_counts_only_where_it_is_used(tiny: Job) -> None:
    named = dataclasses.replace(tiny, source="pack:/not/there.npz")
    assert resolve(named).id == resolve(tiny).id
    with pytest.raises(SlomofastError, match="not/there"):
        resolve(dataclasses.replace(named, method="eata"))


@pytest.mark.parametrize(
    ("images", "size", "held"), [(None, 10_000, 1000), (2000, 10_000, 200), (300, 10_000, 100), (30, 60, 6)]
)
def test_how_much_is_held_out(tiny: Job, images: int | None, size: int, held: int) -> None:
    job = dataclasses.replace(tiny, images_per_domain=images, data_options={"size": size}, metrics=("forgetting",))
    assert round(resolve(job).held_out * size) == held
    assert resolve(dataclasses.replace(job, metrics=("error",))).held_out == 0


def test_source_data_counts_where_options_may_ask_for_it(tiny: Job) -> None:
    """ViDA needs source images only with a warm-up, which its registration cannot know."""
    warm = dataclasses.replace(tiny, method="vida", options={"warmup_steps": 2})
    ids = {resolve(dataclasses.replace(warm, source=source)).id for source in (None, "glyphs")}
    assert len(ids) == 2


def test_letters_as_source_are_the_training_letters(tiny: Job) -> None:
    named = source_data(dataclasses.replace(tiny, data="glyphs", source="glyphs"))
    usual = source_data(dataclasses.replace(tiny, data="glyphs", source=None))
    assert named is not None and usual is not None
    assert named.fingerprint == usual.fingerprint
    assert named.clean_fingerprint != open_data("glyphs").clean_fingerprint


@pytest.mark.parametrize(
    ("options", "message"),
    [({"clases": 10}, "'clases'.*'classes'"), ({"mean": [0.5, 0.5, 0.5], "std": 1}, "std needs one value per channel")],
)
def test_options_of_a_network_are_checked(tiny: Job, options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(dataclasses.replace(tiny, model="wrn_10_1", model_options=options))
