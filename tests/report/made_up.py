"""Made-up records that follow the stored format exactly: plausible curves, no network, no images.

`python tests/report/made_up.py FOLDER --records 20000` fills a store, for measuring how the report copes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

GROUPS: dict[str, list[str]] = {
    "noise": ["gaussian_noise", "shot_noise", "impulse_noise"],
    "blur": ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur"],
    "weather": ["snow", "frost", "fog"],
    "digital": ["brightness", "contrast"],
    "distortion": ["elastic_transform", "pixelate", "jpeg_compression"],
}
DOMAINS = [d for names in GROUPS.values() for d in names]
HARDNESS = dict(zip(DOMAINS, [70, 65, 72, 46, 54, 35, 42, 25, 41, 26, 9, 46, 27, 58, 30], strict=True))

# method -> (share of the source error left at once, share left after adapting, drift in points per 100 batches,
#            share of an earlier visit's progress that survives until the next, milliseconds per batch)
METHODS: dict[str, tuple[float, float, float, float, float]] = {
    "source": (1.0, 1.0, 0.0, 1.0, 8.0),
    "bn": (0.50, 0.50, 0.0, 1.0, 9.0),
    "tent": (0.50, 0.46, 1.2, 0.1, 21.0),
    "cotta": (0.49, 0.40, 0.1, 0.3, 320.0),
    "rotta": (0.52, 0.43, 0.1, 0.3, 60.0),
    "rmt": (0.48, 0.41, 0.1, 0.4, 90.0),
    "roid": (0.47, 0.39, 0.0, 0.2, 45.0),
    "slomo_fast": (0.46, 0.37, 0.0, 0.8, 52.0),
    "slomo_fast_star": (0.46, 0.35, 0.0, 0.9, 71.0),
}
DATA: dict[str, dict[str, Any]] = {
    "cifar10_c": {"model": "wrn28_10", "scale": 1.0, "classes": 10, "family": "cifar"},
    "cifar100_c": {"model": "resnext29", "scale": 1.15, "classes": 100, "family": "cifar"},
    "imagenet_c": {"model": "resnet50", "scale": 1.45, "classes": 1000, "family": "imagenet"},
    "glyphs": {"model": "glyphs", "scale": 0.8, "classes": 10, "family": "cifar"},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "continual": {"name": "continual"},
    "mixed": {"name": "mixed"},
    "gradual": {"name": "gradual", "severities": [1, 2, 3, 4, 5, 4, 3, 2, 1]},
    "episodic": {"name": "episodic"},
    "mixed_after_continual": {"name": "mixed_after_continual"},
    "cyclic": {"name": "cyclic", "cycles": 2},
    "lifelong": {"name": "lifelong", "cycles": 10},
    "stochastic": {"name": "stochastic", "visits": 30},
    "ccc": {"name": "ccc", "level": "easy"},
}


def plan(setting: dict[str, Any], rng: np.random.Generator) -> list[tuple[int, float, int]]:
    """The stream as (domain or -1 for mixed, severity, cycle) in order."""
    name, straight = setting["name"], [(d, 5.0, 0) for d in range(len(DOMAINS))]
    if name == "mixed":
        return [(-1, 5.0, 0)] * len(DOMAINS)
    if name == "mixed_after_continual":
        return straight + [(-1, 5.0, 0)] * len(DOMAINS)
    if name == "gradual":
        return [(d, float(s), 0) for d in range(len(DOMAINS)) for s in setting["severities"]]
    if name in ("cyclic", "lifelong"):
        return [(d, 5.0, c) for c in range(setting["cycles"]) for d in range(len(DOMAINS))]
    if name == "stochastic":
        return [(int(d), 5.0, 0) for d in rng.integers(0, len(DOMAINS), setting["visits"])]
    return straight


def make_record(
    method: str = "tent",
    setting: str | dict[str, Any] = "continual",
    data: str = "cifar10_c",
    model: str | None = None,
    seed: int = 0,
    *,
    batches: int = 10,
    batch_size: int = 100,
    overrides: dict[str, Any] | None = None,
    forgetting: bool = False,
    prototypes: str | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A finished record; `prototypes` is None, "points" or "features"; `changes` replace top-level entries."""
    fields = dict(SETTINGS[setting]) if isinstance(setting, str) else dict(setting)
    facts, overrides = DATA[data], overrides or {}
    model = model or facts["model"]
    start, end, drift, keeps, cost = METHODS[method]
    key = json.dumps([method, fields, data, model, seed, batches, batch_size, overrides], sort_keys=True)
    identity = hashlib.sha256(key.encode()).hexdigest()[:16]
    rng = np.random.default_rng(int(identity[:8], 16))
    order = plan(fields, np.random.default_rng(seed))

    curve: dict[str, Any] = {
        name: [] for name in ("position", "segment", "cycle", "visit", "domain", "severity", "count", "wrong", "nll")
    }
    curve |= {"seconds": [], "entropy": [], "by_domain": []}
    segments, progress, visit = [], dict.fromkeys(range(-1, len(DOMAINS)), 0.0), -1
    per_segment = max(1, batches // 3) if fields["name"] == "gradual" else batches
    for number, (domain, severity, cycle) in enumerate(order):
        visit += number == 0 or (domain, cycle) != (order[number - 1][0], order[number - 1][2])
        name = "mixed" if domain < 0 else DOMAINS[domain]
        segments.append(
            {
                "name": name if severity == 5.0 else f"{name}@{severity:g}",
                "domain": None if domain < 0 else name,
                "severity": severity,
                "cycle": cycle,
                "visit": visit,
                "start": len(curve["position"]),
                "steps": per_segment,
            }
        )
        learnt = progress[domain] * keeps if fields["name"] != "episodic" else 0.0
        for _ in range(per_segment):
            learnt = learnt + (1 - learnt) * 0.25
            position = len(curve["position"])
            members = [domain] if domain >= 0 else sorted(int(d) for d in rng.integers(0, len(DOMAINS), 4))
            counts = [batch_size // len(members)] * len(members)
            wrong = []
            for member, count in zip(members, counts, strict=True):
                base = min(97.0, HARDNESS[DOMAINS[member]] * facts["scale"]) * severity / 5.0
                rate = base * (start + (end - start) * learnt) + drift * position / 100 + (12 if domain < 0 else 0)
                wrong.append(int(rng.binomial(count, min(0.99, max(0.01, rate / 100)))))
            curve["position"].append(position)
            curve["segment"].append(number)
            curve["cycle"].append(cycle)
            curve["visit"].append(visit)
            curve["domain"].append(domain)
            curve["severity"].append(severity)
            curve["count"].append(sum(counts))
            curve["wrong"].append(sum(wrong))
            curve["nll"].append(round(0.03 * sum(wrong) + float(rng.random()), 6))
            curve["seconds"].append(round(cost / 1000 * (0.9 + 0.2 * float(rng.random())), 6))
            curve["entropy"].append(round(0.3 + float(rng.random()) / 5, 5))
            rows = [[m, c, w] for m, c, w in zip(members, counts, wrong, strict=True)]
            curve["by_domain"].append(rows if domain < 0 else None)
        progress[domain] = learnt
    cycles = max(c for _, _, c in order) + 1
    curve |= {name: [[10] * 15] * cycles for name in ("bins_count", "bins_confidence", "bins_correct")}
    curve |= {"bins_cycles": list(range(cycles)), "domains": DOMAINS, "groups": GROUPS}
    curve |= {"rule": "samples" if fields["name"] == "ccc" else "segments", "peak_bytes": None}

    record: dict[str, Any] = {
        "format": 1,
        "id": identity,
        "status": "done",
        "reason": None,
        "job": {
            "method": method,
            "options": {"lr": 0.001, "momentum": 0.9, **overrides},
            "overrides": overrides,
            "setting": fields,
            "data": {"spec": data, "name": data, "family": facts["family"], "classes": facts["classes"], "size": 10000},
            "model": {"name": model, "weights": [], "parameters": 36_500_000},
            "source": None,
            "seed": seed,
            "batch_size": batch_size,
            "images_per_domain": batches * batch_size,
            "severity": 5.0,
            "precision": "fp32",
            "metrics": ["error", "calibration", "cost"],
            "compile": False,
            "graphs": False,
            "channels_last": False,
        },
        "environment": {"slomofast": "0.1.0", "torch": "2.8", "device": "cpu", "threads": 1, "commit": "0" * 7},
        "fingerprints": {"stream": f"s{seed}", "model": model, "data": data},
        "started": "2025-01-01T00:00:00+00:00",
        "seconds": round(sum(curve["seconds"]), 3),
        "curve": curve,
        "segments": segments,
        "metrics": {},
        "diagnostics": {"entropy": curve["entropy"]},
        "skipped_steps": 0,
        "warnings": [],
        "prototypes": None,
    }
    record["metrics"] = metrics(record, cost)
    if forgetting:
        record["metrics"]["forgetting"] = held_out(order, keeps, rng)
    if prototypes:
        record["prototypes"] = clusters(prototypes, np.random.default_rng(seed))
    return record | changes


def metrics(record: dict[str, Any], cost: float) -> dict[str, Any]:
    """The figures a run stores beside its curve."""
    curve = record["curve"]
    totals: dict[int, list[int]] = {}
    pieces: dict[int, dict[int, list[int]]] = {}
    for segment, domain, count, wrong, parts in zip(
        *(curve[name] for name in ("segment", "domain", "count", "wrong", "by_domain")), strict=True
    ):
        for d, c, w in parts or [[domain, count, wrong]]:
            for sums in (totals.setdefault(d, [0, 0]), pieces.setdefault(segment, {}).setdefault(d, [0, 0])):
                sums[0] += c
                sums[1] += w
    by_domain = {DOMAINS[d]: 100 * w / c for d, (c, w) in sorted(totals.items())}
    score = float(np.mean([np.mean([100 * w / c for c, w in piece.values()]) for piece in pieces.values()]))
    return {
        "error": {"mean": score, "by_domain": by_domain},
        "calibration": {"ece": 5.0 + len(record["job"]["method"]) / 10, "nll": 0.8},
        "cost": {
            "milliseconds_median": cost,
            "milliseconds_p95": cost * 1.2,
            "images_per_second": 1000 * record["job"]["batch_size"] / cost,
            "peak_device_bytes": None,
            "peak_host_bytes": int(4e8 + cost * 1e6),
            "trainable_percent": 0.0 if record["job"]["method"] in ("source", "bn") else 4.9,
            "forward_multiple": cost / 8.0,
        },
    }


def held_out(order: list[tuple[int, float, int]], keeps: float, rng: np.random.Generator) -> dict[str, Any]:
    """Accuracy on every domain's held-out sample after each visit: rows are visits, columns domains seen so far."""
    rows: list[list[float | None]] = []
    for visit, (now, _, _) in enumerate(order):
        seen = {d for d, _, _ in order[: visit + 1]}
        rows.append(
            [
                round(
                    80 - HARDNESS[DOMAINS[d]] / 3 - (0 if d == now else 8 * (1 - keeps)) + float(rng.normal(0, 0.4)), 3
                )
                if d in seen
                else None
                for d in range(len(DOMAINS))
            ]
        )
    cycles = sorted({c for _, _, c in order})
    figures = {
        "final": 8 * (1 - keeps),
        "mean": 8 * (1 - keeps),
        "by_cycle": [8 * (1 - keeps) + c / 10 for c in cycles],
    }
    members = {"student": {**figures, "matrix": rows}, "slow": {**figures, "matrix": rows[:1] * len(rows)}}
    places = {"domains": DOMAINS, "visits": [DOMAINS[d] for d, _, _ in order]}
    return {**figures, "matrix": rows, **places, "members": members if keeps > 0.5 else {}}


def clusters(kind: str, rng: np.random.Generator) -> dict[str, Any]:
    """Class prototypes as a method might leave them behind."""
    width = 2 if kind == "points" else 24
    centres = rng.normal(0, 4, (10, width))
    rows = np.repeat(centres, 6, axis=0) + rng.normal(0, 0.6, (60, width))
    return {kind: rows.round(4).tolist(), "labels": np.repeat(np.arange(10), 6).tolist()}


def encode(record: dict[str, Any]) -> bytes:
    """The bytes of a record file: one top-level entry a line, the checksum of all that on the last."""
    body = ("{" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in record.items())).encode()
    return body + b',\n"checksum": "' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'


def write_store(folder: Path, records: Iterable[dict[str, Any]]) -> Path:
    """Write records the way a sweep does."""
    folder.mkdir(parents=True, exist_ok=True)
    for record in records:
        (folder / f"{record['id']}.json").write_bytes(encode(record))
    return folder


def showcase() -> Iterator[dict[str, Any]]:
    """A store that fills every part of the report."""
    few = ("source", "bn", "tent", "cotta", "roid", "slomo_fast", "slomo_fast_star")
    for method, setting, data, seed in product(
        few, ("continual", "mixed", "gradual", "cyclic", "mixed_after_continual"), ("cifar10_c", "cifar100_c"), range(3)
    ):
        returns = setting == "cyclic"
        shown = "features" if setting == "continual" and method.startswith("slomo") and seed == 0 else None
        yield make_record(method, setting, data, seed=seed, batches=12, forgetting=returns, prototypes=shown)
    for method, seed in product(few[:6], range(2)):
        yield make_record(method, "lifelong", "cifar10_c", seed=seed, batches=6)
        yield make_record(method, "stochastic", "cifar10_c", seed=seed, batches=8)
        for model in ("resnet50", "swin_b", "vit_b_16"):
            yield make_record(method, "continual", "imagenet_c", model, seed, batches=6)
        for level in ("easy", "medium", "hard"):
            yield make_record(method, {"name": "ccc", "level": level}, "imagenet_c", seed=seed, batches=6)
    yield make_record("tent", seed=7) | {"status": "failed", "reason": "out of memory", "curve": None, "metrics": {}}


def small() -> Iterator[dict[str, Any]]:
    """A store with a little of everything that is quick to build: two settings with returns, one without."""
    for method, setting, seed in product(
        ("source", "tent", "roid", "slomo_fast"), ("continual", "cyclic", "mixed"), (0, 1)
    ):
        mapped = "features" if (setting, method, seed) == ("cyclic", "slomo_fast", 0) else None
        yield make_record(method, setting, seed=seed, batches=6, forgetting=setting == "cyclic", prototypes=mapped)
    for method in ("source", "tent"):
        yield make_record(method, "continual", "glyphs", batches=4)
    yield make_record("tent", overrides={"lr": 0.01}, batches=6)


def many(count: int, batches: int = 5) -> Iterator[dict[str, Any]]:
    """`count` records over methods, settings, data, options and seeds; few distinct curves, so that writing is fast."""
    settings = (
        "continual",
        "mixed",
        "gradual",
        "episodic",
        "cyclic",
        "mixed_after_continual",
        "stochastic",
        "lifelong",
    )
    seeds = max(1, -(-count // (len(METHODS) * len(settings) * len(DATA) * 5)))
    made = 0
    for method, setting, data in product(METHODS, settings, DATA):
        template = make_record(method, setting, data, batches=batches)
        for rate, seed in product((None, 0.03, 0.01, 0.003, 0.0003), range(seeds)):
            if made == count:
                return
            overrides = {} if rate is None else {"lr": rate}
            options = template["job"]["options"] | overrides
            job = template["job"] | {"seed": seed, "options": options, "overrides": overrides}
            identity = hashlib.sha256(f"{template['id']}{rate}{seed}".encode()).hexdigest()[:16]
            error = template["metrics"]["error"]
            shifted = template["metrics"] | {"error": error | {"mean": error["mean"] + 0.05 * seed}}
            yield template | {"id": identity, "job": job, "metrics": shifted}
            made += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fill a store with made-up records.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--records", type=int, default=0, help="0: one showcase of everything the report can show")
    parser.add_argument("--batches", type=int, default=5, help="batches per domain visit")
    arguments = parser.parse_args()
    chosen = many(arguments.records, arguments.batches) if arguments.records else showcase()
    write_store(arguments.folder, chosen)
