"""What methods cost, beside the paper's table of efficiency."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, median

from slomofast.report import names, reference
from slomofast.report.aggregate import Group, Method, all_methods
from slomofast.report.published import OWN, printed
from slomofast.report.records import Run
from slomofast.report.tables import OURS, PAPER, Entry, Row, Table

COSTS = {  # stored name -> (title, factor, digits, name in the paper's table)
    "trainable_percent": ("trainable %", 1.0, 1, "trainable_percent"),
    "peak_device_bytes": ("device GB", 1e-9, 2, "device_gb"),
    "peak_host_bytes": ("host GB", 1e-9, 2, "host_gb"),
    "milliseconds_median": ("ms per batch", 1.0, 1, ""),
    "milliseconds_p95": ("ms per batch, p95", 1.0, 1, ""),
    "images_per_second": ("images per s", 1.0, 0, ""),
    "forward_multiple": ("× plain forward", 1.0, 1, ""),
}


def efficiency(groups: Sequence[Group]) -> list[Table]:
    """A table for each network, data set and device on which runs were timed; default options only."""
    families: dict[tuple[str, str, str], dict[Method, list[Run]]] = {}
    titles: dict[str, str] = {}
    for group in groups:
        titles[group.model] = group.model_title
        for method in all_methods([group]):
            for run in group.cells[method].runs if method.plain else ():
                family = families.setdefault((group.data, group.model, run.device), {})
                family.setdefault(method, []).append(run)
    tables = []
    for (data, model, device), members in families.items():
        used = [name for name in COSTS if any(_values(runs, name) for runs in members.values())]
        if not used:
            continue
        table = Table(
            "_".join(
                ["efficiency", *("".join(c if c.isalnum() else "-" for c in t) for t in (data, model, device) if t)]
            ),
            f"Efficiency: {names.data_title(data)} · {titles[model]} · {device or 'unnamed device'}",
            "Median cost over all settings; error is the mean over all runs. Published costs are of other machines, "
            "and the published error is the mean over the paper's whole summary.",
            ("Method", "Numbers of"),
            (*(COSTS[name][0] for name in used), "error"),
        )
        known = reference.architecture(model) in names.MODELS
        for method in sorted(members, key=lambda m: m.rank):
            table.rows += _rows(table, method, members[method], used, known)
        tables.append(table)
    return tables


def _rows(table: Table, method: Method, runs: Sequence[Run], used: Sequence[str], published: bool) -> list[Row]:
    cells = []
    for name in used:
        _, factor, digits, _ = COSTS[name]
        values = _values(runs, name)
        cells.append(Entry(median(values) * factor, digits=digits) if values else Entry())
    error = Entry(fmean(run.error for run in runs), records=tuple(run.id for run in runs))
    rows = [Row((method.title, OWN), (*cells, error), OURS)]
    found = reference.find("efficiency", PAPER, method.name) if published else None
    if found is not None:
        columns = [COSTS[name][3] for name in used]
        rows.append(Row((method.title, "paper"), tuple(printed(table, found, c) for c in (*columns, "error")), PAPER))
    return rows


def _values(runs: Iterable[Run], name: str) -> list[float]:
    values = [(run.metrics.get("cost") or {}).get(name) for run in runs]
    return [float(v) for v in values if isinstance(v, int | float)]
