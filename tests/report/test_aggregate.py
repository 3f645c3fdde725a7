"""What belongs together: methods by their resolved options, seeds that count once, shards of CCC by their level."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import made_up
import pytest
from PIL import Image
from test_build import payload_of
from test_tables import cell

from slomofast.bench import Job, run_job
from slomofast.report import build_report
from slomofast.report.aggregate import Method, group_runs, methods_of
from slomofast.report.comparison import compare
from slomofast.report.paper_tables import all_tables, ccc, summary
from slomofast.report.records import Run, read_store, take_apart

EASY = "baseline_40_transition+speed_{}_seed_{}"


def record(error: float = 20.0, *, id: str = "", started: str = "", **job: Any) -> dict[str, Any]:
    """A made-up record with a given score and other entries of its job."""
    made = made_up.make_record(batches=2, seed=job.get("seed", 0))
    options = made["job"]["options"] | job.pop("options", {})
    made["job"] |= {"options": options, **job}
    made["metrics"]["error"] = {"mean": error}
    return made | {"id": id or f"{made['id'][:8]}{len(repr(job)):08d}", "started": started or made["started"]}


def runs_of(*records: dict[str, Any]) -> list[Run]:
    return [take_apart(r, f"{r['id']}.json")[0] for r in records]


def titles(*records: dict[str, Any]) -> list[str]:
    return [m.title for g in group_runs(runs_of(*records)) for m in g.cells]


def test_a_seed_that_was_run_several_times_counts_once(tmp_path: Path) -> None:
    records = [
        record(93.0, id="a", seed=0, started="2025-01-01"),
        record(93.2, id="b", seed=0, started="2025-01-02", metrics=["error"]),
        record(93.3, id="c", seed=0, started="2025-01-03", channels_last=True, compile=True, graphs=True),
        record(86.7, id="d", seed=1),
    ]
    (group,) = group_runs(runs_of(*records))
    (found,) = group.cells.values()
    assert [r.id for r in found.runs] == ["c", "d"] and [r.id for r in found.repeats] == ["a", "b"]
    assert found.mean == pytest.approx(90.0) and found.deviation == pytest.approx(4.667, abs=0.001)
    table = summary([group])
    assert [table.notes[n] for n in cell(table, "TENT", Setting="Continual").notes] == [
        "2 more records repeat seeds; the newest of each counts"
    ]

    made_up.write_store(tmp_path / "runs", records)
    data = payload_of(build_report(tmp_path / "runs", tmp_path / "out"))
    assert sorted(data["records"]["id"]) == ["a", "b", "c", "d"] and data["records"]["g"] == [0] * 4
    assert [id for id, _ in data["repeats"]] == ["a", "b"] and "counts with c" in data["repeats"][0][1]


def test_other_resolved_options_are_another_method_whatever_was_typed() -> None:
    old = record(4.0, id="a", started="2025-01-01", options={"lr": 0.006})
    new = record(8.0, id="b", started="2025-02-01")
    (group,) = group_runs(runs_of(old, new))
    assert {m.title: c.mean for m, c in group.cells.items()} == {"TENT": 8.0, "TENT (lr=0.006)": 4.0}
    assert [m.plain for m in group.cells] == [True, False]


def test_a_default_written_out_changes_nothing() -> None:
    (group,) = group_runs(runs_of(record(id="a"), record(id="b", seed=1, overrides={"lr": 0.001})))
    assert list(group.cells) == [Method("tent")] and group.cells[Method("tent")].seeds == (0, 1)


def test_what_changed_in_a_default_is_named_beside_what_was_asked_for() -> None:
    asked: dict[str, Any] = {"overrides": {"lr": 0.01}}
    before = record(id="a", started="2025-01-01", options={"lr": 0.01, "momentum": 0.5}, **asked)
    after = record(id="b", started="2025-02-01", options={"lr": 0.01}, **asked)
    assert set(titles(before, after)) == {"TENT (lr=0.01)", "TENT (lr=0.01, momentum=0.5)"}
    newer = record(id="c", started="2025-02-01", options={"lr": 0.01, "steps": 1}, **asked)
    assert set(titles(after, newer)) == {"TENT (lr=0.01)", "TENT (lr=0.01, steps absent)"}


def test_defaults_are_those_of_the_data_family() -> None:
    large = made_up.make_record("tent", data="imagenet_c", batches=2)
    large["job"]["options"] |= {"lr": 0.00025}
    small = made_up.make_record("tent", batches=2)
    assert set(methods_of(runs_of(small, large)).values()) == {Method("tent")}


def test_presets_are_named_as_they_were_asked_for() -> None:
    plain, free = record(id="a"), record(id="b", options={"lr": 0.5, "momentum": 0.1}, overrides={"preset": "free"})
    same = record(id="c", seed=1, overrides={"preset": "cifar"})
    assert titles(plain, free, same) == ["TENT", "TENT (preset=free)"]
    more = record(id="d", options={"lr": 0.5, "momentum": 0.2}, overrides={"preset": "free", "momentum": 0.2})
    assert titles(plain, free, more) == ["TENT", "TENT (momentum=0.2, preset=free)", "TENT (preset=free)"]


def test_other_source_images_are_another_method() -> None:
    one = record(id="a", started="2025-01-01", source="folder:/data/val")
    two = record(id="b", started="2025-01-02", seed=1, source="folder:/data/train")
    moved = record(id="c", started="2025-01-02", seed=2, source="folder:D:\\elsewhere\\train")
    assert titles(two, moved) == ["TENT"]
    assert titles(one, two, moved) == ["TENT", "TENT (source=val)"]
    for r, print_ in zip((one, two, moved), ("123456789", "123456789", "abcdef123"), strict=True):
        r["fingerprints"] = r["fingerprints"] | {"source": print_}
    assert titles(one, two) == ["TENT"] and titles(one, two, moved) == ["TENT", "TENT (source=123456)"]


def test_records_without_options_go_by_what_was_typed() -> None:
    first, second = record(id="a"), record(id="b", overrides={"lr": 0.01})
    for r in (first, second):
        del r["job"]["options"]
    assert titles(first, second) == ["TENT", "TENT (lr=0.01)"]


def test_two_records_are_named_by_what_differs(tmp_path: Path) -> None:
    records = [
        record(id="a" * 8, started="2025-01-01", options={"lr": 0.006}),
        record(id="b" * 8, started="2025-02-01"),
    ]
    made_up.write_store(tmp_path, records)
    found = compare(*(str(tmp_path / f"{r['id']}.json") for r in records))
    assert (found.first, found.second) == ("TENT (lr=0.006) aaaaaaaa", "TENT bbbbbbbb")


def shards(folder: str, error: float, seed: int = 0, method: str = "tent", **job: Any) -> Run:
    """A run on a CCC stream of tar shards, as `ccc:FOLDER` in the setting `continual` is recorded."""
    made = made_up.make_record(method, "continual", "imagenet_c", "torchvision:resnet50", batches=2, seed=seed)
    made["job"]["data"] |= {"spec": f"ccc:/data/{folder}", "name": "ccc", "options": {}}
    made["job"] |= {"images_per_domain": None, **job}
    made["fingerprints"] |= {"data": folder.encode().hex()}
    made["metrics"]["error"] = {"mean": error}
    made["curve"] |= {"domain": [0] * len(made["curve"]["domain"]), "domains": ["ccc"], "groups": {"ccc": ["ccc"]}}
    return take_apart(made | {"id": f"{folder}{method}{seed}{job}"}, "x.json")[0]


def test_published_shards_reach_the_table_of_ccc() -> None:
    runs = [shards(EASY.format(speed, 43), error) for speed, error in ((1000, 90.0), (2000, 96.0))]
    runs += [shards(f"baseline_{n}_transition+speed_1000_seed_43/", 97.0) for n in (20, 0)]
    runs += [shards(EASY.format(1000, 43), 60.0, method="roid")]
    groups = group_runs(runs)
    (table,) = ccc(groups)
    assert table.columns == ("easy", "medium", "hard", "mean") and "three speeds with three seeds" in table.caption
    own = cell(table, "easy", Method="TENT")
    assert own.value == pytest.approx(93.0) and own.deviation == pytest.approx(18**0.5) and len(own.records) == 2
    assert cell(table, "easy", Method="ROID").plain == "–"  # one stream of the level is missing
    assert cell(table, "mean", Method="TENT").value == pytest.approx((93 + 97 + 97) / 3)
    printed = [cell(table, c, Method="TENT", Numbers_of="paper").value for c in table.columns]
    assert printed == [96.1, 98.6, 99.49, 98.1]
    assert table.rows[0].labels[1] == "this store, 3,000 images a stream"
    assert {g.variant for g in groups} >= {"easy, speed 1000, seed 43", "hard, speed 1000, seed 43"}
    assert all(row.origin == "ours" for row in summary(groups).rows)


def test_shards_of_an_unknown_level_go_by_their_folder() -> None:
    (table,) = ccc(group_runs([shards("ccc-medium", 50.0), shards("mine", 60.0)]))
    assert table.columns == ("ccc-medium", "mine", "mean") and {r.origin for r in table.rows} == {"ours"}


def test_shards_under_another_protocol_are_never_averaged() -> None:
    pair = [shards(EASY.format(1000, s), e, batch_size=b) for s, e, b in ((43, 50.0, 64), (44, 70.0, 32))]
    (table,) = ccc(group_runs(pair))
    assert len(table.columns) == 3 and sorted(e.value for e in table.rows[0].entries[:2]) == [50.0, 70.0]


@pytest.mark.parametrize("fields", [{}, {"target": 70.0}, {"speed": 5000}])
@pytest.mark.parametrize("data", ["val", "ccc"])
def test_streams_made_here_have_no_published_numbers(fields: dict[str, Any], data: str) -> None:
    records = []
    for level in ("easy", "medium", "hard"):
        made = made_up.make_record("tent", {"name": "ccc", "level": level, **fields}, "imagenet_c", "resnet50")
        made["job"]["data"] |= {"spec": f"folder:/data/{data}", "name": data}
        records.append(made)
    groups = group_runs(runs_of(*records))
    tables = all_tables(groups)
    assert {row.origin for name in ("summary", "ccc") for t in tables[name] for row in t.rows} == {"ours"}
    levels = tables["ccc"][0].columns[:3]
    assert levels == tuple(f"{n}, target 70.0" if "target" in fields else n for n in ("easy", "medium", "hard"))
    assert "not set beside them" in tables["ccc"][0].caption


def test_a_real_record_of_shards_says_which_stream_it_is_of(tmp_path: Path) -> None:
    folder = tmp_path / EASY.format(1000, 43)
    folder.mkdir()
    picture = io.BytesIO()
    Image.new("RGB", (32, 32), (90, 120, 30)).save(picture, "PNG")
    with tarfile.open(folder / "serial_00000.tar", "w") as archive:
        for n in range(8):
            for name, content in ((f"sample_{n}.input.png", picture.getvalue()), (f"sample_{n}.output.cls", b"1")):
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    job = Job("source", data=f"ccc:{folder}", data_options={"classes": 10}, model="wrn_10_1", batch_size=4)
    run_job(job, tmp_path / "runs", device="cpu")
    (run,) = read_store(tmp_path / "runs").runs
    assert (run.data, run.stream, run.images, run.family) == ("ccc", folder.name, 8, "cifar")
    assert [w for _, w, _ in run.parts] == [1.0] and run.parts[0][2] == pytest.approx(run.error)
    assert ccc(group_runs([run]))[0].columns == ("easy", "mean")
