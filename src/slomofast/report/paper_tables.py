"""The paper's tables from one's own records, with the published numbers in rows below.

Only tables for which records exist are made. Combinations nobody ran are dashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from slomofast.report import names, reference
from slomofast.report.aggregate import Cell, Group, all_methods
from slomofast.report.cost_tables import efficiency
from slomofast.report.published import OWN, SOURCES, find, interleave, own_entry, printed_cells, printed_row
from slomofast.report.records import Run
from slomofast.report.significance import difference, interval_text
from slomofast.report.tables import OURS, PAPER, Entry, Row, Table, entry_of, ranked


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
        "Mean error in percent (lower is better) ± deviation over seeds. The last column is the difference between the "
        "best method and its best rival over the seeds both have, with a 95 % interval from a paired bootstrap; an "
        "interval that contains 0 decides nothing. Published CIFAR streams have 10,000 images a domain; shorter ones "
        "here say so.",
        ("Setting", "Data", "Model", "Numbers of"),
        (*(m.title for m in methods), "Best against next"),
    )
    for group in groups:
        labels = (_setting(group), names.data_title(group.data), group.model_title)
        cells = ranked([_noted(table, group.cells.get(m)) for m in methods])
        table.rows.append(Row((*labels, OWN + _length(group)), (*cells, _lead(group)), OURS))
        for source, _ in SOURCES:
            found = [find("summary", group, source, m) for m in methods]
            for row in printed_cells(table, labels, found, source):
                table.rows.append(Row(row.labels, (*row.entries, Entry()), row.origin))
    complete = [g for g in groups if all(m in g.cells for m in methods)]
    if len(complete) > 1:
        means = ranked([Entry(fmean(g.cells[m].mean for g in complete)) for m in methods])
        label = f"{OWN}, {len(complete)} complete rows"
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
    own, below = [], {}
    for method, cell in group.cells.items():
        ids = [run.id for run in cell.runs]
        entries = [entry_of(cell.domain(d), ids) for d in domains]
        own.append(Row((method.title, OWN), (*entries, own_entry(cell)), OURS))
        found = find("per_domain", group, PAPER, method)
        below[method.title] = printed_row(table, (method.title,), found, (*domains, "mean"))
    table.rows = interleave(own, below)
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
        own, below = [], {}
        label = "avg" if cycle is None else str(cycle + 1)
        for method, cell in group.cells.items():
            own.append(Row((label, method.title, OWN), _cycle_entries(cell, cycle, columns), OURS))
            found = find("cyclic", group, PAPER, method, cycle=label)
            below[method.title] = printed_row(table, (label, method.title), found, columns)
        table.rows += interleave(own, below, label=1)
    return [table]


def lifelong(group: Group) -> list[Table]:
    """Error, adaptation rate and forgetting from cycle to cycle, for streams that return many times."""
    if group.cycles < 5:
        return []
    columns = (*(str(c + 1) for c in range(group.cycles)), "mean")
    table = Table(
        _identifier("lifelong", group),
        f"Lifelong trajectory: {group.title}",
        "Error in percent over all domains of each cycle; adaptation rate (higher is better) and forgetting in points "
        "of accuracy where runs recorded them. The paper does not say which data set its trajectory is of, nor the "
        "units of its rate and ratio.",
        ("Figure", "Method", "Numbers of"),
        columns,
    )
    figures = (
        ("Error %", "error_rate", 1),
        ("Adaptation rate", "adaptation_rate", 4),
        ("Forgetting", "forgetting_ratio", 2),
    )
    for title, metric, digits in figures:
        own, below = [], {}
        for method, cell in group.cells.items():
            series = [(run.id, s) for run in cell.runs if len(s := _by_cycle(run, metric)) == group.cycles]
            if not series:
                continue
            ids = [name for name, _ in series]
            values = [[s[c] for _, s in series] for c in range(group.cycles)] + [[fmean(s) for _, s in series]]
            own.append(Row((title, method.title, OWN), tuple(entry_of(v, ids, digits) for v in values), OURS))
            found = None
            if method.plain and group.comparable and group.data == "cifar10_c":
                found = reference.find("lifelong", PAPER, method.name, setting=group.setting, metric=metric)
            below[method.title] = printed_row(table, (title, method.title), found, columns)
        if metric == "adaptation_rate":  # the only figure of which more is better: no marks
            table.rows += [r for row in own for r in (row, *below[row.labels[1]])]
        else:
            table.rows += interleave(own, below, label=1)
    return [table]


def _by_cycle(run: Run, metric: str) -> list[float]:
    """A figure of a run for each of its cycles; empty or shorter where it was not recorded."""
    if metric == "error_rate":
        return [cycle["mean"] for cycle in run.cycles]
    stored = run.metrics.get({"adaptation_rate": "adaptation", "forgetting_ratio": "forgetting"}[metric]) or {}
    values = stored.get("by_cycle") or []
    if isinstance(values, dict):
        values = [values[key] for key in sorted(values, key=int)]
    return [float(v) for v in values if v is not None]


_LEVELS = ("easy", "medium", "hard")


def ccc(groups: Sequence[Group]) -> list[Table]:
    """Continuously changing corruptions: one column per level, for shards and for streams made here."""
    families: dict[tuple[bool, str, str], list[Group]] = {}
    for group in groups:
        shards = group.setting == "continual" and bool(group.stream)
        if shards or group.setting == "ccc":
            families.setdefault((shards, group.data, group.model), []).append(group)
    return [_ccc_table(family, shards) for (shards, _, _), family in families.items()]


def _ccc_table(family: Sequence[Group], shards: bool) -> Table:
    data, model = ("shards" if shards else family[0].data), family[0].model
    levels = _shard_levels(family) if shards else _levels(family)
    table = Table(
        f"ccc_{_slug(data)}_{_slug(model)}",
        f"CCC: {data if shards else names.data_title(data)} · {family[0].model_title}",
        "Mean online error in percent by level; the mean is over levels and only where all were run. "
        + (
            "A level is the mean over its streams (speeds and seeds) and only where a method went through all of them; "
            "the deviation is then over streams. Published numbers are of the published streams of a level, three "
            "speeds with three seeds, 7.5 million images each."
            if shards
            else "These streams were made from images of one's own; published numbers are of the published shards and "
            "are not set beside them."
        ),
        ("Method", "Numbers of"),
        (*levels, "mean"),
    )
    # The printed mean is over three levels; it says nothing about fewer.
    printed = (*levels, "mean" if tuple(levels) == _LEVELS else "")
    own, below = [], {}
    for method in all_methods(family):
        entries = [_over_streams([group.cells.get(method) for group in levels[level]]) for level in levels]
        means = [e.value for e in entries if e.value is not None]
        total = Entry(fmean(means)) if len(means) == len(levels) else Entry()
        own.append(Row((method.title, OWN + (_shard_length(family) if shards else "")), (*entries, total), OURS))
        found = None
        if shards and method.plain and all(group.comparable for group in family):
            found = reference.find("ccc", PAPER, method.name, setting="ccc", data="ccc", model=model)
        if found is not None and not found.values.keys() & set(printed):
            found = None
        below[method.title] = printed_row(table, (method.title,), found, printed)
    table.rows = interleave(own, below)
    return table


def _over_streams(cells: Sequence[Cell | None]) -> Entry:
    """Mean over the streams of a level; a dash where one is missing."""
    present = [cell for cell in cells if cell is not None]
    if len(present) < len(cells):
        return Entry()
    if len(present) == 1:
        return own_entry(present[0])
    return entry_of([cell.mean for cell in present], [run.id for cell in present for run in cell.runs])


def _levels(family: Iterable[Group]) -> dict[str, list[Group]]:
    """Groups by level, easy before hard; a target of one's own and further differences stay visible in the name."""
    found: dict[str, list[Group]] = {}
    for group in sorted(family, key=lambda g: _level_rank(str(g.fields.get("level")))):
        level = str(group.fields.get("level") or group.variant or "all")
        if group.fields.get("target") is not None:
            level += f", target {group.fields['target']}"
        found[level if level not in found else f"{level} ({group.variant})"] = [group]
    return found


