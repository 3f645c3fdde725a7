"""`slomofast plot`: files from stored records."""

from pathlib import Path

import made_up
import pytest
from typer.testing import CliRunner

from slomofast.bench import Job, run_job
from slomofast.cli.__main__ import app
from slomofast.core.errors import DataError
from slomofast.report.figures import _by_stream, write_figures


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for method in ("source", "tent"):
        job = Job(
            method,
            setting="cyclic",
            data_options={"size": 60, "domains": "gaussian_noise,fog"},
            model="wrn_10_1",
            batch_size=20,
            images_per_domain=40,
            metrics=("error", "forgetting"),
        )
        run_job(job, folder, device="cpu")
    return folder


def test_one_set_per_stream_and_forgetting_per_run(store: Path, tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["plot", str(store), "--out", str(tmp_path)])
    assert answer.exit_code == 0, answer.output
    names = sorted(path.name for path in tmp_path.glob("*.png"))
    kinds = [name.removeprefix("glyphs-cyclic-seed0-") for name in names]
    assert {"after-a-shift.png", "error-by-cycle.png", "error-over-time.png", "timeline.png"} <= set(kinds)
    assert sum(kind.startswith("forgetting-tent") for kind in kinds) == 1
    assert sum(kind.startswith("first-domain-source") for kind in kinds) == 1
    assert len(names) == 8 and all(path.stat().st_size > 5000 for path in tmp_path.glob("*.png"))


def test_equal_streams_over_other_data_have_pictures_of_their_own() -> None:
    records = [made_up.make_record("tent", data=data, model="wrn28_10") for data in ("cifar10_c", "cifar100_c")]
    again = made_up.make_record("tent", model="wrn28_10")
    again["fingerprints"] = again["fingerprints"] | {"data": "other images of that name"}
    named = _by_stream([*records, again])
    assert list(named) == ["cifar10_c-continual-seed0", "cifar100_c-continual-seed0", "cifar10_c-continual-seed0-v2"]
    assert all(len(group) == 1 for group in named.values())


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no folder"):
        write_figures(tmp_path / "missing", tmp_path)
    (tmp_path / "half.json").write_text('{"format": 1')
    with pytest.raises(DataError, match="no finished record"):
        write_figures(tmp_path, tmp_path)
