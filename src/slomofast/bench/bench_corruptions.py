"""How fast the corruptions are, and how close they come to the published data.

Both benchmarks return plain rows; the command line prints them and `write_rows` stores them as CSV together with
the command, commit and device they came from.
"""

from __future__ import annotations

import csv
import importlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slomofast.core.errors import ConfigError, DataError
from slomofast.corruptions import CANONICAL, corrupt, describe_corruption


@dataclass(frozen=True)
class SpeedRow:
    """Time of one corruption.

    Attributes:
        corruption: its name.
        images: images that were corrupted.
        seconds: for all of them, tables and textures already made.
        cpu_seconds: processor time of the same work, which does not grow when others use the machine.
        images_per_second: of this library.
        other_images_per_second: of the package `imagecorruptions`, one image at a time; None when not compared.
        note: why there is no comparison, if one was asked for.
    """

    corruption: str
    images: int
    seconds: float
    cpu_seconds: float
    images_per_second: float
    other_images_per_second: float | None = None
    note: str = ""


@dataclass(frozen=True)
class FidelityRow:
    """Errors (percent) of a source network on one corruption of ours, beside a reference.

    `bn_error` is the error with the statistics of each batch in the normalisation layers.
    """

    corruption: str
    severity: float
    images: int
    error: float
    reference: float | None
    difference: float | None
    bn_error: float | None = None


