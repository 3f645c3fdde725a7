"""What is missing or damaged in a data set on disk, file by file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slomofast.core.errors import ConfigError, DataError, unknown_name
from slomofast.corruptions import CANONICAL, EXTRA
from slomofast.data.ccc import CccShards, index_shard
from slomofast.data.cifar import SEVERITIES, open_rows
from slomofast.data.folder import class_folders
from slomofast.data.images import EXTENSIONS, decode
from slomofast.data.open import list_data
from slomofast.data.pack import Pack, check_labels

Progress = Callable[[int, int], None]
_CLASSES = {"cifar10_c": 10, "cifar100_c": 100, "imagenet_c": 1000, "tinyimagenet_c": 200}
_CLASSES |= {"imagenet_r": 200, "imagenet_sketch": 1000}
_IMAGES = {"imagenet_r": 30_000, "imagenet_sketch": 50_889}


@dataclass(frozen=True)
class Finding:
    """One problem: the file or folder, and what is wrong with it."""

    path: str
    problem: str


def check_data(
    spec: str, size: int = 10_000, classes: int | None = None, images: bool = True, progress: Progress | None = None
) -> list[Finding]:
    """Everything wrong with a data set on disk; an empty list means it is complete and readable.

    Args:
        spec: `<kind>:<path>` as for `open_data`.
        size: images per severity that the array layouts must have.
        classes: number of class folders, or of label values, to insist on; by default that of the published set.
        images: also decode every image (slow for large sets); otherwise only names, counts and headers are looked at.
    """
    kind, _, where = spec.partition(":")
    known = [info.name for info in list_data()]
    if kind not in known:
        raise unknown_name("data set", kind, known)
    if kind == "glyphs":
        return []
    if not where:
        raise ConfigError(f"say where the data lies: {kind}:<path>")
    root = Path(where).expanduser()
    if not root.exists():
        return [Finding(str(root), "missing")]
    count = classes or _CLASSES.get(kind)
    if kind in ("cifar10_c", "cifar100_c"):
        return list(_arrays(root, size, count or 10))
    if kind in ("imagenet_c", "tinyimagenet_c"):
        return list(_corruption_folders(root, count, images, progress))
    if kind in ("folder", "imagenet_r", "imagenet_sketch"):
        return list(_class_tree(root, count, None if classes else _IMAGES.get(kind), images, progress))
    if kind == "ccc":
        return list(_shards(root, count or 1000, images, progress))
    return list(_pack(root, images))


def _arrays(root: Path, size: int, classes: int) -> Iterator[Finding]:
    for name in (*CANONICAL, *EXTRA, "labels"):
        path = root / f"{name}.npy"
        if not path.exists():
            if name not in EXTRA:  # the four validation corruptions are optional
                yield Finding(str(path), "missing")
            continue
        try:
            rows = open_rows(path, 5 * size, () if name == "labels" else (32, 32, 3))
            if name == "labels":
                check_labels(np.asarray(rows).astype(np.int64), classes, path)
        except DataError as error:
            yield Finding(str(path), str(error).removeprefix(f"{path} ").removeprefix(f"{path}: "))


def _corruption_folders(root: Path, classes: int | None, images: bool, progress: Progress | None) -> Iterator[Finding]:
    # What most (corruption, severity) folders hold is the standard; a single damaged one must not become it.
    trees: dict[Path, set[str]] = {}
    for domain in (*CANONICAL, *EXTRA):
        if domain in EXTRA and not (root / domain).is_dir():
            continue
        for severity in SEVERITIES:
            where = root / domain / str(severity)
            if where.is_dir():
                trees[where] = _relative_images(where)
            else:
                yield Finding(str(where), "missing")
    if not trees:
        return
    counts: dict[str, int] = {}
    for tree in trees.values():
        for path in tree:
            counts[path] = counts.get(path, 0) + 1
    standard = {path for path, n in counts.items() if 2 * n > len(trees)}
    names = {path.split("/")[0] for path in standard}
    if classes is not None and len(names) != classes:
        yield Finding(str(root), f"{len(names)} classes where {classes} are expected")
    for where, tree in trees.items():
        for path in sorted(standard - tree):
            yield Finding(str(where / path), "missing")
        for path in sorted(tree - standard):
            yield Finding(str(where / path), "not part of the set")
    if images:
        every = [where / path for where, tree in trees.items() for path in sorted(tree)]
        yield from _decode_all(every, progress)


def _class_tree(
    root: Path, classes: int | None, total: int | None, images: bool, progress: Progress | None
) -> Iterator[Finding]:
    try:
        names = class_folders(root)
    except DataError as error:
        yield Finding(str(root), str(error))
        return
    if classes is not None and len(names) != classes:
        yield Finding(str(root), f"{len(names)} class folders where {classes} are expected")
    files = sorted(_relative_images(root))
    if total is not None and len(files) != total:
        yield Finding(str(root), f"{len(files):,} images where {total:,} are expected")
    filled = {path.split("/")[0] for path in files}
    for name in names:
        if name not in filled:
            yield Finding(str(root / name), "no images")
    if images:
        yield from _decode_all([root / path for path in files], progress)


def _relative_images(root: Path) -> set[str]:
    return {
        f"{folder.name}/{file.name}"
        for folder in os.scandir(root)
        if folder.is_dir() and not folder.name.startswith(".")
        for file in os.scandir(folder.path)
        if os.path.splitext(file.name)[1].lower() in EXTENSIONS and not file.name.startswith(".")
    }


def _decode_all(files: list[Path], progress: Progress | None) -> Iterator[Finding]:
    def problem(path: Path) -> str | None:
        try:
            decode(path)
        except DataError as error:
            return str(error).removeprefix(f"{path} is ")
        return None

    with ThreadPoolExecutor(max_workers=min(16, max(2, os.cpu_count() or 2))) as pool:
        for i, (path, found) in enumerate(zip(files, pool.map(problem, files), strict=True)):
            if found is not None:
                yield Finding(str(path), found)
            if progress is not None:
                progress(i + 1, len(files))


def _shards(root: Path, classes: int, images: bool, progress: Progress | None) -> Iterator[Finding]:
    shards = sorted(root.glob("*.tar"))
    if not shards:
        yield Finding(str(root), "no .tar shards")
    good = True
    for shard in shards:
        try:
            check_labels(index_shard(shard)[2], classes, shard)
        except DataError as error:
            good = False
            yield Finding(str(shard), str(error))
    if images and shards and good:
        stream = CccShards(root, classes=classes)
        for i in range(stream.size):
            try:
                stream.load("ccc", 5, np.array([i]))
            except DataError as error:
                yield Finding(str(root), str(error))
            if progress is not None:
                progress(i + 1, stream.size)


def _pack(path: Path, images: bool) -> Iterator[Finding]:
    try:
        pack = Pack(path)
    except DataError as error:
        yield Finding(str(path), str(error))
        return
    for i in range(pack.size if images else 0):
        try:
            pack.read(np.array([i]))
        except DataError as error:
            yield Finding(str(path), str(error))
