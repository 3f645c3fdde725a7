"""Checkpoints are refused when they belong elsewhere or are damaged."""

import os
from pathlib import Path

import pytest
import torch

import slomofast as sf
from slomofast.testing import batches, tiny_net


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    adapter = sf.adapt(tiny_net(), "slomo_fast", queue_size=3)
    adapter(batches(1)[0])
    adapter.save(tmp_path / "a.pt")
    return tmp_path / "a.pt"


def test_loads_with_options(saved: Path) -> None:
    adapter = sf.load(saved, tiny_net())
    assert adapter.method == "slomo_fast" and adapter.config.queue_size == 3 and adapter.steps == 1  # type: ignore[attr-defined]
    assert [p.name for p in saved.parent.iterdir()] == ["a.pt"]


def test_another_model_is_refused(saved: Path) -> None:
    other = tiny_net()
    with torch.no_grad():
        next(other.parameters())[0] += 1e-3
    with pytest.raises(sf.CheckpointError, match="made for another model"):
        sf.load(saved, other)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_truncated_file_is_refused(saved: Path, share: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    with pytest.raises(sf.CheckpointError, match="damaged or no checkpoint"):
        sf.load(saved, tiny_net())


def test_flipped_weight_is_refused(saved: Path) -> None:
    content = torch.load(saved, weights_only=True)
    content["state"]["student.head.weight"][0, 0] += 1e-3
    torch.save(content, saved)
    with pytest.raises(sf.CheckpointError, match="does not match its digest"):
        sf.load(saved, tiny_net())


def test_other_format_and_other_files_are_refused(saved: Path) -> None:
    content = torch.load(saved, weights_only=True)
    torch.save({**content, "format": 99}, saved)
    with pytest.raises(sf.CheckpointError, match="format 99"):
        sf.load(saved, tiny_net())
    torch.save({"weights": torch.zeros(3)}, saved)
    with pytest.raises(sf.CheckpointError, match="not a slomofast checkpoint"):
        sf.load(saved, tiny_net())
    with pytest.raises(sf.CheckpointError, match="no checkpoint at"):
        sf.load(saved.with_name("missing.pt"), tiny_net())


def test_save_before_the_first_batch_says_why(tmp_path: Path) -> None:
    with pytest.raises(sf.ConfigError, match="first batch"):
        sf.adapt(tiny_net(), "tent").save(tmp_path / "a.pt")


@pytest.mark.parametrize("content", [b"title = 1", b"hello", b"\x80\x02}q\x00."])
def test_bytes_that_are_no_checkpoint_are_refused_in_words(saved: Path, content: bytes) -> None:
    saved.write_bytes(content)
    with pytest.raises(sf.CheckpointError, match=r"a\.pt"):
        sf.load(saved, tiny_net())


@pytest.mark.parametrize("part", ["initial", "config", "runtime", "method"])
def test_every_part_of_the_file_is_checked(tmp_path: Path, part: str) -> None:
    adapter = sf.adapt(tiny_net(), "rmt")
    labels = torch.arange(20) % 4
    adapter.fit_source([(x, labels) for x in batches(2, size=20)])
    adapter(batches(1)[0])
    adapter.save(tmp_path / "a.pt")
    content = torch.load(tmp_path / "a.pt", weights_only=True)
    if part == "initial":
        next(v for v in content["initial"].values() if isinstance(v, torch.Tensor) and v.is_floating_point()).add_(1)
    elif part == "method":
        content["method"] = "tent"
    else:
        content[part]["seed" if part == "runtime" else "lr"] = 7
    torch.save(content, tmp_path / "b.pt")
    with pytest.raises(sf.CheckpointError, match="does not match its digest"):
        sf.load(tmp_path / "b.pt", tiny_net())
    del content["whole"]  # files of before have none
    torch.save(content, tmp_path / "c.pt")
    if part != "method":
        sf.load(tmp_path / "c.pt", tiny_net())


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    adapter = sf.adapt(tiny_net(), "tent")
    adapter(batches(1)[0])
    with pytest.raises(sf.CheckpointError, match=r"no folder .*nowhere.* make it first"):
        adapter.save(tmp_path / "nowhere" / "a.pt")


def test_a_loaded_adapter_resets_to_where_start_here_was_called(tmp_path: Path) -> None:
    adapter = sf.adapt(tiny_net(), "tent")
    for x in batches(3):
        adapter(x)
    adapter.start_here()
    adapter(batches(4)[3])
    adapter.save(tmp_path / "a.pt")
    again = sf.load(tmp_path / "a.pt", tiny_net())
    assert again.steps == 4
    again.save(tmp_path / "b.pt")
    for loaded in (again, sf.load(tmp_path / "b.pt", tiny_net())):
        adapter.reset()
        loaded.reset()
        assert loaded.steps == adapter.steps == 3
        torch.testing.assert_close(loaded.student.state_dict(), adapter.student.state_dict(), rtol=0, atol=0)


def test_the_state_that_the_model_alone_makes_is_not_saved_twice(saved: Path) -> None:
    assert torch.load(saved, weights_only=True)["initial"] is None


@pytest.mark.skipif(os.name == "nt", reason="no such modes on Windows")
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_files_have_the_mode_of_any_other(tmp_path: Path, umask: int) -> None:
    adapter = sf.adapt(tiny_net(), "tent", probe=batches(1)[0])
    before = os.umask(umask)
    try:
        adapter.save(tmp_path / "a.pt")
    finally:
        os.umask(before)
    assert (tmp_path / "a.pt").stat().st_mode & 0o777 == 0o666 & ~umask


@pytest.mark.filterwarnings("error:.*was not finite")
def test_a_loaded_adapter_does_not_warn_of_steps_skipped_before(tmp_path: Path) -> None:
    first, second = batches(2)
    adapter = sf.adapt(tiny_net(), "tent", check_input="off")
    adapter(first)
    with pytest.warns(UserWarning, match=r"step 2 was not finite .*\(1 so far\)"):
        adapter(first * float("nan"))
    adapter.save(tmp_path / "a.pt")
    again = sf.load(tmp_path / "a.pt", tiny_net())
    fresh = sf.adapt(tiny_net(), "tent", probe=first)
    fresh.load_state_dict(adapter.state_dict())
    for loaded in (adapter, again, fresh):
        loaded(second)
        assert loaded.skipped == 1
    with pytest.warns(UserWarning, match=r"step 4 was not finite .*\(2 so far\)"):
        again(first * float("nan"))
