"""Pictures from stored records: one set per stream, one heat map per run that measured forgetting."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slomofast.core.errors import DataError
from slomofast.report import plots
from slomofast.report.records import BadRecord, parse


def write_figures(store: str | Path, out: str | Path) -> list[Path]:
    """Draw every record of a folder; returns the files written.

    Runs over the same stream (same order, data and network) share a picture: error over time, error by cycle where
    there are several, error after a shift, and the stream's timeline.
    """
    folder = Path(out)
    written = []
    for name, records in _by_stream(_records(Path(store))).items():
        figures = {
            "timeline": plots.timeline(
                records[0]["segments"], records[0]["curve"]["domains"], records[0]["curve"]["groups"]
            ),
            "error-over-time": plots.error_over_time(records),
            "after-a-shift": plots.adaptation_curves(records),
        }
        if len(set(records[0]["curve"]["cycle"])) > 1:
            figures["error-by-cycle"] = plots.error_by_cycle(records)
        for record in records:
            if matrix := forgetting_matrix(record):
                label = _slug(record["job"]["method"])
                figures[f"forgetting-{label}-{record['id'][:6]}"] = plots.forgetting_heatmap(matrix)
                figures[f"first-domain-{label}-{record['id'][:6]}"] = plots.forgetting_curves(matrix)
        written += [plots.save(figure, folder / f"{name}-{what}.png") for what, figure in figures.items()]
    return written


def forgetting_matrix(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """A record's accuracies on held-out images, as the plots take them; None where they were not measured."""
    kept = record["metrics"].get("forgetting") or {}
    if not kept.get("matrix"):
        return None
    domains = list(kept["domains"])
    visits = [[domains.index(name)] if name in domains else list(range(len(domains))) for name in kept["visits"]]
    members = {name: figures["matrix"] for name, figures in kept["members"].items()}
    accuracy = {"output": kept["matrix"], **members}
    return {**kept, "domains": domains, "visits": visits, "accuracy": accuracy}


def _records(folder: Path) -> list[dict[str, Any]]:
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}; `slomofast run` and `sweep` make one")
    found = []
    for file in sorted(folder.glob("*.json")):
        try:
            record = parse(file.read_bytes(), whole=True)
        except (BadRecord, ValueError, OSError):
            continue  # the report names what cannot be read
        if record.get("status") == "done":
            found.append(record)
    if not found:
        raise DataError(f"{folder} holds no finished record; run something first")
    return found


def _by_stream(records: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for record in records:
        prints = record["fingerprints"]
        groups.setdefault((prints["stream"], prints.get("data", ""), prints["model"]), []).append(record)
    named: dict[str, list[dict[str, Any]]] = {}
    for group in groups.values():
        job = group[0]["job"]
        name = _slug(f"{job['data']['name']}-{job['setting']['name']}-seed{job['seed']}")
        number = sum(1 for other in named if other == name or other.startswith(f"{name}-v"))
        named[f"{name}-v{number + 1}" if number else name] = group
    return named


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-")
