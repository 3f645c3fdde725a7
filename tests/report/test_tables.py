"""Tables: what is averaged with what, ranks, dashes, published numbers, three formats."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import made_up
import pytest

from slomofast.metrics.statistics import Difference, paired_difference
from slomofast.report import rendering
from slomofast.report.aggregate import Method, group_runs
from slomofast.report.paper_tables import all_tables, summary
from slomofast.report.records import Run, take_apart
from slomofast.report.significance import difference, interval_text, verdict, weighted_difference
from slomofast.report.tables import Entry, Row, Table, entry_of, rank_columns, ranked


def run(method: str = "tent", error: float = 20.0, **options: object) -> Run:
    """A run with a given error everywhere."""
    record = made_up.make_record(method, batches=2, **options)
    share = dict.fromkeys(made_up.DOMAINS, error)
    record["metrics"]["error"] = {"mean": error}
    found, _ = take_apart(record, "x.json")
    parts = tuple((name, 1 / len(share), error) for name in share)
    return replace(found, domains=share, parts=parts)


def cell(table: Table, column: str, **labels: str) -> Entry:
    """The cell of the first row with these labels."""
    for row in table.rows:
        named = dict(zip(table.heads, row.labels, strict=True))
        if all(named[k.replace("_", " ")] == v for k, v in labels.items()):
            return row.entries[table.columns.index(column)]
    raise AssertionError(f"no row {labels} in {[r.labels for r in table.rows]}")


def test_mean_and_sample_deviation_over_seeds() -> None:
    table = summary(group_runs([run(error=20.0, seed=0), run(error=22.0, seed=1), run(error=27.0, seed=2)]))
    entry = cell(table, "TENT", Setting="Continual")
    assert entry.value == pytest.approx(23.0) and entry.deviation == pytest.approx(13**0.5)
    assert entry.plain == "23.0 ± 3.6" and len(entry.records) == 3


def test_a_single_seed_has_no_deviation() -> None:
    assert cell(summary(group_runs([run(error=20.0)])), "TENT", Setting="Continual").plain == "20.0"


def test_different_protocols_are_never_averaged() -> None:
    groups = group_runs([run(error=20.0, batch_size=100), run(error=30.0, batch_size=50)])
    assert [g.variant for g in groups] == ["batch 100, 200 images per domain", "batch 50, 100 images per domain"]
    assert [next(iter(g.cells.values())).mean for g in groups] == [20.0, 30.0]


def test_changed_options_are_another_method() -> None:
    table = summary(group_runs([run(error=20.0), run(error=30.0, overrides={"lr": 0.01})]))
    assert table.columns[:2] == ("TENT", "TENT (lr=0.01)")
    paper = next(row for row in table.rows if row.origin == "paper")
    assert [e.plain for e in paper.entries[:2]] == ["20.0", "–"]


def test_combinations_nobody_ran_are_dashes() -> None:
    table = summary(group_runs([run("tent"), run("bn", setting="mixed")]))
    assert cell(table, "BN", Setting="Continual").plain == "–"
    assert cell(table, "TENT", Setting="Mixed").plain == "–"
    assert not any(row.labels[0] == "Mean" for row in table.rows)


def test_the_overall_mean_uses_complete_rows_only() -> None:
    runs = [run(m, e, setting=s) for s, e in (("continual", 10), ("mixed", 30)) for m in ("tent", "bn")]
    table = summary(group_runs([*runs, run("tent", 90, setting="episodic")]))
    entry = cell(table, "TENT", Setting="Mean")
    assert entry.value == 20.0 and table.rows[-1].labels[3] == "this store, 2 complete rows"


def test_published_numbers_stand_below_with_their_contradictions() -> None:
    runs = [run(m, data="imagenet_c", model="resnet_50") for m in ("tent", "roid")]
    table = summary(group_runs(runs))
    printed = cell(table, "TENT", Setting="Continual", Numbers_of="paper")
    assert printed.plain == "82.5" and "mixed-domain run" in table.notes[printed.notes[0]]
    assert cell(table, "TENT", Setting="Continual", Numbers_of="public benchmark").plain == "62.6"
    assert cell(table, "ROID", Setting="Continual", Numbers_of="paper").notes == ()


def test_other_streams_have_no_published_numbers() -> None:
    mild = run()
    protocol = tuple((k, "3.0" if k == "severity" else v) for k, v in mild.protocol)
    other = replace(mild, protocol=protocol)
    three = run(setting={"name": "cyclic", "cycles": 3})
    for odd in (other, three):
        assert all(row.origin == "ours" for row in summary(group_runs([odd])).rows)
    assert any(row.origin == "paper" for row in summary(group_runs([mild])).rows)


def test_rank_follows_what_is_printed() -> None:
    marks = [e.rank for e in ranked([Entry(10.04), Entry(10.01), Entry(11.0), Entry(), Entry(12.0)])]
    assert marks == [1, 1, 2, 0, 0]
    assert [e.rank for e in ranked([Entry(1.0), Entry()])] == [0, 0]
    rows = rank_columns([Row(("a",), (Entry(1.0), Entry(5.0))), Row(("b",), (Entry(2.0), Entry(4.0)))])
    assert [[e.rank for e in row.entries] for row in rows] == [[1, 2], [2, 1]]


def test_the_lead_is_a_paired_difference() -> None:
    a = [run("roid", 10.0 + s, seed=s) for s in range(3)]
    b = [run("tent", 11.0 + s, seed=s) for s in range(3)]
    found = difference(a, b)
    assert found is not None and found.pairs == 45
    assert found.mean == pytest.approx(-1.0) and difference(a, [run("tent", 11.0, seed=9)]) is None
    b[0] = replace(b[0], parts=tuple((d, w, e + 3 * (n == 0)) for n, (d, w, e) in enumerate(b[0].parts)), error=11.2)
    lead = cell(summary(group_runs([*a, *b])), "Best against next", Setting="Continual")
    # Seeds differ by more than the methods do; pairing removes that, so the interval is narrow.
    assert lead.plain == "ROID − TENT: −1.07 [−1.20, −1.00]"
    fewer = cell(summary(group_runs([*a, *b[:2]])), "Best against next", Setting="Continual")
    assert fewer.plain.endswith("(seeds of both: 2)")


def test_a_constant_difference_and_few_pairs_decide_nothing() -> None:
    a, b = run("roid", 10.0), run("tent", 11.0)
    found = difference([a], [b])
    assert found is not None and (found.pairs, found.low, found.high, found.clear) == (15, None, None, False)
    assert verdict(found) == "all pairs alike" and interval_text(found) == "−1.00"
    few = difference([replace(a, parts=a.parts[:3])], [replace(b, parts=b.parts[:3])])
    assert few is not None and few.pairs == 3 and verdict(few) == "too few pairs"
    lead = cell(summary(group_runs([a, b])), "Best against next", Setting="Continual")
    assert lead.plain == "ROID − TENT: −1.00"
    assert (
        verdict(Difference(1.0, 0.5, 2.0, 9, 0)) == "worse" and verdict(Difference(1.0, -0.5, 2.0, 9, 0)) == "undecided"
    )


def stochastic(method: str, wrong: dict[str, list[int]], seed: int = 0) -> Run:
    """A run that comes to each domain as often as there are numbers of wrong answers in a hundred."""
    record = made_up.make_record(method, "stochastic", seed=seed)
    visits = [(made_up.DOMAINS.index(d), w) for d, errors in wrong.items() for w in errors]
    columns = {"segment": list(range(len(visits))), "domain": [d for d, _ in visits], "wrong": [w for _, w in visits]}
    columns |= {"count": [100] * len(visits), "cycle": [0] * len(visits), "by_domain": [None] * len(visits)}
    record["curve"] |= columns
    return take_apart(record | {"metrics": {"error": {"mean": sum(columns["wrong"]) / len(visits)}}}, "x.json")[0]


def test_the_difference_is_that_of_the_scores() -> None:
    often = {"fog": [20] * 9, "snow": [40, 45], "frost": [70], "contrast": [60], "pixelate": [50]}
    other = {"fog": [10] * 9, "snow": [50, 56], "frost": [82], "contrast": [73], "pixelate": [61]}
    tent, roid = [stochastic("tent", often, s) for s in (0, 1)], [stochastic("roid", other, s) for s in (0, 1)]
    by_domain = [tent[0].domains[d] - roid[0].domains[d] for d in tent[0].domains]
    assert sum(by_domain) < 0 < tent[0].error - roid[0].error  # domains alike, and as the score weighs them
    found = difference(tent, roid)
    assert found is not None and found.pairs == 10
    assert found.mean == pytest.approx(tent[0].error - roid[0].error)
    assert found.low is not None and found.high is not None and found.low < found.mean < found.high


def test_weights_are_part_of_the_bootstrap() -> None:
    gaps = [1.0, -1.0, -1.5, -2.0, -1.2, 0.4, 0.3]
    assert weighted_difference(gaps) == weighted_difference(gaps, [2.0] * 7)
    plain = paired_difference(gaps, [0.0] * 7, draws=2000)
    found = weighted_difference(gaps)
    assert (found.mean, found.low, found.high) == pytest.approx((plain.mean, plain.low, plain.high))
    heavy = weighted_difference(gaps, [50.0, 1, 1, 1, 1, 1, 1])
    assert heavy.mean == pytest.approx((50 - 5) / 56) and heavy.high == pytest.approx(1.0, abs=0.05)


def test_runs_that_are_made_up_differently_are_one_pair_of_scores() -> None:
    whole = run("tent", 20.0)
    part = replace(run("roid", 15.0), parts=tuple((d, 1 / 7, 15.0) for d in made_up.DOMAINS[:7]))
    found = difference([whole], [part])
    assert found is not None and (found.mean, found.pairs, found.low) == (5.0, 1, None)


def test_only_tables_with_records_are_made() -> None:
    assert set(all_tables(group_runs([run()]))) == {"summary", "per_domain", "efficiency"}
    assert all_tables([]) == {}
    runs = [take_apart(record, "x.json")[0] for record in made_up.showcase() if record["status"] == "done"]
    assert set(all_tables(group_runs(runs))) == set(rendering.FILES)


def test_cycles_and_levels_and_networks_have_their_tables() -> None:
    specs = [("cyclic", "cifar10_c", None), ("lifelong", "cifar10_c", None)]
    specs += [({"name": "ccc", "level": level}, "imagenet_c", None) for level in ("hard", "easy")]
    specs += [("continual", "imagenet_c", model) for model in ("resnet_50", "swin_b")]
    runs = [
        take_apart(made_up.make_record(m, s, d, model, batches=2, forgetting=s == "lifelong"), "x")[0]
        for s, d, model in specs
        for m in ("slomo_fast", "slomo_fast_star")
    ]
    tables = all_tables(group_runs(runs))
    cyclic = tables["cyclic"][0]
    assert cyclic.columns == (*made_up.GROUPS, "mean")
    halves = [cell(cyclic, "noise", Cycle=c, Method="SloMo-Fast").value for c in ("1", "2", "avg")]
    assert halves[2] == pytest.approx((halves[0] + halves[1]) / 2)
    assert cell(cyclic, "noise", Cycle="1", Method="SloMo-Fast", Numbers_of="paper").value == 20.41
    lifelong = tables["lifelong"][0]
    assert lifelong.columns == (*map(str, range(1, 11)), "mean")
    assert {row.labels[0] for row in lifelong.rows} == {"Error %", "Forgetting"}
    assert cell(lifelong, "10", Figure="Forgetting", Method="SloMo-Fast").value == pytest.approx(8 * 0.2 + 0.9)
    assert cell(lifelong, "10", Figure="Error %", Method="SloMo-Fast", Numbers_of="paper").value == 11.9
    assert tables["ccc"][0].columns == ("easy", "hard", "mean")
    assert tables["architectures"][0].columns == ("ResNet-50", "Swin-B")
    assert cell(tables["recurring"][0], "CIFAR10-C", Method="SloMo-Fast", Numbers_of="paper").value == 12.4
    assert cell(tables["efficiency"][0], "ms per batch", Method="SloMo-Fast").value == 52.0


@pytest.fixture
def odd_table() -> Table:
    table = Table("t", "A_title 50 %", "About | this", ("Setting",), ("a|b", "c*"))
    note = table.note("paper: 5 % & more")
    best, second = ranked([Entry(1.0, 0.25, records=("id1", "id2")), Entry(2.0)])
    table.rows += [
        Row(("x_1",), (best, second)),
        Row(("x_1",), (Entry(3.0, notes=note), Entry()), "paper"),
    ]
    return table


def test_markdown(odd_table: Table) -> None:
    text = rendering.markdown([odd_table])
    assert r"| Setting | a\|b | c\* |" in text
    assert "| x_1 | **1.0 ± 0.2** | _2.0_ |" in text or "| x_1 | **1.0 ± 0.3** | _2.0_ |" in text
    assert "| x_1 | 3.0<sup>a</sup> | – |" in text
    assert "- <sup>a</sup> paper: 5 % & more" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4}


def test_markdown_lets_no_markup_through() -> None:
    evil = "<img src=x onerror=alert(1)>"
    table = Table("t", f"T {evil}\n# more", f"C {evil}", ("Setting",), (evil, "[a](javascript:b) &lt;"))
    table.rows += [Row((evil,), (Entry(text=evil), Entry(1.0, notes=table.note(f"N {evil}"))))]
    text = rendering.markdown([table])
    assert "<img" not in text and text.count("&lt;img src=x onerror=alert(1)&gt;") == 6
    assert "\n# more" not in text and "](" not in text and "&amp;lt;" in text


def test_latex(odd_table: Table) -> None:
    text = rendering.latex([odd_table])
    assert r"\toprule" in text and r"\bottomrule" in text and r"\textbf{1.0 $\pm$" in text
    assert r"\cellcolor{gray!20}2.0" in text and r"\textit{3.0}$^{a}$" in text
    assert r"A\_title 50 \%" in text and r"5 \% \& more" in text
    assert text.count("{") == text.count("}") and text.count(r"\begin") == text.count(r"\end")


def test_csv_has_one_line_per_number_and_names_its_records(odd_table: Table) -> None:
    rows = list(csv.DictReader(io.StringIO(rendering.comma_separated([odd_table]))))
    assert len(rows) == 3
    assert rows[0] | {} == {
        "table": "t",
        "setting": "x_1",
        "column": "a|b",
        "origin": "ours",
        "value": "1",
        "deviation": "0.25",
        "runs": "2",
        "note": "",
        "records": "id1 id2",
    }
    assert rows[2]["origin"] == "paper" and rows[2]["note"] == "paper: 5 % & more"


def test_entries_without_values_are_dashes() -> None:
    assert entry_of([]).plain == "–"


def test_method_titles() -> None:
    assert Method("slomo_fast_star").title == "SloMo-Fast*"
    assert Method("mine", '{"lr":0.001,"k":3}').title == "mine (lr=0.001, k=3)"


def test_tables_on_disk_agree_with_the_records(small_report: Path, small_store: Path) -> None:
    with open(small_report.parent / "tables" / "summary.csv") as file:
        rows = [r for r in csv.DictReader(file) if r["origin"] == "ours" and r["column"] == "ROID" and r["records"]]
    assert len(rows) == 3
    for row in rows:
        errors = []
        for name in row["records"].split():
            record = made_up.json.loads((small_store / f"{name}.json").read_bytes())
            assert record["job"]["method"] == "roid"
            errors.append(record["metrics"]["error"]["mean"])
        assert float(row["value"]) == pytest.approx(sum(errors) / len(errors), abs=1e-3)
