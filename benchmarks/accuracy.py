"""The accuracy table: means, deviations and paired differences of the measured rows.

    python benchmarks/accuracy.py    # writes benchmarks/results/accuracy.csv and prints it as Markdown

Below it prints the tables of docs/results.md: of each setting the longest stream with the closest other method, of
three seeds and then of one, RMT on every stream that three seeds of it ran on, and every method in every setting, one
seed, on short streams; last the table of the README, the first of these as means.

A line is one method in one setting of one length. Deviations are over seeds (n - 1). Differences are to SloMo-Fast*
with its defaults on the same seeds, positive where the method is worse, with the half width of the 95 % interval of
Student's t distribution, which three seeds make wide.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from slomofast.metrics import spread

RESULTS = Path(__file__).parent / "results"
FILES = {
    "continual_10000_wrn28_10_h200.csv": "wrn_28_10",
    "settings_wrn28_10_h200.csv": "wrn_28_10",
    "returning_wrn28_10_h200.csv": "wrn_28_10",
    "every_setting_wrn28_10_h200.csv": "wrn_28_10",
    "tinyimagenet_resnet50_h200.csv": "resnet_50_64",
    "transformer_vit_tiny_h200.csv": "vit_tiny",
}
EVERY = "every_setting_wrn28_10_h200.csv"
SHORT = {
    "continual": "continual", "mixed": "mixed", "gradual": "gradual", "episodic": "episodic", "cross_group": "cross",
    "easy2hard": "easy2hard", "hard2easy": "hard2easy", "mixed_after_continual": "M after C",
    "continual_after_mixed": "C after M", "ccc": "CCC", "cyclic": "cyclic", "cyclic_group": "group",
    "cycle_length": "length", "lifelong": "lifelong", "stochastic": "Markov",
}  # fmt: skip
LABELS = {
    "cross_group": "cross-group", "easy2hard": "easy to hard", "hard2easy": "hard to easy",
    "mixed_after_continual": "mixed after continual", "continual_after_mixed": "continual after mixed",
    "ccc": "CCC-mini (70 %)", "cyclic": "cyclic, two cycles", "cyclic_group": "cyclic by group",
    "cycle_length": "cycle length", "lifelong": "lifelong, ten cycles", "stochastic": "Markov chain",
}  # fmt: skip
NAMES = {"slomo_fast": "SloMo-Fast"}
OURS = ("slomo_fast_star", "")
BATCH = "200"
HEAD = "| error %, {} | images per domain | SloMo-Fast\\* | {} | {} |\n" + "|---" * 5 + "|\n"
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % quantile of t by the number of pairs
SAME = {"slow_lr=0.001": ""}  # options that have become the default since
COLUMNS = (
    "network", "setting", "images_per_domain", "batch_size", "method", "options", "seeds", "error", "deviation",
    "worse_by", "interval95", "rows",
)  # fmt: skip

Line = dict[str, str]


def runs(file: str) -> dict[tuple[str, ...], dict[tuple[str, str], dict[int, float]]]:
    """Errors by (setting, images, batch), then (method, options), then seed. Former defaults of ours stay out."""
    found: dict[tuple[str, ...], dict[tuple[str, str], dict[int, float]]] = {}
    with (RESULTS / file).open(newline="") as rows:
        for row in csv.DictReader(rows):
            options = SAME.get(row.get("options", ""), row.get("options", ""))
            method = (row["method"], options)
            if method[0] == OURS[0] and method != OURS:
                continue
            cycles = f" x {row['cycles']}" if row.get("cycles") else ""
            place = (row.get("setting", "continual") + cycles, length(row), row["batch_size"])
            found.setdefault(place, {}).setdefault(method, {})[int(row["seed"])] = float(row["error"])
    return found


def length(row: Line) -> str:
    """Images per domain, or in all where a stream has no such number."""
    total = re.search(r"images=(\d+)", row.get("setting_options", ""))
    return row["images_per_domain"] or (f"{total[1]} in all" if total else "")


def half_width(differences: list[float]) -> str:
    """Half of the 95 % interval of the mean, empty where there are too few."""
    quantile = STUDENT.get(len(differences))
    deviation = spread(differences).std
    return "" if quantile is None or deviation is None else f"{quantile * deviation / math.sqrt(len(differences)):.2f}"


def lines() -> Iterator[Line]:
    """The table, each setting's methods from the best to the worst on the seeds they share with ours."""
    for file, network in FILES.items():
        for (setting, images, batch), methods in runs(file).items():
            ours = methods.get(OURS)
            if ours is None:  # nothing to compare with
                continue
            gaps = {name: [e - ours[seed] for seed, e in errors.items()] for name, errors in methods.items()}
            for name in sorted(methods, key=lambda name: (spread(gaps[name]).mean, name)):
                (method, options), found = name, spread(list(methods[name].values()))
                yield {
                    "network": network,
                    "setting": setting,
                    "images_per_domain": images,
                    "batch_size": batch,
                    "method": method,
                    "options": options,
                    "seeds": str(found.runs),
                    "error": f"{found.mean:.2f}",
                    "deviation": "" if found.std is None else f"{found.std:.2f}",
                    "worse_by": "" if name == OURS else f"{spread(gaps[name]).mean:+.2f}",
                    "interval95": "" if name == OURS else half_width(gaps[name]),
                    "rows": file,
                }


