"""What `sf.Guard` does: adapters that go astray, with and without it, and how often it stops one that is well.

    python benchmarks/guard.py --out guard.csv                      # the embedded letters
    python benchmarks/guard.py --validation FOLDER --out guard.csv  # real images under the four extra corruptions

A row is one run over one stream. `guard` is `no`, the guard's action, or `warn`, which changes nothing: then the row
says how low the agreement of that adapter came and how often the guard would have stepped in.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import slomofast as sf
from slomofast.streams import measure_source_errors

ASTRAY = (  # method, options, batch size: steps far too large, batches far too small
    ("tent", {"lr": 0.1}, 50),
    ("tent", {"lr": 0.01}, 4),
    ("cotta", {"lr": 0.1}, 50),
)
WELL = ("slomo_fast_star", "slomo_fast", "tent", "roid")
SETTINGS = (
    "continual", "mixed", "gradual", "episodic", "cross_group", "easy2hard", "hard2easy", "mixed_after_continual",
    "continual_after_mixed", "ccc", "cyclic", "cyclic_group", "cycle_length", "lifelong", "stochastic",
)  # fmt: skip
EXTRA = "speckle_noise,gaussian_blur,spatter,saturate"
SHORTER = {"gradual": 50, "lifelong": 50, "mixed_after_continual": 100, "continual_after_mixed": 100}
VALIDATION = {
    "cifar10": ("wrn_40_2", "cifar10_wrn40_2.safetensors", {}, "cifar10_test.npz", 100, 300),
    "tinyimagenet": (
        "resnet_18_64", "tinyimagenet_resnet18.safetensors", {"classes": 200}, "tinyimagenet_val.npz", 64, 256,
    ),
}  # fmt: skip
SOLVERS = (
    ("tent", {}), ("slomo_fast", {}), ("slomo_fast_star", {}), ("tent", {"lr": 0.01}), ("tent", {"lr": 0.02}),
)  # fmt: skip
Row = dict[str, Any]


def played(adapter: Any, stream: Any) -> tuple[float, float, float]:
    """Percent wrong over a stream and over its last tenth, and the lowest agreement of a window."""
    wrong, counts, lowest = [], [], 1.0
    watched = isinstance(adapter, sf.Guard)
    for step in sf.evaluate(adapter, stream, timing=False):
        wrong.append(int((step.logits.argmax(1) != step.target).sum()))
        counts.append(len(step.target))
        if watched and adapter.ready:
            lowest = min(lowest, adapter.agreement)
    if watched and adapter.alarms:
        lowest = min(lowest, *(alarm.agreement for alarm in adapter.alarms))
    late = max(1, len(wrong) // 10)
    return 100 * sum(wrong) / sum(counts), 100 * sum(wrong[-late:]) / sum(counts[-late:]), lowest


def run(
    model: Any, stream: Any, method: str, options: Mapping[str, Any], action: str, source: Any = None, **facts: Any
) -> Row:
    """One row: the errors of a method on a stream with a guard or without, and what the guard saw."""
    adapter = sf.adapt(model, method, **options)
    if adapter.needs_source:
        adapter.fit_source(source)
    watched = adapter if action == "no" else sf.Guard(adapter, model, action)  # type: ignore[arg-type]
    error, late, lowest = played(watched, stream)
    steps = [] if action == "no" else [f"{alarm.step}:{alarm.action}" for alarm in watched.alarms]
    return facts | {
        "method": method,
        "options": " ".join(f"{key}={value}" for key, value in options.items()),
        "guard": action,
        "batches": stream.total,
        "error": f"{error:.2f}",
        "last_tenth": f"{late:.2f}",
        "lowest_agreement": "" if action == "no" else f"{lowest:.3f}",
        "alarms": len(steps),
        "when": " ".join(steps),
    }


def letters() -> Iterator[Row]:
    """Adapters that go astray over four cycles, and those that are well in fifteen settings."""
    model, data = sf.load_source("glyphs"), sf.open_data("glyphs", size=200)
    errors = measure_source_errors(model, data, 5, 200, 50)
    for method, options, size in ASTRAY:
        for action in ("no", "roll_back", "reset", "freeze"):
            stream = sf.stream(sf.make_setting("cyclic", cycles=4), data, batch_size=size, images_per_domain=100)
            yield run(model, stream, method, options, action, data="glyphs", setting="cyclic", batch_size=size)
    for setting in SETTINGS:
        options = {"images": 15000, "level": "easy", "calibrated": False} if setting == "ccc" else {}
        count = SHORTER.get(setting, 200)
        facts = {"source_errors": errors} if setting in ("easy2hard", "hard2easy") else {}
        for method in WELL:
            stream = sf.stream(
                sf.make_setting(setting, **options), data, batch_size=50, images_per_domain=count, **facts
            )
            yield run(model, stream, method, {}, "warn", data="glyphs", setting=setting, batch_size=50)


def validation(folder: Path) -> Iterator[Row]:
    """Real images under the four extra corruptions, two cycles, severities 5 and 3."""
    for name, (network, weights, options, pack, size, count) in VALIDATION.items():
        model = sf.load_source(network, folder / weights, **options)
        for severity in (5, 3):
            for method, own in SOLVERS:
                stream = sf.stream(
                    sf.make_setting("cyclic", cycles=2),
                    sf.open_data(f"pack:{folder / pack}", domains=EXTRA),
                    batch_size=size,
                    images_per_domain=count,
                    severity=severity,
                )
                facts = {"data": name, "setting": f"cyclic, severity {severity}", "batch_size": size}
                yield run(model, stream, method, own, "warn", **facts)


def main() -> None:
    """Print rows as they are measured, and write them."""
    parser = argparse.ArgumentParser(description="What a guard does, on letters or on validation corruptions.")
    parser.add_argument("--validation", type=Path, metavar="FOLDER", help="packs and weights of real images")
    parser.add_argument("--out", type=Path, required=True, help="CSV file the rows are appended to")
    parser.add_argument("--threads", type=int, default=1, help="processor threads")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    warnings.simplefilter("ignore")
    commit = subprocess.run(["git", "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True).stdout.strip()
    words = " --validation FOLDER" if chosen.validation else ""
    made = {"command": f"python benchmarks/guard.py{words} --out guard.csv", "commit": commit, "device": "cpu"}
    fresh = not chosen.out.exists()
    with chosen.out.open("a", newline="") as file:
        writer: csv.DictWriter[str] | None = None
        for row in validation(chosen.validation) if chosen.validation else letters():
            if writer is None:
                writer = csv.DictWriter(file, [*row, *made])
                if fresh:
                    writer.writeheader()
            writer.writerow(row | made)
            file.flush()
            shown = (row[key] for key in ("data", "setting", "batch_size", "method", "options", "guard"))
            print(*shown, row["error"], row["last_tenth"], row["lowest_agreement"], row["when"], flush=True)


if __name__ == "__main__":
    sys.exit(main())
