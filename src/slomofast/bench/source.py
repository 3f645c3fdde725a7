"""What a job needs of the source side, measured once and kept: errors by domain, statistics of clean images."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import slomofast
from slomofast.bench.job import Resolved, digest
from slomofast.bench.parts import source_data
from slomofast.core.errors import ConfigError, DataError
from slomofast.core.files import write_atomically, written_whole
from slomofast.core.fingerprint import fingerprint
from slomofast.data.catalog import DataSet
from slomofast.streams import measure_source_errors
from slomofast.streams.ccc import LazyMatrices, usual_step

Predict = Callable[[Tensor], Tensor]

SOURCE_ERROR_IMAGES = 1000  # per domain; orders domains reliably, at a fifteenth of a full pass


def source_errors(resolved: Resolved, data: DataSet, model: nn.Module, cache: Path) -> dict[str, float]:
    """The source network's error (percent) on each domain, from the cache or measured now.

    Orders that go from easy to hard use it. The images do not depend on the run's seed, so all seeds of a sweep
    share one order.
    """
    job = resolved.job
    images = min(SOURCE_ERROR_IMAGES, job.images_per_domain or SOURCE_ERROR_IMAGES)
    key = digest([_what_is_asked(resolved), job.severity, images])

    def measure() -> dict[str, float]:
        return measure_source_errors(_predictor(model), data, job.severity, images, job.batch_size)

    return _remembered_json(cache / f"source-errors-{key}.json", measure)


def _what_is_asked(resolved: Resolved) -> dict[str, str]:
    """Fingerprints of the network and the images that facts about them depend on."""
    return {name: resolved.fingerprints[name] for name in ("data", "model")}


def fit_source(adapter: Any, resolved: Resolved, data: DataSet, cache: Path, seconds: float | None = None) -> None:
    """Let a method take what it needs from clean source images, or put back what it took in an earlier job.

    With `seconds` it looks at as many batches as come in that time, and nothing is kept.
    """
    job = resolved.job
    source = source_data(job, adapter.device)
    if source is None:
        source = data
    if source is data or getattr(source, "clean_fingerprint", source) == getattr(data, "clean_fingerprint", data):
        warnings.warn(
            f"{job.method} took its source knowledge from the clean versions of the stream's own images; name training "
            "images with --source for a fair comparison",
            stacklevel=2,
        )
    if seconds is not None:
        adapter.fit_source(FirstBatches(clean_batches(source, job.batch_size, job.method), seconds))
        return
    identity = [
        slomofast.__version__,
        job.method,
        resolved.options,
        adapter.source_fingerprint,  # of the network as it adapts, which may have a part of the classes only
        source.fingerprint,
        *(job.seed, job.precision, job.batch_size, job.channels_last),
    ]
    path = cache / f"fit-{job.method}-{digest(identity)}.pt"
    if path.exists():
        try:
            kept = torch.load(path, map_location=adapter.device, weights_only=True)
            if kept["digest"] != fingerprint(kept["state"]):
                raise ValueError("the state does not match its digest")
            adapter.load_state_dict(kept["state"])
            adapter.start_here()  # a reset must come back to the fitted state
            return
        except Exception:  # cut short, damaged or of another version, which may raise anything: fit again
            adapter.reset()  # a part of it may have been loaded
    adapter.fit_source(clean_batches(source, job.batch_size, job.method))
    state = adapter.state_dict()
    with written_whole(path) as file:
        torch.save({"state": state, "digest": fingerprint(state)}, file)


class FirstBatches:
    """The batches that come within some seconds, one at least, and the same ones each time they are gone through."""

    def __init__(self, batches: Iterable[tuple[Tensor, Tensor]], seconds: float) -> None:
        self.batches, self.seconds = batches, seconds
        self.count: int | None = None

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        begun, taken = time.perf_counter(), 0
        for batch in self.batches:
            yield batch
            taken += 1
            if taken == self.count or (self.count is None and time.perf_counter() - begun >= self.seconds):
                break
        self.count = self.count or taken


def clean_batches(data: DataSet, batch_size: int, method: str) -> Iterable[tuple[Tensor, Tensor]]:
    """Batches of clean labelled images of a data set; an error that says what to do where it has none."""
    loader = getattr(data, "clean_loader", None)
    if loader is None:
        raise DataError(
            f"method {method!r} needs clean source images, and the data set {data.name!r} has none; name one that has "
            "with --source, for example pack:FILE or folder:PATH of training images"
        )
    return loader(batch_size=batch_size)


def _remembered_json(path: Path, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        value = measure()
        write_atomically(path, json.dumps(value).encode())
        return value


class KeptMatrices(LazyMatrices):
    """Accuracy matrices for `ccc` that are written to a file as soon as they are measured."""

    def __init__(self, predict: Predict, data: DataSet, batch_size: int, path: Path) -> None:
        self._path = path
        try:
            known = json.loads(path.read_text())
        except (OSError, ValueError):
            known = {}
        usual = round(5 / usual_step(data)) + 1
        known = {name: matrix for name, matrix in known.items() if len(matrix) in (1, usual)}  # not of another step
        super().__init__(predict, data, batch_size=batch_size, known=known)

    def __getitem__(self, name: str) -> np.ndarray:
        with self._kept(name):
            return super().__getitem__(name)

    def at_worst(self, name: str) -> float:
        with self._kept(name):
            return super().at_worst(name)

    @contextmanager
    def _kept(self, name: str) -> Iterator[None]:
        """Write down what is measured inside."""
        fresh = name not in self.known
        yield
        if fresh:
            write_atomically(self._path, json.dumps({k: v.tolist() for k, v in self.known.items()}).encode())


def requirements(
    resolved: Resolved, data: DataSet, model: nn.Module, cache: Path, needs: Iterable[str]
) -> dict[str, Any]:
    """Arguments for `Stream` that a setting asks for: facts about the source network, from the cache or measured."""
    found: dict[str, Any] = {}
    for name in needs:
        if name == "source_errors":
            found[name] = source_errors(resolved, data, model, cache)
        elif name == "matrices":
            path = cache / f"matrices-{digest(_what_is_asked(resolved))}.json"
            found[name] = KeptMatrices(_predictor(model), data, resolved.job.batch_size, path)
        else:
            raise ConfigError(f"setting {resolved.setting['name']!r} needs {name!r}, which a job cannot provide")
    return found


def _predictor(model: nn.Module) -> Predict:
    device = next(model.parameters()).device

    def predict(batch: Tensor) -> Tensor:
        output = model(batch.to(device))
        return getattr(output, "logits", output)

    return predict


def clean_sample(data: DataSet, count: int) -> tuple[Tensor, Tensor] | None:
    """Up to `count` clean images in [0, 1] and their labels; None for data sets that have no clean images."""
    clean = getattr(data, "clean", None)
    if clean is None:
        return None
    index = np.arange(min(count, data.size))
    labels = torch.from_numpy(np.asarray(data.labels(data.domains[0]))[index])
    return clean(index).float().cpu() / 255, labels
