"""Writing corrupted data sets in their official layouts, from clean images."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from slomofast.core.errors import ConfigError, DataError
from slomofast.data.cifar import SEVERITIES
from slomofast.data.corrupted import CorruptedImages
from slomofast.data.images import encode_jpeg

Progress = Callable[[str, int, int], None]
"""Called with (what is being written, images so far, images in all)."""


def make_arrays(data: CorruptedImages, folder: str | Path, progress: Progress | None = None, chunk: int = 1000) -> Path:
    """Write `data` in the CIFAR-C layout: one severity-major .npy per corruption, and labels.npy.

    A corruption's file appears only when it is complete. An interrupted run continues at the row where it stopped,
    and ends in the same bytes.
    """
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    _claim(root, "arrays", data)
    rows = 5 * data.size
    shape = (rows, data.image_size, data.image_size, 3)
    labels = root / "labels.npy"
    if not labels.exists():
        part = root / ".labels.part.npy"
        np.save(part, np.tile(data.labels(""), 5))
        os.replace(part, labels)
    for domain in data.domains:
        path = root / f"{domain}.npy"
        if path.exists():
            if progress is not None:
                progress(domain, rows, rows)
            continue
        part, note = root / f".{domain}.part.npy", root / f".{domain}.part.json"
        done = json.loads(note.read_text())["rows"] if part.exists() and note.exists() else 0
        array = np.lib.format.open_memmap(part, "r+" if done else "w+", np.uint8, shape)
        while done < rows:
            severity, start = SEVERITIES[done // data.size], done % data.size
            index = np.arange(start, min(start + chunk, data.size))
            images = data.load(domain, severity, index).cpu().numpy()
            array[done : done + len(index)] = images.transpose(0, 2, 3, 1)
            # The rows must be on disk before the note says so.
            array.flush()
            done += len(index)
            _write(note, json.dumps({"rows": done}).encode())
            if progress is not None:
                progress(domain, done, rows)
        del array
        os.replace(part, path)
        note.unlink(missing_ok=True)
    return root


def make_folders(
    data: CorruptedImages,
    folder: str | Path,
    progress: Progress | None = None,
    severities: Sequence[int] = SEVERITIES,
    quality: int = 85,
    chunk: int = 64,
) -> Path:
    """Write `data` in the ImageNet-C layout: `<corruption>/<severity>/<class>/<image>.JPEG`.

    Files that exist are left alone, so an interrupted run continues; each file appears complete or not at all.
    """
    names = getattr(data, "class_names", None) or [f"{c:04d}" for c in range(data.classes)]
    if not set(severities) <= set(SEVERITIES) or not severities:
        raise ConfigError(f"severities are among 1 to 5, got {list(severities)}")
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    _claim(root, "folders", data)
    labels = data.labels("")
    known = getattr(data, "paths", None)
    stems = [Path(p).stem for p in known] if known else [f"{i:08d}" for i in range(data.size)]
    total = data.size * len(severities)
    for domain in data.domains:
        written = 0
        for severity in severities:
            where = root / domain / str(severity)
            for name in names:
                (where / name).mkdir(parents=True, exist_ok=True)
            places = [where / names[labels[i]] / f"{stems[i]}.JPEG" for i in range(data.size)]
            missing = np.array([i for i, place in enumerate(places) if not place.exists()], np.int64)
            written += data.size - len(missing)
            for start in range(0, len(missing), chunk):
                index = missing[start : start + chunk]
                images = data.load(domain, severity, index).permute(0, 2, 3, 1).cpu().numpy()
                for i, image in zip(index, images, strict=True):
                    _write(places[i], encode_jpeg(image, quality))
                written += len(index)
                if progress is not None:
                    progress(domain, written, total)
        if progress is not None:
            progress(domain, total, total)
    return root


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    os.replace(part, path)


def _claim(root: Path, layout: str, data: CorruptedImages) -> None:
    """Note in the folder what it is made from, and refuse to mix two sources in one folder."""
    note = root / "slomofast.json"
    said = {"layout": layout, "clean": data.clean_fingerprint, "size": data.size, "seed": data.seed}
    if note.exists():
        try:
            found = json.loads(note.read_text())
        except ValueError as error:
            raise DataError(f"{note} is damaged; delete the folder or choose another") from error
        if found != said:
            raise DataError(f"{root} was begun from other images or options ({found}); choose another folder")
    else:
        _write(note, json.dumps(said).encode())
