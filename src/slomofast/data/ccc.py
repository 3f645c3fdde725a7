"""CCC streams as they are published: tar shards of (image, label) pairs in a fixed order."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slomofast.core.errors import DataError, unknown_name
from slomofast.data._draws import stable_hash
from slomofast.data.catalog import DataSet
from slomofast.data.corrupted import check_index, family_of
from slomofast.data.home import data_home
from slomofast.data.images import decode, decode_many
from slomofast.data.pack import check_labels, take

DOMAIN = "ccc"
_PICTURES = ("jpg", "jpeg", "png")


def index_shard(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where the images of a tar shard lie: byte offsets, lengths and labels, in the order of the shard.

    A shard has members `<key>.input.jpg` and `<key>.output.cls` (the label as text); what stands between the key and
    the last dot is free, and other members are passed over. The index is remembered under the data home because
    finding it means walking through the whole file.
    """
    stamp = path.stat()
    key = stable_hash(str(path.resolve()), stamp.st_size, stamp.st_mtime_ns)
    remembered = data_home() / "indices" / f"{key}.npz"
    if remembered.exists():
        try:
            with np.load(remembered) as kept:
                return kept["offsets"], kept["lengths"], kept["labels"]
        except (OSError, ValueError, KeyError):
            remembered.unlink(missing_ok=True)
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if not member.isfile():
                    continue
                folder, _, file = member.name.rpartition("/")
                stem, _, rest = file.partition(".")  # a key ends at its first dot
                sample, kind = f"{folder}/{stem}".lstrip("/"), rest.rpartition(".")[2]
                if kind in _PICTURES:
                    images[sample] = (member.offset_data, member.size)
                elif kind == "cls":
                    content = archive.extractfile(member)
                    labels[sample] = int(content.read().decode().strip()) if content is not None else -1
    except (tarfile.TarError, OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is not a readable shard ({error}); fetch it again") from error
    if not images:
        raise DataError(f"{path} holds no images; expected members <key>.input.jpg and <key>.output.cls")
    lonely = [k for k in images if k not in labels] + [k for k in labels if k not in images]
    if lonely:
        raise DataError(f"{path}: {lonely[0]} has an image or a label but not both ({len(lonely)} such keys)")
    end = max(offset + length for offset, length in images.values())
    if end > stamp.st_size:
        raise DataError(f"{path} is cut short: {stamp.st_size} bytes, its index needs {end}")
    offsets = np.array([images[k][0] for k in images], np.int64)
    lengths = np.array([images[k][1] for k in images], np.int64)
    targets = np.array([labels[k] for k in images], np.int64)
    try:
        remembered.parent.mkdir(parents=True, exist_ok=True)
        part = remembered.with_name(f".{key}.{os.getpid()}.npz")
        np.savez(part, offsets=offsets, lengths=lengths, labels=targets)
        part.replace(remembered)
    except OSError:
        pass  # a read-only home costs time, nothing else
    return offsets, lengths, targets


class CccShards(DataSet):
    """One CCC stream, published or made: a folder of tar shards, read in their own order (`ordered` is True).

    The stream is one domain, `ccc`; its severities are part of the pictures, so `severity` is not looked at.

    Args:
        path: folder with the stream's .tar files.
        size: use the first `size` images.
        classes: number of classes of the labels.
        device: where loaded images go.
    """

    ordered = True

    def __init__(
        self,
        path: str | Path,
        size: int | None = None,
        classes: int = 1000,
        device: torch.device | str | None = None,
    ) -> None:
        root = Path(path)
        shards = sorted(root.glob("*.tar")) if root.is_dir() else []
        if not shards:
            raise DataError(f"{root} holds no .tar shards of a CCC stream")
        indexed = [index_shard(s) for s in shards]
        self._shards = shards
        self._shard = np.concatenate([np.full(len(o), i) for i, (o, _, _) in enumerate(indexed)])
        self._offset = np.concatenate([o for o, _, _ in indexed])
        self._length = np.concatenate([n for _, n, _ in indexed])
        labels = np.concatenate([t for _, _, t in indexed])
        check_labels(labels, classes, root)
        self.name, self.classes = "ccc", classes
        self.domains, self.groups = (DOMAIN,), {DOMAIN: (DOMAIN,)}
        self.size = take(size, len(labels), root)
        self._labels = labels[: self.size]
        self.device = torch.device(device or "cpu")
        height, width = decode(self._bytes(0), name=f"the first image of {shards[0]}").shape[:2]
        if height != width:
            raise DataError(f"{shards[0]}: images must be square, the first is {width}x{height}")
        self.image_size, self.family = height, family_of(height, classes)
        names = tuple((s.name, s.stat().st_size) for s in shards)
        self.fingerprint = stable_hash("ccc", root.name, names, self.size)

    def _bytes(self, i: int) -> bytes:
        with self._shards[self._shard[i]].open("rb") as shard:
            shard.seek(int(self._offset[i]))
            return shard.read(int(self._length[i]))

    def labels(self, domain: str = "") -> np.ndarray:
        return self._labels

    def load(self, domain: str, severity: float, index: np.ndarray) -> Tensor:
        if domain not in self.domains:
            raise unknown_name("domain", domain, self.domains)
        index = check_index(index, self.size)
        names = [f"image {i} of the stream in {self._shards[self._shard[i]]}" for i in index]
        return decode_many([self._bytes(i) for i in index], self.image_size, names=names).to(self.device)
