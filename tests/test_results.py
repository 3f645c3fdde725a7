"""The figures in the texts are those of the measured rows."""

import csv
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from slomofast import list_methods

ROOT = Path(__file__).parent.parent
STAR = "slomo_fast_star"


@pytest.fixture(scope="module")
def accuracy() -> ModuleType:
    spec = importlib.util.spec_from_file_location("accuracy", ROOT / "benchmarks" / "accuracy.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def table(accuracy: ModuleType) -> list[dict[str, str]]:
    return list(accuracy.lines())


def test_the_accuracy_table_is_what_the_rows_say(accuracy: ModuleType, table: list[dict[str, str]]) -> None:
    assert (accuracy.RESULTS / "accuracy.csv").read_text() == accuracy.written(table)


def test_an_interval_by_hand(accuracy: ModuleType) -> None:
    assert accuracy.half_width([1.0, 2.0, 3.0]) == f"{4.303 / 3**0.5:.2f}"
    assert accuracy.half_width([1.0]) == ""


def test_the_readme_has_the_figures_of_the_table(table: list[dict[str, str]]) -> None:
    readme = (ROOT / "README.md").read_text()
    continual = {x["method"]: x for x in table if (x["setting"], x["images_per_domain"]) == ("continual", "10000")}
    for method in (STAR, "slomo_fast", "santa", "roid", "rmt"):
        assert f"{continual[method]['error']} ± {continual[method]['deviation']}" in readme, method
    share = float(continual[STAR]["error"]) / float(continual["roid"]["error"])
    assert f"{share:.3f} of ROID's error" in readme


def test_the_results_page_has_every_difference_over_three_seeds(table: list[dict[str, str]]) -> None:
    page = (ROOT / "docs" / "results.md").read_text().replace("−", "-")
    rivals = [x for x in table if (x["network"], x["method"], x["seeds"]) == ("wrn_28_10", "rmt", "3")]
    assert len(rivals) == 15
    for line in rivals:
        assert f"| {float(line['worse_by']):.2f} ± {line['interval95']} |" in page, line["setting"]
    above = sum(float(x["worse_by"]) > 0 for x in rivals)
    assert f"lower in the mean in {above} of 15" in page


def test_every_method_ran_in_every_setting(accuracy: ModuleType) -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    shown = accuracy.every_method()
    assert shown in page
    lines = [line.split(" | ") for line in shown.splitlines()[2:]]
    methods = {cells[0].removeprefix("| ") for cells in lines}
    assert methods == set(list_methods()) - {"memo"}
    assert all(len(cells) == len(accuracy.SHORT) + 2 and all(cells[1:-1]) for cells in lines)


def test_where_ours_is_lowest_on_short_streams_is_what_the_page_says(accuracy: ModuleType) -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    ours = next(line for line in accuracy.every_method().splitlines() if line.startswith(f"| {STAR} "))
    assert f"lowest in {ours.count('**') // 2}, 0.7 behind in `mixed` and 1.1 in `gradual`" in page


def test_the_lead_by_length_is_that_of_the_rows(accuracy: ModuleType, table: list[dict[str, str]]) -> None:
    page = (ROOT / "docs" / "results.md").read_text().replace("−", "-").replace(" (three seeds)", "")
    orders = ("continual", "mixed", "episodic", "cross_group", "easy2hard", "hard2easy")
    overlaps = ("mixed_after_continual", "continual_after_mixed")
    places = dict.fromkeys(orders, "10000") | dict.fromkeys(overlaps, "5000")
    short = accuracy.short_streams()
    rivals = [found for method, found in short.items() if method != STAR]
    soon = [min(found[name] for found in rivals) - short[STAR][name] for name in places]
    late = [
        min(float(x["worse_by"]) for x in table if lies_in(x, name, images) and x["method"] != STAR)
        for name, images in places.items()
    ]
    for label, leads in (("1,000 images", soon), ("10,000 (5,000 in the last two)", late)):
        assert f"| {label} | " + " | ".join(f"{lead:.2f}" for lead in leads) + " |" in page


def test_the_lead_of_a_student_that_follows_is_that_of_the_rows(accuracy: ModuleType) -> None:
    page = (ROOT / "docs" / "results.md").read_text().replace("−", "-").replace(" (three seeds)", "")
    page = page[page.index("(`fast_momentum=0.98 fast_anchor=0.02 student_follow=0.01`)") :]
    names = ("continual", "mixed", "episodic", "cross_group", "easy2hard", "hard2easy")
    names += ("mixed_after_continual", "continual_after_mixed")
    long = ("continual_10000_wrn28_10_h200.csv", "settings_wrn28_10_h200.csv")
    for label, files, lengths in (
        ("1,000", ("every_setting_wrn28_10_h200.csv",), ["1000"] * 8),
        ("10,000 (5,000 in the last two)", long, ["10000"] * 6 + ["5000"] * 2),
    ):
        places = zip(names, lengths, strict=True)
        leads = [lead_of_form(accuracy.RESULTS, files, *place, form=FOLLOWING) for place in places]
        assert f"| {label} | " + " | ".join(f"{lead:.2f}" for lead in leads) + " |" in page, label


FOLLOWING = "fast_momentum=0.98 fast_anchor=0.02 student_follow=0.01"
LASTING = "student_share=0.02 fast_anchor=0.003 restore=0.3 student_contrast=0.5 slow_share=2 conditions=12"


def test_the_form_for_long_streams_is_that_of_the_rows(accuracy: ModuleType) -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    page = page[page.index(f"(`{LASTING}`)") :]
    names = ("continual", "mixed", "episodic", "cross_group", "easy2hard", "hard2easy")
    names += ("mixed_after_continual", "continual_after_mixed")
    files = ("continual_10000_wrn28_10_h200.csv", "settings_wrn28_10_h200.csv")
    places = list(zip(names, ["10000"] * 6 + ["5000"] * 2, strict=True))
    for label, form in (("error %, 10,000 (5,000 in the last two)", LASTING), ("the default", "")):
        shown = [errors_of(accuracy.RESULTS, files, *place)[STAR, form]["0"] for place in places]
        assert f"| {label} | " + " | ".join(f"{error:.2f}" for error in shown) + " |" in page, label
    leads = [lead_of_form(accuracy.RESULTS, files, *place, form=LASTING) for place in places]
    assert "| below the best of the others by | " + " | ".join(f"{lead:.2f}" for lead in leads) + " |" in page


RISING = {
    "0.04, 0.01 (the default)": "conditions=0",
    "`student_follow=0.01`": "student_follow=0.01 conditions=12",
    "0.02, 0.003": "student_share=0.02 fast_anchor=0.003 conditions=12",
    "0.02, 0": "student_share=0.02 fast_anchor=0.0 conditions=12",
    "0.01, 0.003": "student_share=0.01 fast_anchor=0.003 conditions=12",
    "0.02, 0.003 with `slow_share=2`": "student_share=0.02 fast_anchor=0.003 slow_share=2.0 conditions=12",
    "... with `student_contrast=0.5`": "student_share=0.02 fast_anchor=0.003 student_contrast=0.5 conditions=12",
    "... with `restore=0.1`": "student_share=0.02 fast_anchor=0.003 restore=0.1 conditions=12",
    "... with `restore=0.3 student_contrast=0.5 slow_share=2`": (
        "student_share=0.02 fast_anchor=0.003 restore=0.3 student_contrast=0.5 slow_share=2.0 conditions=12"
    ),
}


def test_validation_on_rising_severities_is_that_of_the_rows(accuracy: ModuleType) -> None:
    page = (ROOT / "docs" / "reading-the-paper.md").read_text()
    page = page[page.index("**Rising severities**") :].replace("**", "")
    with (accuracy.RESULTS / "search_slomo_fast_star.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if "--severities 3,4,5 --images-per-domain 10000" in row["command"]]
    for label, options in RISING.items():
        (row,) = [row for row in rows if row["options"] == options]
        by_severity = " | ".join(part.partition("=")[2] for part in row["by_severity_and_cycle"].split())
        shown = re.search(re.escape(f"| {label} | {by_severity} | ") + r"([\d.]+) \|", page)
        assert shown is not None and float(shown[1]) == pytest.approx(float(row["error"]), abs=0.0051), label


def errors_of(
    folder: Path, files: tuple[str, ...], setting: str, images: str
) -> dict[tuple[str, str], dict[str, float]]:
    errors: dict[tuple[str, str], dict[str, float]] = {}
    for name in files:
        with (folder / name).open(newline="") as file:
            for row in csv.DictReader(file):
                if (row.get("setting", "continual"), row["images_per_domain"]) == (setting, images):
                    errors.setdefault((row["method"], row["options"]), {})[row["seed"]] = float(row["error"])
    return errors


def lead_of_form(folder: Path, files: tuple[str, ...], setting: str, images: str, form: str) -> float:
    errors = errors_of(folder, files, setting, images)
    ours = errors.pop((STAR, form))
    others = [found for (method, _), found in errors.items() if method != STAR]
    return min(
        sum(found[seed] - ours[seed] for seed in shared) / len(shared)
        for found in others
        if (shared := found.keys() & ours.keys())
    )


def lies_in(line: dict[str, str], setting: str, images: str) -> bool:
    return (line["network"], line["setting"], line["images_per_domain"]) == ("wrn_28_10", setting, images)


def test_the_cost_of_a_step_is_that_of_its_rows() -> None:
    page = (ROOT / "docs" / "benchmark.md").read_text()
    with (ROOT / "benchmarks" / "results" / "steps_wrn28_10_h200.csv").open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if r["precision"] == "bf16" and r["graphs"] == "True"]
    assert len(rows) == 27
    for row in rows:
        time = float(row["milliseconds"])
        shown = re.search(rf"^\| {row['method']}(?: \([^)]*\))? \| ([\d.]+) \| ([\d.]+) \|", page, re.MULTILINE)
        assert shown is not None, row["method"]
        assert float(shown[1]) == pytest.approx(time, abs=0.06 if time < 1000 else 1), row["method"]
        assert float(shown[2]) == pytest.approx(float(row["multiple"]), rel=0.01), row["method"]