Streams = dict[tuple[str, int], dict[str, dict[int, float]]]


def streams() -> Streams:
    """Errors on the large network by (setting, images), then method, then seed; the longest stream first."""
    found: Streams = {}
    for file, network in FILES.items():
        if network == "wrn_28_10" and file != EVERY:
            for (setting, images, batch), methods in runs(file).items():
                if batch == BATCH and OURS in methods:
                    place = (setting.partition(" ")[0], int(images.partition(" ")[0]))
                    found[place] = {method: errors for (method, _), errors in methods.items()}
    order = list(SHORT)
    return dict(sorted(found.items(), key=lambda stream: (order.index(stream[0][0]), -stream[0][1])))


def above(methods: dict[str, dict[int, float]], method: str) -> list[float]:
    """How much higher a method's error is than ours, for every seed both ran with."""
    ours = methods[OURS[0]]
    return [error - ours[seed] for seed, error in sorted(methods[method].items()) if seed in ours]


Longest = dict[str, tuple[int, str, dict[str, dict[int, float]]]]


def longest(seeds: int = 3) -> Longest:
    """Of each setting the longest stream that so many seeds of ours and others ran on.

    Its images, the method closest to ours or furthest ahead, and all errors.
    """
    found: Longest = {}
    for (setting, images), methods in streams().items():
        others = [method for method in methods if method != OURS[0]]
        if others and len(methods[OURS[0]]) >= seeds and setting not in found:
            found[setting] = (images, min(others, key=lambda m: spread(above(methods, m)).mean), methods)
    return found


def longer() -> Longest:
    """The streams of one seed that are longer than those of three."""
    shorter = longest()
    return {setting: found for setting, found in longest(seeds=1).items() if found[0] > shorter[setting][0]}


def compared(setting: str, images: int, methods: dict[str, dict[int, float]], method: str, name: str = "") -> str:
    """One line: both methods' errors by seed, the lower in bold, and the paired difference with its interval."""
    gaps = above(methods, method)
    gap = spread(gaps).mean
    ours, theirs = (" ".join(f"{e:.2f}" for _, e in sorted(methods[m].items())) for m in (OURS[0], method))
    cells = (f"**{ours}**", name + theirs) if gap > 0 else (ours, f"{name}**{theirs}**")
    width = half_width(gaps)
    between = f"{gap:.2f} ± {width}" if width else f"{gap:.2f} (seed 0)"
    seen = f"{images:,}" + (" in all" if setting == "ccc" else "")
    return f"| {LABELS.get(setting, setting)} | {seen} | {cells[0]} | {cells[1]} | {between.replace('-', '−')} |\n"


def beside_the_closest(streams: Longest, seeds: str) -> str:
    """Each setting's stream beside the closest other method, as Markdown."""
    text = HEAD.format(seeds, "the closest other", "is above by")
    for setting, (images, method, methods) in streams.items():
        text += compared(setting, images, methods, method, f"{NAMES.get(method, method.upper())} ")
    return text


