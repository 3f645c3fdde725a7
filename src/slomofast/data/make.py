"""Writing corrupted data sets in their official layouts, from clean images."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from slomofast.core.errors import ConfigError, DataError
from slomofast.data.cifar import SEVERITIES
from slomofast.data.corrupted import CorruptedImages
from slomofast.data.images import encode_jpeg, encode_many, encode_png

Progress = Callable[[str, int, int], None]
"""Called with (what is being written, images so far, images in all)."""

Notch = tuple[tuple[str, float], tuple[str, float], np.ndarray]
"""A stretch of a CCC stream: two corruptions with their severities, and the numbers of its images in order."""


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

    Files that exist are left alone, so an interrupted run continues; each file appears complete or not at all. Images
    that differ in their ending only, which is lost here, are refused.
    """
    names = getattr(data, "class_names", None) or [f"{c:04d}" for c in range(data.classes)]
    if not set(severities) <= set(SEVERITIES) or not severities:
        raise ConfigError(f"severities are among 1 to 5, got {list(severities)}")
    labels = data.labels("")
    known = getattr(data, "paths", None) or [f"{i:08d}" for i in range(data.size)]
    stems = [Path(p).stem for p in known]
    first: dict[tuple[int, str], int] = {}
    for i, stem in enumerate(stems):
        if (other := first.setdefault((int(labels[i]), stem), i)) != i:
            raise DataError(f"{known[other]} and {known[i]} would both become {stem}.JPEG; rename one of them")
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    _claim(root, "folders", data, quality=quality)
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


def make_shards(
    data: CorruptedImages,
    folder: str | Path,
    notches: Iterable[Notch],
    total: int,
    plan: str,
    progress: Progress | None = None,
    per_shard: int = 25_000,
    chunk: int = 250,
) -> Path:
    """Write a CCC stream in the published layout: `serial_<number>.tar` with an image, its label and a note each.

    A shard ends with the first whole notch at which it has `per_shard` images. Large images are stored as JPEG of the
    published quality; small ones, for which CCC has no rules, as PNG, so that their pixels stay what they are. A shard
    appears only when it is complete. An interrupted run continues at the piece where it stopped, and ends in the
    same bytes.

    Args:
        notches: the stream from its beginning, the same in every run.
        total: images in all notches, for the progress.
        plan: a fingerprint of `notches`; a folder takes one plan only.
        chunk: images made at a time.
    """
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    _claim(root, "ccc", data, plan=plan, per_shard=per_shard)
    done = 0
    for number, shard in enumerate(_by_shard(notches, per_shard)):
        path = root / f"serial_{number:05d}.tar"
        if not path.exists():
            for images in _write_shard(data, path, shard, chunk):
                if progress is not None:
                    progress("images", done + images, total)
        done += sum(len(index) for *_, index in shard)
        if progress is not None:
            progress("images", done, total)
    return root


def _by_shard(notches: Iterable[Notch], per_shard: int) -> Iterator[list[Notch]]:
    shard: list[Notch] = []
    for notch in notches:
        shard.append(notch)
        if sum(len(index) for *_, index in shard) >= per_shard:
            yield shard
            shard = []
    if shard:
        yield shard


def _write_shard(data: CorruptedImages, path: Path, shard: list[Notch], chunk: int) -> Iterator[int]:
    """Write one shard, yielding the images in it after every piece."""
    part, note = path.with_name(f".{path.name}.part"), path.with_name(f".{path.name}.json")
    said = json.loads(note.read_text()) if part.exists() and note.exists() else {"images": 0, "bytes": 0}
    with part.open("r+b" if said["images"] else "wb") as file:
        file.truncate(said["bytes"])
        file.seek(said["bytes"])
        passed = 0
        for first, second, index in shard:
            for start in range(0, len(index), chunk):
                piece = index[start : start + chunk]
                there = min(len(piece), max(0, said["images"] - passed))
                if there < len(piece):
                    _add_samples(file, data, first, second, piece[there:], passed + there)
                    # The images must be on disk before the note says so.
                    file.flush()
                    os.fsync(file.fileno())
                    _write(note, json.dumps({"images": passed + len(piece), "bytes": file.tell()}).encode())
                    yield passed + len(piece)
                passed += len(piece)
        file.write(bytes(-(file.tell() + 1024) % tarfile.RECORDSIZE + 1024))  # the end of a tar file
    os.replace(part, path)
    note.unlink(missing_ok=True)


def _add_samples(
    file: IO[bytes],
    data: CorruptedImages,
    first: tuple[str, float],
    second: tuple[str, float],
    index: np.ndarray,
    number: int,
) -> None:
    quality = data.pair_quality
    pixels = data.pair_pixels(first, second, index)
    if quality is None:
        kind, coded = "png", encode_many(pixels, encode_png)
    else:
        kind, coded = "jpg", encode_many(pixels, lambda picture: encode_jpeg(picture, quality, optimize=True))
    labels, names = data.labels(""), getattr(data, "class_names", None)
    paths = getattr(data, "paths", None)
    for i, content in zip(index, coded, strict=True):
        label = int(labels[i])
        origin = f"++dir++{names[label] if names else label}++name++{Path(paths[i]).name if paths else i}"
        info = f"{origin}++n1++{first[0]}++s1++{first[1]}++n2++{second[0]}++s2++{second[1]}"
        for ending, body in (("info", info.encode()), (f"input.{kind}", content), ("output.cls", str(label).encode())):
            member = tarfile.TarInfo(f"sample_{number}.{ending}")
            member.size, member.mode = len(body), 0o444
            file.write(member.tobuf(tarfile.USTAR_FORMAT) + body + bytes(-len(body) % tarfile.BLOCKSIZE))
        number += 1


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    os.replace(part, path)


def _claim(root: Path, layout: str, data: CorruptedImages, **more: Any) -> None:
    """Note in the folder what it is made from, and refuse to mix two sources in one folder.

    What an older note does not say is taken to be as it is now.
    """
    note = root / "slomofast.json"
    said = {"layout": layout, "clean": data.clean_fingerprint, "size": data.size, "seed": data.seed} | more
    try:
        found = json.loads(note.read_text()) if note.exists() else {}
    except ValueError as error:
        raise DataError(f"{note} is damaged; delete the folder or choose another") from error
    if said | found != said:
        raise DataError(f"{root} was begun from other images or options ({found}); choose another folder")
    if found != said:
        _write(note, json.dumps(said).encode())
