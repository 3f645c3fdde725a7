"""The paper's tables from one's own records, with the published numbers in rows below.

Only tables for which records exist are made. Combinations nobody ran are dashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from slomofast.report import names, reference
from slomofast.report.aggregate import Cell, Group, Method, all_methods
from slomofast.report.significance import difference, interval_text
from slomofast.report.tables import BENCHMARK, OURS, PAPER, Entry, Row, Table, entry_of, rank_columns, ranked

_SOURCES = ((PAPER, "paper"), (BENCHMARK, "public benchmark"))
_OWN = "this store"
Find = Callable[[str, Method], reference.Entry | None]


def all_tables(groups: Sequence[Group]) -> dict[str, list[Table]]:
    """Every table these groups can fill, by the name of the file they go to."""
    made = {
        "summary": [summary(groups)] if groups else [],
        "per_domain": [t for group in groups for t in per_domain(group)],
        "cyclic": [t for group in groups for t in cyclic(group)],
        "lifelong": [t for group in groups for t in lifelong(group)],
        "ccc": ccc(groups),
        "architectures": architectures(groups),
        "recurring": recurring(groups),
        "efficiency": efficiency(groups),
    }
    return {name: tables for name, tables in made.items() if tables}


def summary(groups: Sequence[Group]) -> Table:
    """Mean error: one row per experiment, one column per method, and the lead of the best over the next."""
    methods = all_methods(groups)
    table = Table(
        "summary",
        "Summary",
        "Mean error in percent (lower is better) ± deviation over seeds. The last column is the mean difference "
        "between the best method and its best rival with a 95 % interval from a paired bootstrap; an interval "
        "that contains 0 decides nothing. Published CIFAR streams have 10,000 images a domain; shorter ones "
        "here say so.",
        ("Setting", "Data", "Model", "Numbers of"),
        (*(m.title for m in methods), "Best against next"),
    )
    for group in groups:
        labels = (_setting(group), names.data_title(group.data), group.model_title)
        cells = ranked([_own(group.cells.get(m)) for m in methods])
        table.rows.append(Row((*labels, _OWN + _length(group)), (*cells, _lead(group)), OURS))

        def published(source: str, method: Method, group: Group = group) -> reference.Entry | None:
            return _find("summary", group, source, method)

        for row in _published_rows(table, labels, methods, published, "error"):
            table.rows.append(Row(row.labels, (*row.entries, Entry()), row.origin))
    complete = [g for g in groups if all(m in g.cells for m in methods)]
    if len(complete) > 1:
        means = ranked([Entry(float(np.mean([g.cells[m].mean for g in complete]))) for m in methods])
        label = f"{_OWN}, {len(complete)} complete rows"
        table.rows.append(Row(("Mean", "", "", label), (*means, Entry()), OURS))
    return table


def per_domain(group: Group) -> list[Table]:
    """Error by domain for one experiment; nothing where there is only one domain."""
    domains = group.domains
    if len(domains) < 2:
        return []
    table = Table(
        _identifier("per_domain", group),
        f"Per domain: {group.title}",
        "Error in percent by domain, in the order of the stream; a mixed phase is a column of its own.",
        ("Method", "Numbers of"),
        (*(names.domain_title(d) for d in domains), "mean"),
    )
    own, published = [], {}
    for method, cell in group.cells.items():
        ids = [run.id for run in cell.runs]
        entries = [entry_of(cell.domain(d), ids) for d in domains]
        own.append(Row((method.title, _OWN), (*entries, _own(cell)), OURS))
        published[method.title] = list(
            _published_rows_by_column(table, method, group, "per_domain", (*domains, "mean"))
        )
    for row in rank_columns(own):
        table.rows += [row, *published[row.labels[0]]]
    return [table]


def cyclic(group: Group) -> list[Table]:
    """Error by group of domains and cycle, for streams that return a few times."""
    if not 2 <= group.cycles <= 4:
        return []
    columns = _cycle_columns(group)
    table = Table(
        _identifier("cyclic", group),
        f"Cycles: {group.title}",
        "Error in percent by group of domains. `mean` is over domains; the paper prints means of group means here, so "
        "its last column is not the same quantity.",
        ("Cycle", "Method", "Numbers of"),
        columns,
    )
    for cycle in (*range(group.cycles), None):
        own, published = [], {}
        label = "avg" if cycle is None else str(cycle + 1)
        for method, cell in group.cells.items():
            own.append(Row((label, method.title, _OWN), _cycle_entries(cell, cycle, columns), OURS))
            found = _find("cyclic", group, PAPER, method, cycle=label)
            published[method.title] = _one_published_row(table, (label, method.title), found, columns)
        for row in rank_columns(own):
            table.rows += [row, *published[row.labels[1]]]
    return [table]


def lifelong(group: Group) -> list[Table]:
    """Error from cycle to cycle, for streams that return many times."""
    if group.cycles < 5:
        return []
    columns = (*(str(c + 1) for c in range(group.cycles)), "mean")
    table = Table(
        _identifier("lifelong", group),
        f"Lifelong trajectory: {group.title}",
        "Error in percent in each cycle over all domains. The paper does not say which data set its trajectory is of.",
        ("Method", "Numbers of"),
        columns,
    )
    own, published = [], {}
    for method, cell in group.cells.items():
        ids = [run.id for run in cell.runs]
        entries = [
            entry_of([run.cycles[c]["mean"] for run in cell.runs if c < len(run.cycles)], ids)
            for c in range(group.cycles)
        ]
        means = [float(np.mean([c["mean"] for c in run.cycles])) for run in cell.runs]
        own.append(Row((method.title, _OWN), (*entries, entry_of(means, ids)), OURS))
        found = None
        if method.plain and group.comparable and group.data == "cifar10_c":
            found = reference.find("lifelong", PAPER, method.name, setting=group.setting, metric="error_rate")
        published[method.title] = _one_published_row(table, (method.title,), found, columns)
    for row in rank_columns(own):
        table.rows += [row, *published[row.labels[0]]]
    return [table]


def ccc(groups: Sequence[Group]) -> list[Table]:
    """Continuously changing corruptions: one column per level."""
    chosen = [g for g in groups if g.setting == "ccc"]
    families: dict[tuple[str, str], list[Group]] = {}
    for group in chosen:
        families.setdefault((group.data, group.model), []).append(group)
    tables = []
    for (data, model), family in families.items():
        levels = _levels(family)
        columns = (*levels, "mean")
        table = Table(
            f"ccc_{_slug(data)}_{_slug(model)}",
            f"CCC: {names.data_title(data)} · {family[0].model_title}",
            "Mean online error in percent by level; the mean is over levels and only where all were run.",
            ("Method", "Numbers of"),
            columns,
        )
        own, published = [], {}
        for method in all_methods(family):
            cells = [levels[level].cells.get(method) for level in levels]
            mean = [c.mean for c in cells if c]
            total = Entry(float(np.mean(mean))) if len(mean) == len(levels) else Entry()
            own.append(Row((method.title, _OWN), (*map(_own, cells), total), OURS))
            found = None
            if method.plain:
                found = reference.find("ccc", PAPER, method.name, setting="ccc", data="ccc", model=model)
            published[method.title] = _one_published_row(table, (method.title,), found, columns)
        for row in rank_columns(own):
            table.rows += [row, *published[row.labels[0]]]
        tables.append(table)
    return tables


def _levels(family: Iterable[Group]) -> dict[str, Group]:
    """Groups by level, easy before hard; further differences stay visible in the name."""
    order = {"easy": 0, "medium": 1, "hard": 2}
    found: dict[str, Group] = {}
    for group in sorted(family, key=lambda g: order.get(str(g.fields.get("level")), 3)):
        level = str(group.fields.get("level") or group.variant or "all")
        found[level if level not in found else f"{level} ({group.variant})"] = group
    return found


def architectures(groups: Sequence[Group]) -> list[Table]:
    """The continual setting over several networks on the same data."""
    by_data: dict[str, dict[str, Group]] = {}
    for group in groups:
        if group.setting == "continual":
            by_data.setdefault(group.data, {}).setdefault(group.model, group)
    tables = []
    for data, by_model in by_data.items():
        if len(by_model) < 2:
            continue
        columns = tuple(g.model_title for g in by_model.values())
        table = Table(
            f"architectures_{_slug(data)}",
            f"Architectures: {names.data_title(data)}",
            "Mean error in percent in the continual setting.",
            ("Method", "Numbers of"),
            columns,
        )
        own, published = [], {}
        for method in all_methods(by_model.values()):
            own.append(Row((method.title, _OWN), tuple(_own(g.cells.get(method)) for g in by_model.values()), OURS))
            rows = []
            for source, label in _SOURCES:
                name = "architectures" if source == PAPER else "summary"
                found = [_find(name, g, source, method) for g in by_model.values()]
                if any(found):
                    rows.append(Row((method.title, label), tuple(_published(table, f, "error") for f in found), source))
            published[method.title] = rows
        for row in rank_columns(own):
            table.rows += [row, *published[row.labels[0]]]
        tables.append(table)
    return tables


def recurring(groups: Sequence[Group]) -> list[Table]:
    """Methods made for recurring shifts, side by side in the cyclic setting."""
    chosen = [g for g in groups if g.setting == "cyclic"]
    methods = [m for m in all_methods(chosen) if m.name in names.RECURRING]
    if len(methods) < 2:
        return []
    columns = tuple(" · ".join(filter(None, (names.data_title(g.data), g.variant))) for g in chosen)
    table = Table(
        "recurring",
        "Methods for recurring shifts",
        "Mean error in percent in the cyclic setting.",
        ("Method", "Numbers of"),
        columns,
    )
    own, published = [], {}
    for method in methods:
        own.append(Row((method.title, _OWN), tuple(_own(g.cells.get(method)) for g in chosen), OURS))
        found = [_find("recurring", g, PAPER, method) for g in chosen]
        row = Row((method.title, "paper"), tuple(_published(table, f, "error") for f in found), PAPER)
        published[method.title] = [row] if any(found) else []
    for row in rank_columns(own):
        table.rows += [row, *published[row.labels[0]]]
    return [table]


COSTS: Mapping[str, tuple[str, float, int]] = {  # stored name -> (title, factor, digits)
    "trainable_percent": ("trainable %", 1, 1),
    "peak_device_bytes": ("device GB", 1e-9, 2),
    "peak_host_bytes": ("host GB", 1e-9, 2),
    "milliseconds_median": ("ms per batch", 1, 1),
    "milliseconds_p95": ("ms per batch, p95", 1, 1),
    "images_per_second": ("images per s", 1, 0),
    "forward_multiple": ("× plain forward", 1, 1),
}


def efficiency(groups: Sequence[Group]) -> list[Table]:
    """What each method costs, per network and data; absent where no run was timed."""
    families: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        families.setdefault((group.data, group.model), []).append(group)
    tables = []
    for (data, model), family in families.items():
        methods = [m for m in all_methods(family) if m.plain]
        used = [c for c in COSTS if any(_cost_values(family, m, c) for m in methods)]
        if not used or not methods:
            continue
        devices = sorted({r.device for g in family for c in g.cells.values() for r in c.runs if r.device})
        table = Table(
            f"efficiency_{_slug(data)}_{_slug(model)}",
            f"Efficiency: {names.data_title(data)} · {family[0].model_title}",
            f"Median cost over all settings, measured on {', '.join(devices) or 'an unnamed device'}; error is the "
            "mean over settings. Published costs are from other machines.",
            ("Method", "Numbers of"),
            (*(COSTS[c][0] for c in used), "error"),
        )
        for method in methods:
            entries = []
            for cost in used:
                _, factor, digits = COSTS[cost]
                values = _cost_values(family, method, cost)
                entries.append(Entry(float(np.median(values)) * factor, digits=digits) if values else Entry())
            errors = [g.cells[method].mean for g in family if method in g.cells]
            table.rows.append(Row((method.title, _OWN), (*entries, Entry(float(np.mean(errors)))), OURS))
            found = _cost_reference(method) if reference.architecture(model) in names.MODELS else None
            if found:
                shown = {
                    "trainable_percent": "trainable_percent",
                    "peak_device_bytes": "device_gb",
                    "peak_host_bytes": "host_gb",
                }
                cells = [_published(table, found, shown.get(c, "")) for c in used]
                table.rows.append(Row((method.title, "paper"), (*cells, _published(table, found, "error")), PAPER))
        tables.append(table)
    return tables


def _cost_reference(method: Method) -> reference.Entry | None:
    return reference.find("efficiency", PAPER, method.name) if method.plain else None


def _cost_values(family: Iterable[Group], method: Method, name: str) -> list[float]:
    runs = [run for group in family if method in group.cells for run in group.cells[method].runs]
    values = [(run.metrics.get("cost") or {}).get(name) for run in runs]
    return [float(v) for v in values if isinstance(v, int | float)]


def _own(cell: Cell | None) -> Entry:
    if cell is None:
        return Entry()
    return entry_of([run.error for run in cell.runs], [run.id for run in cell.runs])


def _lead(group: Group) -> Entry:
    """The best method against its best rival."""
    order = sorted(group.cells.values(), key=lambda c: (c.mean, c.method.rank))
    if len(order) < 2:
        return Entry()
    found = difference(order[0].runs, order[1].runs)
    if found is None:
        return Entry()
    return Entry(text=f"{order[0].method.title} − {order[1].method.title}: {interval_text(found)}")


def _find(name: str, group: Group, source: str, method: Method, cycle: str = "") -> reference.Entry | None:
    """The published row for this experiment; none for changed options or another kind of stream."""
    if not method.plain or not group.comparable:
        return None
    data = "ccc" if group.setting == "ccc" and name == "summary" else group.data
    return reference.find(name, source, method.name, setting=group.setting, data=data, model=group.model, cycle=cycle)


def _published_rows(
    table: Table, labels: tuple[str, ...], methods: Sequence[Method], find: Find, column: str
) -> Iterable[Row]:
    for source, label in _SOURCES:
        found = [find(source, method) for method in methods]
        if any(found):
            cells = tuple(_published(table, f, column) for f in found)
            yield Row((*labels, label), cells, source)


def _published_rows_by_column(
    table: Table, method: Method, group: Group, name: str, columns: Sequence[str]
) -> Iterable[Row]:
    for source, label in _SOURCES:
        found = _find(name, group, source, method)
        if found:
            yield Row((method.title, label), tuple(_published(table, found, c) for c in columns), source)


def _one_published_row(
    table: Table, labels: tuple[str, ...], found: reference.Entry | None, columns: Sequence[str]
) -> list[Row]:
    if found is None:
        return []
    return [Row((*labels, "paper"), tuple(_published(table, found, c) for c in columns), PAPER)]


def _published(table: Table, found: reference.Entry | None, column: str) -> Entry:
    """A published number with its known contradictions as footnotes."""
    if found is None or column not in found.values:
        return Entry()
    value = found.values[column]
    notes = table.note(f"{found.source}: {found.flag}" if found.flag else "")
    digits = 2 if round(value, 1) != value else 1
    return Entry(value, found.values.get("std") if column == "error" else None, digits, notes=notes)


def _length(group: Group) -> str:
    """A reminder where the published streams were longer."""
    images = group.images_per_domain
    if images is None or group.data not in ("cifar10_c", "cifar100_c") or images >= reference.PUBLISHED_IMAGES:
        return ""
    return f", {images:,} a domain"


def _cycle_columns(group: Group) -> tuple[str, ...]:
    seen = dict.fromkeys(
        g for cell in group.cells.values() for run in cell.runs for c in run.cycles for g in c if g != "mean"
    )
    return (*seen, "mean")


def _cycle_entries(cell: Cell, cycle: int | None, columns: Sequence[str]) -> tuple[Entry, ...]:
    ids = [run.id for run in cell.runs]
    entries = []
    for column in columns:
        values = []
        for run in cell.runs:
            chosen = run.cycles if cycle is None else run.cycles[cycle : cycle + 1]
            found = [c[column] for c in chosen if column in c]
            if found:
                values.append(float(np.mean(found)))
        entries.append(entry_of(values, ids))
    return tuple(entries)


def _setting(group: Group) -> str:
    return names.setting_title(group.setting) + (f" ({group.variant})" if group.variant else "")


def _identifier(name: str, group: Group) -> str:
    parts = [name, group.setting, group.data, group.model, group.variant]
    return "_".join(_slug(p) for p in parts if p)


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text.lower()).strip("-")