def longest_table() -> str:
    """Of each setting the longest stream of three seeds."""
    return beside_the_closest(longest(), "seeds 0, 1, 2")


def mean_and_deviation(errors: dict[int, float]) -> str:
    """How the README writes the errors of some seeds."""
    found = spread(list(errors.values()))
    return f"{found.mean:.2f}" + ("" if found.std is None else f" ± {found.std:.2f}")


def readme_table() -> str:
    """Of each setting the longest stream of three seeds: means, deviations, the paired difference and its interval."""
    text = "| error % | images per domain | SloMo-Fast\\* | the closest other | is above by |\n" + "|---" * 5 + "|\n"
    for setting, (images, method, methods) in longest().items():
        gaps = above(methods, method)
        gap, width = spread(gaps).mean, half_width(gaps)
        ours, theirs = (mean_and_deviation(methods[name]) for name in (OURS[0], method))
        theirs += "" if width else " (one seed)"
        between = f"{gap:+.2f}" + (f" ± {width}" if width else "")
        cells = (f"**{ours}**", theirs) if gap > 0 else (ours, f"**{theirs}**")
        seen = f"{images:,}" + (" in all" if setting == "ccc" else "")
        name = NAMES.get(method, method.upper())
        line = f"| {LABELS.get(setting, setting)} | {seen} | {cells[0]} | {name} {cells[1]} | {between} |\n"
        text += line.replace("-0", "−0")
    return text


def longer_table() -> str:
    """What one seed ran on beyond that."""
    return beside_the_closest(longer(), "seed 0")


def beside(method: str) -> str:
    """Every stream that three seeds of a method ran on, as Markdown."""
    name = NAMES.get(method, method.upper())
    text = HEAD.format("seeds 0, 1, 2", name, f"{name} is above by")
    for (setting, images), methods in streams().items():
        if len(methods.get(method, {})) == 3:
            text += compared(setting, images, methods, method)
    return text


def short_streams() -> dict[str, dict[str, float]]:
    """Error by method and setting where every method ran in every setting, the best method first."""
    errors: dict[str, dict[str, float]] = {}
    for (setting, *_), methods in runs(EVERY).items():
        if OURS in methods:  # others ran on streams of another length
            for (method, _), by_seed in methods.items():
                errors.setdefault(method, {})[setting] = by_seed[0]
    return dict(sorted(errors.items(), key=lambda found: above_ours(errors, found[0])))


def above_ours(errors: dict[str, dict[str, float]], method: str) -> float:
    """How much higher a method's error is than ours, on average over the settings it ran in."""
    return spread([error - errors[OURS[0]][setting] for setting, error in errors[method].items()]).mean


def every_method() -> str:
    """Every method (a line, the best first) in every setting as Markdown, each column's lowest error in bold."""
    errors = short_streams()
    best = {setting: min(found.get(setting, math.inf) for found in errors.values()) for setting in SHORT}
    text = "| error % | " + " | ".join(SHORT.values()) + " | above ours |\n" + "|---" * (len(SHORT) + 2) + "|\n"
    for method, found in errors.items():
        cells = []
        for setting in SHORT:
            mark = "**" if found.get(setting) == best[setting] else ""
            cells.append(f"{mark}{found[setting]:.1f}{mark}" if setting in found else "")
        gap = "" if method == OURS[0] else f"{above_ours(errors, method):+.1f}"
        text += f"| {method} | " + " | ".join(cells) + f" | {gap} |\n"
    return text


def written(table: Iterable[Line]) -> str:
    """The table as it stands in the file."""
    return "".join(",".join(cells) + "\n" for cells in (COLUMNS, *([line[c] for c in COLUMNS] for line in table)))


def main() -> None:
    table, shown = list(lines()), COLUMNS[:-1]
    (RESULTS / "accuracy.csv").write_text(written(table))
    print("| " + " | ".join(shown) + " |\n" + "|---" * len(shown) + "|")
    for line in table:
        print("| " + " | ".join(line[column] for column in shown) + " |")
    for part in (longest_table(), longer_table(), beside("rmt"), every_method(), readme_table()):
        print("\n" + part)


if __name__ == "__main__":
    main()
