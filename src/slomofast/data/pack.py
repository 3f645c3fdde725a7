"""Packs: all JPEG files of a set in one .npz, and plain arrays of images."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slomofast.core.errors import ConfigError, DataError
from slomofast.core.files import written_whole
from slomofast.data.corrupted import CorruptedImages
from slomofast.data.images import decode, decode_many, encode_jpeg


class Pack(CorruptedImages):
    """Clean images from a pack, corrupted on the fly.

    A pack is an .npz with `data` (all JPEG files, one after the other, uint8), `offsets` (n + 1), `labels` (n) and
    `classes` (names). Image i is `data[offsets[i]:offsets[i + 1]]`.

    Args:
        path: the .npz file.
        size: use the first `size` images only.
        domains, seed, device: see `CorruptedImages`.
    """

    def __init__(
        self,
        path: str | Path,
        size: int | None = None,
        domains: Sequence[str] | str | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        path = Path(path)
        parts = _read_npz(path, ("data", "offsets", "labels", "classes"))
        self._bytes, self._offsets = parts["data"], parts["offsets"].astype(np.int64)
        labels = parts["labels"].astype(np.int64)
        if len(self._offsets) != len(labels) + 1:
            raise DataError(f"{path}: {len(labels)} labels need {len(labels) + 1} offsets, got {len(self._offsets)}")
        if not len(labels):
            raise DataError(f"{path} holds no images")
        if (np.diff(self._offsets) <= 0).any() or self._offsets[0] != 0 or self._offsets[-1] != len(self._bytes):
            raise DataError(f"{path}: offsets do not run from 0 to the {len(self._bytes)} bytes of data; damaged?")
        self.class_names = [str(c) for c in parts["classes"]]
        self.classes = len(self.class_names)
        check_labels(labels, self.classes, path)
        self.name = path.stem
        self.size = take(size, len(labels), path)
        self.label_array = labels[: self.size]
        self.image_size = _side(decode(self._one(0), name=f"image 0 of {path}"), path)
        digest = hashlib.sha256(self._bytes.tobytes())
        digest.update(labels.tobytes())
        self.clean_fingerprint = digest.hexdigest()[:16]
        self._path = path
        self.finish(domains, seed, device)

    def _one(self, i: int) -> bytes:
        return self._bytes[self._offsets[i] : self._offsets[i + 1]].tobytes()

    def read(self, index: np.ndarray) -> Tensor:
        names = [f"image {i} of {self._path}" for i in index]
        return decode_many([self._one(i) for i in index], self.image_size, names=names)


class Arrays(CorruptedImages):
    """Images and labels held in memory, corrupted on the fly.

    Args:
        images: uint8, shape (n, 3, S, S).
        labels: integers, shape (n,).
    """

    def __init__(
        self,
        images: Tensor | np.ndarray,
        labels: Tensor | np.ndarray,
        name: str = "arrays",
        classes: int | None = None,
        domains: Sequence[str] | str | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        self._images = torch.as_tensor(images)
        array = np.asarray(labels, dtype=np.int64)
        if self._images.dtype != torch.uint8 or self._images.ndim != 4 or self._images.shape[1] != 3:
            raise DataError(
                f"images are uint8 of shape (n, 3, S, S); got {self._images.dtype} {tuple(self._images.shape)}"
            )
        if array.shape != (len(self._images),) or not len(array):
            raise DataError(f"{len(self._images)} images need as many labels, got shape {array.shape}")
        self.name, self.size, self.label_array = name, len(array), array
        self.classes = int(classes or array.max() + 1)
        check_labels(array, self.classes, Path(name))
        self.image_size = _side(self._images[0].permute(1, 2, 0).numpy(), Path(name))
        digest = hashlib.sha256(self._images.numpy().tobytes())
        digest.update(array.tobytes())
        self.clean_fingerprint = digest.hexdigest()[:16]
        self.finish(domains, seed, device)

    def read(self, index: np.ndarray) -> Tensor:
        return self._images[torch.from_numpy(index)]


def write_pack(
    path: str | Path, images: np.ndarray, labels: np.ndarray, classes: Sequence[str], quality: int = 95
) -> Path:
    """Write a pack from images uint8 (n, S, S, 3), channels last, and as many labels."""
    images, labels = np.asarray(images), np.asarray(labels)
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8:
        raise DataError(f"images must be uint8 of shape (n, S, S, 3), channels last, got {images.dtype} {images.shape}")
    if labels.shape != (len(images),):
        raise DataError(f"there must be one label for each of {len(images)} images, got shape {labels.shape}")
    files = [encode_jpeg(image, quality) for image in images]
    offsets = np.concatenate([[0], np.cumsum([len(f) for f in files])]).astype(np.int64)
    data = np.frombuffer(b"".join(files), np.uint8)
    path = Path(path)
    with written_whole(path) as file:
        np.savez(file, data=data, offsets=offsets, labels=np.asarray(labels), classes=np.asarray(classes))
    return path


def _read_npz(path: Path, keys: Sequence[str]) -> dict[str, np.ndarray]:
    if not path.exists():
        raise DataError(f"no pack {path}")
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [k for k in keys if k not in archive.files]
            if missing:
                raise DataError(f"{path} is no pack: it lacks {', '.join(missing)} (found {archive.files})")
            return {k: archive[k] for k in keys}
    except DataError:
        raise
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:  # numpy meets an empty file with EOFError
        raise DataError(f"{path} is not a readable .npz file ({error})") from error


def check_labels(labels: np.ndarray, classes: int, path: Path) -> None:
    """Raise a DataError that names the first label outside [0, classes)."""
    bad = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(bad):
        raise DataError(
            f"{path}: label {labels[bad[0]]} of row {bad[0]} is outside 0..{classes - 1} ({len(bad)} such rows)"
        )


def take(size: int | None, available: int, path: Path) -> int:
    """How many images to use: all, or the first `size`, checked."""
    if size is None:
        return available
    if not 1 <= size <= available:
        raise ConfigError(f"size {size} is outside 1..{available}, the images of {path}")
    return int(size)


def _side(picture: np.ndarray, path: Path) -> int:
    height, width = picture.shape[:2]
    if height != width:
        raise DataError(f"{path}: images must be square, the first is {width}x{height}")
    return int(height)