def sample_images(count: int, size: int, seed: int = 0) -> Tensor:
    """Images with the smooth areas, edges and texture of photographs; uint8, shape (count, 3, size, size)."""
    generator = torch.Generator().manual_seed(seed)
    distinct = min(count, 512)
    total = torch.zeros(distinct, 3, size, size)
    for cells, weight in ((3, 0.5), (max(4, size // 6), 0.3), (max(5, size // 2), 0.12)):
        coarse = torch.rand(distinct, 3, cells, cells, generator=generator)
        mode = "bilinear" if cells == 3 else "bicubic"
        total += weight * nn.functional.interpolate(coarse, size=(size, size), mode=mode)
    distinct_images = total.clamp(0, 1).mul(255).to(torch.uint8)
    return distinct_images.repeat(-(-count // distinct), 1, 1, 1)[:count].contiguous()


def run_corruption_benchmark(
    size: int = 32,
    images: int = 10_000,
    device: str = "cpu",
    threads: int | None = 1,
    severity: float = 5,
    names: Sequence[str] = CANONICAL,
    compare: bool = False,
) -> Iterator[SpeedRow]:
    """Time every corruption in turn, yielding a row as soon as it is known.

    A first small call makes tables and textures; it is not timed. `compare` times the package
    `imagecorruptions` on fewer images in the same run.
    """
    if images < 1:
        raise ConfigError(f"images must be at least 1, got {images}")
    for name in names:
        describe_corruption(name)
    where = torch.device(device)
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        batch = sample_images(images, size).to(where)
        other = _other_package() if compare else None
        for name in names:
            corrupt(batch[: min(images, 64)], name, severity)
            seconds, cpu_seconds = _timed(partial(corrupt, batch, name, severity), where)
            rate, note = (None, "") if other is None else _time_other(other, batch, name, severity)
            yield SpeedRow(name, images, seconds, cpu_seconds, images / seconds, rate, note)
    finally:
        torch.set_num_threads(before)


def _timed(work: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Wall-clock and processor seconds of one call."""
    if device.type == "cuda":
        work()  # kernels are loaded on first use
        torch.cuda.synchronize(device)
    start, cpu_start = time.perf_counter(), time.process_time()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start, time.process_time() - cpu_start


def _other_package() -> Callable[..., np.ndarray] | str:
    """The other package's function, or the reason why there is none."""
    try:
        other: Callable[..., np.ndarray] = importlib.import_module("imagecorruptions").corrupt
    except Exception as error:  # it breaks in many ways under current numpy and scikit-image
        return f"imagecorruptions cannot be imported: {type(error).__name__}: {error}"
    return other


def _time_other(
    other: Callable[..., np.ndarray] | str, batch: Tensor, name: str, severity: float, budget: float = 5.0
) -> tuple[float | None, str]:
    """Images per second of the other package, measured for at most `budget` seconds; or None and why."""
    if isinstance(other, str):
        return None, other
    pictures = batch[:200].permute(0, 2, 3, 1).contiguous().cpu().numpy()
    level = max(1, round(severity))
    try:
        other(pictures[0], corruption_name=name, severity=level)  # compiles on first use
        start, done = time.perf_counter(), 0
        for picture in pictures:
            other(picture, corruption_name=name, severity=level)
            done += 1
            if time.perf_counter() - start > budget:
                break
        return done / (time.perf_counter() - start), ""
    except Exception as error:
        return None, f"imagecorruptions fails: {type(error).__name__}: {error}"


def run_fidelity(
    pack: str | Path,
    model: nn.Module,
    reference: Sequence[float] | None = None,
    device: str = "cpu",
    severity: float = 5,
    images: int | None = None,
    batch_size: int = 200,
    batch_statistics: bool = False,
    names: Sequence[str] = CANONICAL,
    seed: int = 0,
) -> Iterator[FidelityRow]:
    """Errors of a source network on a pack corrupted by this library, one row per corruption.

    Args:
        pack: .npz of clean JPEG images.
        model: classifier in eval mode that takes images in [0, 1].
        reference: errors to compare with, in the order of `names`.
        images: use the first ones only.
        batch_statistics: also measure with each batch's own normalisation statistics.
    """
    from slomofast.data import open_data

    if reference is not None and len(reference) != len(names):
        raise ConfigError(f"{len(reference)} reference errors for {len(names)} corruptions; give one each")
    data = open_data(f"pack:{pack}", size=images, seed=seed)
    index = np.arange(data.size)
    labels = torch.from_numpy(data.labels(data.domains[0])).to(device)
    clean = data.load(names[0], 0, index).to(device)
    model = model.to(device).eval()
    for i, name in enumerate(names):
        changed = corrupt(clean, name, severity, seed=seed)
        error = _error(model, changed, labels, batch_size)
        bn_error = None
        if batch_statistics:
            with _BatchStatistics(model):
                bn_error = _error(model, changed, labels, batch_size)
        wanted = None if reference is None else float(reference[i])
        yield FidelityRow(
            name, severity, data.size, error, wanted, None if wanted is None else error - wanted, bn_error
        )


@torch.inference_mode()
def _error(model: nn.Module, images: Tensor, labels: Tensor, batch_size: int) -> float:
    wrong = torch.zeros((), dtype=torch.int64, device=labels.device)
    for start in range(0, len(images), batch_size):
        part = slice(start, start + batch_size)
        wrong += (model(images[part].float().div_(255)).argmax(1) != labels[part]).sum()
    return 100 * int(wrong) / len(images)


class _BatchStatistics:
    """Inside the block, BatchNorm layers use the batch's statistics; their running ones stay untouched."""

    def __init__(self, model: nn.Module) -> None:
        self.layers = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]

    def __enter__(self) -> None:
        self.momenta = [layer.momentum for layer in self.layers]
        for layer in self.layers:
            layer.momentum = 0.0
            layer.train()

    def __exit__(self, *_: object) -> None:
        for layer, momentum in zip(self.layers, self.momenta, strict=True):
            layer.momentum = momentum
            layer.eval()


def read_reference(text: str) -> list[float]:
    """Errors from a list ("30.7 27.7 ...", commas allowed) or from a .json or .csv file of numbers."""
    path = Path(text)
    if path.suffix in (".json", ".csv"):
        if not path.is_file():
            raise DataError(f"no reference file {path}")
        content = path.read_text()
        if path.suffix == ".json":
            try:
                found = json.loads(content)
            except json.JSONDecodeError as error:
                raise DataError(f"{path} is not JSON: {error}") from None
            text = " ".join(str(value) for value in (found.values() if isinstance(found, dict) else found))
        else:
            text = content
    try:
        return [float(word) for word in text.replace(",", " ").split()]
    except ValueError as error:
        raise ConfigError(f"a reference is a list of numbers: {error}") from None


def write_rows(rows: Sequence[SpeedRow | FidelityRow], path: str | Path, command: str, device: str) -> None:
    """Store rows as CSV with the command, commit, versions and device they came from."""
    from slomofast.bench.outcome import environment

    found = environment(torch.device(device))
    origin: dict[str, Any] = {"command": command, **{key: found.get(key) for key in ("commit", "device", "torch")}}
    origin["threads"] = torch.get_num_threads() if found.get("threads") is None else found["threads"]
    records = [asdict(row) | origin for row in rows]
    if not records:
        raise ConfigError("there are no rows to write")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]))
        writer.writeheader()
        writer.writerows(records)
