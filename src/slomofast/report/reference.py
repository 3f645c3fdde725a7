"""Published numbers to stand beside one's own: the SloMo-Fast paper's tables and the public benchmark's.

The values are as printed. `flag` says in a few words where a printed value contradicts another one or cannot be
right; such values are shown with a footnote, so that nobody tunes towards a misprint.
"""

from __future__ import annotations

import csv
import functools
import re
from dataclasses import dataclass
from importlib import resources

PAPER, BENCHMARK = "paper", "benchmark"
PUBLISHED_IMAGES = 10_000  # per domain on the CIFAR sets
CCC_IMAGES = 7_500_000  # of a published CCC stream
_CCC = re.compile(r"baseline_(40|20|0)_transition\+speed_(\d+)_seed_(\d+)")
_CCC_LEVELS = {"40": "easy", "20": "medium", "0": "hard"}  # by the accuracy that is kept
# How weights and code bases spell the networks of the published tables, letters and digits only.
_SPELLINGS = {
    "wrn2810": "wrn28",
    "wideresnet2810": "wrn28",
    "standard": "wrn28",
    "resnext29": "resnext29",
    "resnext294x32d": "resnext29",
    "hendrycks2020augmixresnext": "resnext29",
    "resnet50": "resnet50",
    "swinb": "swin_b",
    "swinbasepatch4window7224": "swin_b",
    "vitb16": "vit_b_16",
    "vitbasepatch16224": "vit_b_16",
}
_LABELS = {"source", "setting", "data", "model", "method", "flag", "cycle", "metric"}


@dataclass(frozen=True)
class Entry:
    """One published row: `values` by column (a single number is under `error`), as printed."""

    source: str
    setting: str
    data: str
    model: str
    method: str
    values: dict[str, float]
    flag: str = ""
    cycle: str = ""
    metric: str = ""


def architecture(model: str) -> str:
    """The published tables' name of a network, or the name itself where they have none.

    >>> architecture("WideResNet-28-10"), architecture("glyphs")
    ('wrn28', 'glyphs')
    """
    plain = "".join(c for c in model.lower().split(":")[-1] if c.isalnum())
    return _SPELLINGS.get(plain, model)


def ccc_stream(folder: str) -> tuple[str, int, int] | None:
    """Level, speed and seed of a published CCC stream by the name of its folder; None for another name.

    >>> ccc_stream("baseline_40_transition+speed_2000_seed_43")
    ('easy', 2000, 43)
    """
    found = _CCC.fullmatch(folder)
    return (_CCC_LEVELS[found[1]], int(found[2]), int(found[3])) if found else None


@functools.cache
def table(name: str) -> tuple[Entry, ...]:
    """The rows of one published table.

    Names: summary, per_domain, cyclic, lifelong, ccc, architectures, efficiency, recurring.
    """
    text = resources.files(__package__).joinpath("reference", f"{name}.csv").read_text(encoding="utf-8")
    entries = []
    for row in csv.DictReader(text.splitlines()):
        values = {k: float(v) for k, v in row.items() if k not in _LABELS and v}
        labels = {
            k: row.get(k) or "" for k in ("source", "setting", "data", "model", "method", "flag", "cycle", "metric")
        }
        entries.append(Entry(values=values, **labels))
    return tuple(entries)


@functools.cache
def _index(name: str) -> dict[tuple[str, ...], Entry]:
    return {(e.source, e.setting, e.data, e.model, e.method, e.cycle, e.metric): e for e in table(name)}


def find(
    name: str,
    source: str,
    method: str,
    *,
    setting: str = "",
    data: str = "",
    model: str = "",
    cycle: str = "",
    metric: str = "",
) -> Entry | None:
    """The published row for a run like this, or None; `model` may be spelt in any of the usual ways."""
    return _index(name).get((source, setting, data, architecture(model) if model else "", method, cycle, metric))
