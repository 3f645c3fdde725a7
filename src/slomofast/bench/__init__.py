"""Jobs, records and sweeps: run methods over streams, survive interruptions, keep one record per job."""

from slomofast.bench.evaluate import evaluate
from slomofast.bench.executors import InProcess, Processes
from slomofast.bench.job import Job, Resolved
from slomofast.bench.parts import resolve
from slomofast.bench.run import Progress, RunOptions, run_job
from slomofast.bench.store import DamagedRecord, Store, comparable
from slomofast.bench.sweep import (
    Plan,
    Summary,
    Sweep,
    list_presets,
    load_preset,
    load_sweep,
    make_plan,
    parse_sweep,
    preset_text,
    run_sweep,
)

__all__ = [
    "DamagedRecord",
    "InProcess",
    "Job",
    "Plan",
    "Processes",
    "Progress",
    "Resolved",
    "RunOptions",
    "Store",
    "Summary",
    "Sweep",
    "comparable",
    "evaluate",
    "list_presets",
    "load_preset",
    "load_sweep",
    "make_plan",
    "parse_sweep",
    "preset_text",
    "resolve",
    "run_job",
    "run_sweep",
]