def _shard_levels(family: Iterable[Group]) -> dict[str, list[Group]]:
    """Groups by the level of their shards, with all streams of a level; an unknown stream goes by its folder's name.

    Streams of another length, or run with another batch size or the like, are never put together.
    """
    alike: dict[tuple[object, ...], list[Group]] = {}
    for group in family:
        known = reference.ccc_stream(group.stream)
        rest = tuple((k, v) for k, v in group.protocol if k not in ("data", "steps"))
        own = "" if known else dict(group.protocol).get("data", "")
        length = min(_stream_images(group), reference.CCC_IMAGES)  # full ones differ by part of a shard
        alike.setdefault((known[0] if known else group.stream, own, rest, length), []).append(group)
    found: dict[str, list[Group]] = {}
    for (level, *_), members in sorted(alike.items(), key=lambda item: _level_rank(str(item[0][0]))):
        name = str(level) if level not in found else f"{level} ({members[0].variant})"
        found[name] = members
    return found


def _level_rank(level: str) -> tuple[int, str]:
    return (_LEVELS.index(level) if level in _LEVELS else len(_LEVELS), level)


def _stream_images(group: Group) -> int:
    return next((run.images for cell in group.cells.values() for run in cell.runs), 0)


def _shard_length(family: Iterable[Group]) -> str:
    """A reminder where the published streams were longer."""
    fewest = min(map(_stream_images, family))
    return f", {fewest:,} images a stream" if 0 < fewest < reference.CCC_IMAGES else ""


