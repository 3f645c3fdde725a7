"""The published numbers the package carries."""

from __future__ import annotations

from importlib import resources

import pytest

from slomofast.report import reference
from slomofast.report.reference import BENCHMARK, PAPER, architecture, find, table

NAMES = ("summary", "per_domain", "cyclic", "lifelong", "ccc", "architectures", "efficiency", "recurring")


@pytest.mark.parametrize("name", NAMES)
def test_tables_load_with_known_sources_and_no_repeated_row(name: str) -> None:
    entries = table(name)
    assert entries and {e.source for e in entries} <= {PAPER, BENCHMARK}
    assert all(e.values for e in entries)
    assert len(reference._index(name)) == len(entries)


def test_the_files_are_small() -> None:
    folder = resources.files("slomofast.report").joinpath("reference")
    sizes = [len(f.read_bytes()) for f in folder.iterdir() if f.name.endswith(".csv")]
    assert len(sizes) == len(NAMES) and sum(sizes) < 300_000


@pytest.mark.parametrize(
    ("source", "method", "where", "value"),
    [
        (PAPER, "slomo_fast", ("continual", "cifar10_c", "wrn_28_10"), 15.8),
        (PAPER, "slomo_fast_star", ("continual", "imagenet_c", "resnet50"), 52.8),
        (BENCHMARK, "cotta", ("continual", "imagenet_c", "resnet_50"), 63.1),
        (BENCHMARK, "roid", ("continual", "imagenet_c", "vit_b_16"), 45.0),
        (BENCHMARK, "tent", ("mixed", "cifar100_c", "ResNeXt-29"), 82.5),
    ],
)
def test_values_are_found_by_experiment(source: str, method: str, where: tuple[str, str, str], value: float) -> None:
    setting, data, model = where
    entry = find("summary", source, method, setting=setting, data=data, model=model)
    assert entry is not None and entry.values["error"] == value


def test_another_network_finds_nothing() -> None:
    for model in ("resnet_50_64", "wrn_28_2", "glyphs"):
        assert architecture(model) == model
        assert find("summary", PAPER, "tent", setting="continual", data="cifar10_c", model=model) is None


def test_impossible_values_carry_a_flag() -> None:
    impossible = [e for name in NAMES for e in table(name) if any(v > 100 for v in e.values.values())]
    assert {e.method for e in impossible} == {"rotta", "vida"}
    assert all("impossible" in e.flag for e in impossible)


def test_means_that_are_not_the_mean_of_their_cells_carry_a_flag() -> None:
    for entry in table("per_domain"):
        cells = [v for k, v in entry.values.items() if k != "mean"]
        if abs(sum(cells) / len(cells) - entry.values["mean"]) > 0.3:
            assert entry.flag, (entry.setting, entry.data, entry.method)


def test_summary_cells_that_contradict_the_detailed_table_carry_a_flag() -> None:
    for entry in table("summary"):
        detail = find("per_domain", PAPER, entry.method, setting=entry.setting, data=entry.data, model=entry.model)
        if entry.source == PAPER and entry.method != "source" and detail is not None:
            gap = abs(detail.values["mean"] - entry.values["error"])
            assert gap <= 0.051 or entry.flag, (entry.setting, entry.data, entry.method)


def test_the_source_of_ccc_carries_a_flag() -> None:
    entry = find("summary", PAPER, "source", setting="ccc", data="ccc", model="resnet50")
    assert entry is not None and entry.values["error"] == 93.4 and "82.4" in entry.flag
