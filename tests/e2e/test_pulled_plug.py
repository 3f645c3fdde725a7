"""A sweep whose driver is killed, workers and all, ends in the same store when it is typed again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from slomofast.bench import Store, comparable
from slomofast.report import build_report

SWEEP = """
title = "plug"
[defaults]
model = "wrn_10_1"
batch_size = 10
images_per_domain = 50
data = "small"
[data.small]
spec = "glyphs"
data_options = { size = 60, domains = "gaussian_noise,fog" }
[[grid]]
methods = ["tent", "slomo_fast"]
settings = ["cyclic"]
"""


def command(file: Path, out: Path, *more: str) -> list[str]:
    words = [sys.executable, "-m", "slomofast.cli", "sweep", str(file), "--out", str(out), "--device", "cpu"]
    return [*words, "--threads", "1", "--checkpoint-every", "2", *more]


def contents(folder: Path) -> dict:
    return {record["id"]: comparable(record) for record in Store(folder)}


def test_killing_the_driver_of_two_workers(tmp_path: Path) -> None:
    file = tmp_path / "plug.toml"
    file.write_text(SWEEP)
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    subprocess.run(command(file, calm), check=True, capture_output=True, timeout=100)
    driver = subprocess.Popen(command(file, killed, "--workers", "2"), start_new_session=True)
    deadline = time.monotonic() + 60
    while not list(killed.glob(".checkpoints/*.pt")) and time.monotonic() < deadline and driver.poll() is None:
        time.sleep(0.01)
    assert list(killed.glob(".checkpoints/*.pt")), "nothing was under way: the test tested nothing"
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    while _group_alive(driver.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _group_alive(driver.pid), "workers outlived their driver"
    assert not [row for row in Store(killed).rows().values() if row.status == "failed"]
    done = subprocess.run(command(file, killed), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert contents(killed) == contents(calm)
    assert report_without_times(killed) == report_without_times(calm)


def report_without_times(folder: Path) -> dict[str, bytes]:
    """Every file of the report made from these records, after what depends on the clock was set to one value."""
    timeless = folder.with_name(f"timeless-{folder.name}") / "runs"
    timeless.mkdir(parents=True)
    for record in Store(folder):
        plain = {**comparable(record), "started": "2000-01-01T00:00:00+00:00", "seconds": 1.0, "environment": {}}
        plain["curve"]["seconds"] = [None] * len(plain["curve"]["position"])
        (timeless / f"{record['id']}.json").write_text(json.dumps(plain))
    out = build_report(timeless, timeless.parent / "report", title="plug").parent
    files = {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    assert "index.html" in files and len(files) > 3
    return files


def _group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
