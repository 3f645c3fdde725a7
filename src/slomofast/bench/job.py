"""A job is everything that decides a result; equal jobs have equal ids, however they were written down.

`Job` is what a user asks for. `resolve` completes it: options left out take the method's defaults for the data's
family, names are checked, weights and data are replaced by fingerprints of their contents. The id is a hash of the
completed form, so writing out a default or moving a file changes nothing, and changing an option always does.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slomofast.core.errors import ConfigError, unknown_name

METRICS = ("error", "adaptation", "forgetting", "recovery", "calibration", "cost")
DEFAULT_METRICS = ("error", "calibration", "cost")
PRECISIONS = ("fp32", "bf16")
HELD_OUT = 0.1  # share of each domain kept out of the stream when forgetting is measured
HELD_OUT_IMAGES = 100  # as many are kept out, if there are, of streams too short for that share to mean much
_ID_LENGTH = 16


@dataclass(frozen=True)
class Job:
    """One run: a method on a stream. Options are those the user gave, not the defaults.

    `images_per_domain=None` takes every image. `weights` may name several files (parts of one state dict). `source`
    names the data set whose clean images methods with `needs_source` learn from before the stream; by default the
    training letters for glyphs, and otherwise the stream's own images without their distortions.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    setting: str = "continual"
    setting_options: Mapping[str, Any] = field(default_factory=dict)
    data: str = "glyphs"
    data_options: Mapping[str, Any] = field(default_factory=dict)
    model: str = "glyphs"
    weights: tuple[str, ...] = ()
    model_options: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    seed: int = 0
    batch_size: int = 200
    images_per_domain: int | None = None
    severity: float = 5.0
    domains: tuple[str, ...] | None = None
    precision: str = "fp32"
    metrics: tuple[str, ...] = DEFAULT_METRICS
    compile: bool = False
    graphs: bool = False
    channels_last: bool = False

    def __post_init__(self) -> None:
        as_tuple = {"weights", "metrics"} | ({"domains"} if self.domains is not None else set())
        for name in as_tuple:
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(map(str, value)))
        for name in ("seed", "batch_size", "images_per_domain"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise ConfigError(f"{name} must be a whole number, got {value!r}")
        object.__setattr__(self, "severity", float(self.severity))
        if self.batch_size < 1:
            raise ConfigError(f"batch_size is {self.batch_size}; it must be at least 1")
        if self.images_per_domain is not None and self.images_per_domain < 1:
            raise ConfigError(
                f"images_per_domain is {self.images_per_domain}; give at least 1, or leave it out for all"
            )
        if not 0 <= self.severity <= 5:
            raise ConfigError(f"severity is {self.severity:g}; it lies between 0 and 5")
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        if self.metrics == ("all",):
            object.__setattr__(self, "metrics", METRICS)
        for metric in self.metrics:
            if metric not in METRICS:
                raise unknown_name("metric", metric, METRICS)
        # The error rate is what a record is for; the order in which metrics were named means nothing.
        object.__setattr__(self, "metrics", tuple(m for m in METRICS if m in (*self.metrics, "error")))

    @property
    def title(self) -> str:
        """A few words for progress displays."""
        options = "".join(f" {k}={v}" for k, v in self.options.items())
        return f"{self.method}{options} · {self.setting} · {self.data} · seed {self.seed}"

    def to_dict(self) -> dict[str, Any]:
        """Plain types, ready for JSON; `Job.from_dict` is the inverse."""
        return json.loads(canonical(dataclasses.asdict(self)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Job:
        """The job `to_dict` described; an unknown key is an error that names the nearest known one."""
        known = {f.name for f in dataclasses.fields(cls)}
        for name in values:
            if name not in known:
                raise unknown_name("job field", name, known)
        return cls(**values)


@dataclass(frozen=True)
class Resolved:
    """A job with nothing left open, and its id."""

    job: Job
    id: str
    options: dict[str, Any]
    setting: dict[str, Any]
    data: dict[str, Any]
    model: dict[str, Any]
    fingerprints: dict[str, str]

    @property
    def held_out(self) -> float:
        """Share of each domain's images that the stream leaves out, for measuring forgetting on them.

        A tenth of the data; for shortened streams less, since looking at the sample would take longer than the stream.
        """
        if "forgetting" not in self.job.metrics:
            return 0.0
        size = self.data["size"]
        enough = max(HELD_OUT_IMAGES, HELD_OUT * (self.job.images_per_domain or size))
        return min(HELD_OUT, enough / size)

    def describe(self) -> dict[str, Any]:
        """The `job` part of a record."""
        rest = {k: v for k, v in self.job.to_dict().items() if k not in _REPLACED}
        return {
            "method": self.job.method,
            "options": self.options,
            "overrides": plain(self.job.options),
            "setting": self.setting,
            "data": self.data,
            "model": self.model,
            **rest,
            "held_out": self.held_out,
        }


# Fields of a job that its completed form says in another way.
_REPLACED = {
    "method",
    "options",
    "setting",
    "setting_options",
    "data",
    "data_options",
    "model",
    "weights",
    "model_options",
}


def canonical(value: Any) -> str:
    """JSON in one spelling: keys sorted, no spaces, floats that are whole numbers kept as floats.

    >>> canonical({"b": (1, 2), "a": 1.0})
    '{"a":1.0,"b":[1,2]}'
    """
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def plain(value: Any) -> Any:
    """`value` made of plain JSON types: mappings, lists, strings, numbers, None; what is not finite becomes None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None
    if hasattr(value, "tolist"):  # numpy arrays and scalars, tensors
        return plain(value.tolist())
    if isinstance(value, Sequence | set | frozenset):
        return [plain(v) for v in (sorted(value) if isinstance(value, set | frozenset) else value)]
    return str(value)


def digest(value: Any) -> str:
    """A short hash of anything `canonical` can write."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:_ID_LENGTH]


def unresolved_id(job: Job) -> str:
    """The id under which a job that cannot even be completed is recorded as failed."""
    return "open-" + digest(job.to_dict())