def architectures(groups: Sequence[Group]) -> list[Table]:
    """The continual setting over several networks on the same data."""
    by_data: dict[str, list[Group]] = {}
    for group in groups:
        if group.setting == "continual":
            by_data.setdefault(group.data, []).append(group)
    tables = []
    for data, family in by_data.items():
        if len({g.model for g in family}) < 2:
            continue
        table = Table(
            f"architectures_{_slug(data)}",
            f"Architectures: {names.data_title(data)}",
            "Mean error in percent in the continual setting.",
            ("Method", "Numbers of"),
            tuple(_joined(g.model_title, g.variant) for g in family),
        )
        own: list[Row] = []
        below: dict[str, list[Row]] = {}
        for method in all_methods(family):
            own.append(Row((method.title, OWN), tuple(own_entry(g.cells.get(method)) for g in family), OURS))
            below[method.title] = []
            for source, _ in SOURCES:
                name = "architectures" if source == PAPER else "summary"
                found = [find(name, g, source, method) for g in family]
                below[method.title] += printed_cells(table, (method.title,), found, source)
        table.rows = interleave(own, below)
        tables.append(table)
    return tables


def recurring(groups: Sequence[Group]) -> list[Table]:
    """Methods made for recurring shifts, side by side in the cyclic setting."""
    chosen = [g for g in groups if g.setting == "cyclic"]
    methods = [m for m in all_methods(chosen) if m.name in names.RECURRING]
    if len(methods) < 2:
        return []
    several = {g.data for g in chosen if sum(other.data == g.data for other in chosen) > 1}
    columns = [_joined(names.data_title(g.data), g.model_title if g.data in several else "", g.variant) for g in chosen]
    table = Table(
        "recurring",
        "Methods for recurring shifts",
        "Mean error in percent in the cyclic setting.",
        ("Method", "Numbers of"),
        tuple(columns),
    )
    own, below = [], {}
    for method in methods:
        own.append(Row((method.title, OWN), tuple(own_entry(g.cells.get(method)) for g in chosen), OURS))
        found = [find("recurring", g, PAPER, method) for g in chosen]
        below[method.title] = printed_cells(table, (method.title,), found, PAPER)
    table.rows = interleave(own, below)
    return [table]


def _noted(table: Table, cell: Cell | None) -> Entry:
    """Mean error with a footnote where records repeat a seed."""
    entry = own_entry(cell)
    if cell is None or not cell.repeats:
        return entry
    count = len(cell.repeats)
    text = (
        f"{count} more {'record repeats a seed' if count == 1 else 'records repeat seeds'}; the newest of each counts"
    )
    return replace(entry, notes=table.note(text))


def _lead(group: Group) -> Entry:
    """The best method against its best rival."""
    order = sorted(group.cells.values(), key=lambda c: (c.mean, c.method.rank))
    if len(order) < 2:
        return Entry()
    found = difference(order[0].runs, order[1].runs)
    if found is None:
        return Entry()
    best, rival = order[:2]
    shared = len(set(best.seeds) & set(rival.seeds))
    only = "" if best.seeds == rival.seeds else f" (seeds of both: {shared})"
    return Entry(text=f"{best.method.title} − {rival.method.title}: {interval_text(found)}{only}")


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
                values.append(fmean(found))
        entries.append(entry_of(values, ids))
    return tuple(entries)


def _setting(group: Group) -> str:
    return names.setting_title(group.setting) + (f" ({group.variant})" if group.variant else "")


def _joined(*words: str) -> str:
    return " · ".join(word for word in words if word)


def _identifier(name: str, group: Group) -> str:
    parts = [name, group.setting, group.data, group.model, group.variant]
    return "_".join(_slug(p) for p in parts if p)


def _slug(text: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in text.lower()).strip("-")
