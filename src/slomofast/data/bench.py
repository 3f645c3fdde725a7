"""How much of a run is spent waiting for images: decoding ahead in threads against a network's forward pass."""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slomofast.data.folder import Folder
from slomofast.data.images import encode_jpeg


@dataclass(frozen=True)
class LoadReport:
    """A measurement: images, seconds in all, seconds waiting for data, decoding rate alone (images per second)."""

    images: int
    seconds: float
    waiting: float
    decode_rate: float

    @property
    def share(self) -> float:
        """Percent of the time spent waiting."""
        return 100 * self.waiting / self.seconds if self.seconds else 0.0


def write_sample(folder: Path, count: int, side: int = 224, classes: int = 4, seed: int = 0) -> Path:
    """A folder of JPEG pictures with plausible detail, `count` in all, spread over class folders."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        where = folder / f"class{i % classes}"
        where.mkdir(parents=True, exist_ok=True)
        coarse = rng.random((8, 8, 3)).repeat(side // 8 + 1, 0).repeat(side // 8 + 1, 1)[:side, :side]
        picture = np.clip(255 * (0.8 * coarse + 0.2 * rng.random((side, side, 3))), 0, 255).astype(np.uint8)
        (where / f"{i:05d}.JPEG").write_bytes(encode_jpeg(picture, 85))
    return folder


def _ahead(read: Callable[[np.ndarray], Tensor], order: Iterable[np.ndarray], depth: int = 2) -> Iterator[Tensor]:
    """What `read` makes of each entry of `order`, up to `depth` of them before they are asked for."""
    waiting: deque[Future[Tensor]] = deque()
    with ThreadPoolExecutor(1) as pool:
        for index in order:
            waiting.append(pool.submit(read, index))
            if len(waiting) > depth:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def bench_loading(
    forward: Callable[[Tensor], Tensor], images: int = 256, batch_size: int = 32, side: int = 224
) -> LoadReport:
    """Write JPEGs to a temporary folder, then read them ahead of `forward` and measure the waiting.

    The wait for the very first batch counts too.
    """
    with tempfile.TemporaryDirectory(prefix="slomofast-bench-") as folder:
        data = Folder(write_sample(Path(folder), images, side), image_size=side)
        order = [np.arange(s, min(s + batch_size, images)) for s in range(0, images, batch_size)]
        started = time.perf_counter()
        for index in order:
            data.read(index)
        decode_rate = images / (time.perf_counter() - started)
        waiting, begin = 0.0, time.perf_counter()
        batches = _ahead(data.read, order)
        with torch.inference_mode():
            while True:
                asked = time.perf_counter()
                batch = next(batches, None)
                waiting += time.perf_counter() - asked
                if batch is None:
                    break
                forward(batch.float() / 255)
        return LoadReport(images, time.perf_counter() - begin, waiting, decode_rate)
