"""CIFAR-10-C and CIFAR-100-C as published: one array per corruption, mapped into memory, never read whole."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slomofast.core.errors import ConfigError, DataError, unknown_name
from slomofast.data._draws import stable_hash
from slomofast.data.catalog import DataSet
from slomofast.data.corrupted import check_index, choose_domains, family_of, groups_of
from slomofast.data.pack import check_labels

SEVERITIES = (1, 2, 3, 4, 5)


def stored_severity(severity: float, name: str) -> int:
    """A severity as the integer a stored set has, or a ConfigError that says what would work."""
    if severity not in SEVERITIES:
        raise ConfigError(
            f"{name} is stored at the severities 1 to 5, not {severity:g}; fractions and 0 need clean images "
            "corrupted on the fly (a pack or a folder)"
        )
    return int(severity)


def no_folder(root: Path, name: str, layout: str) -> DataError:
    """The error for a data set whose folder is not there: how to fetch it into that folder, or what it must hold."""
    from slomofast.data.download import DOWNLOADS

    if name in DOWNLOADS:
        remedy = f"`slomofast data get {name} --folder {shlex.quote(str(root))}` downloads it there"
    else:
        remedy = f"{name} cannot be downloaded, name a folder that holds {layout}"
    return DataError(f"no folder {root}; {remedy}")


class CifarC(DataSet):
    """CIFAR-10-C or CIFAR-100-C in the official layout.

    `<path>/<corruption>.npy` is uint8 (5 * size, 32, 32, 3), severity-major, and `<path>/labels.npy` has as many
    labels. Files are memory-mapped.

    Args:
        path: folder with the arrays.
        name: of the data set, `cifar10_c` or `cifar100_c`.
        classes: 10 or 100.
        size: images per severity, 10,000 in the published sets.
        domains: corruptions, default the fifteen; `all` for the nineteen.
        device: where loaded images go.
    """

    ordered = False

    def __init__(
        self,
        path: str | Path,
        name: str = "cifar10_c",
        classes: int = 10,
        size: int = 10_000,
        domains: Sequence[str] | str | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        root = Path(path)
        if not root.is_dir():
            raise no_folder(root, name, "labels.npy and <corruption>.npy")
        self.name, self.classes, self.image_size, self.size = name, classes, 32, size
        self.family = family_of(self.image_size, classes)
        self.domains = choose_domains(domains)
        self.groups = groups_of(self.domains)
        self.device = torch.device(device or "cpu")
        missing = [f"{f}.npy" for f in ("labels", *self.domains) if not (root / f"{f}.npy").exists()]
        if missing:
            raise DataError(f"{root} lacks {', '.join(missing)}; `slomofast data check` lists every file")
        self._arrays = {d: open_rows(root / f"{d}.npy", 5 * size, (32, 32, 3)) for d in self.domains}
        labels = np.asarray(open_rows(root / "labels.npy", 5 * size, ())).astype(np.int64)
        check_labels(labels, classes, root / "labels.npy")
        first = labels[:size]
        if not (labels.reshape(5, size) == first).all():
            raise DataError(f"{root / 'labels.npy'}: the five severities disagree about the labels")
        self._labels = first
        # Reading gigabytes to hash them is out of proportion; a few rows of each file tell versions apart.
        probe = [stable_hash(a[:: max(1, len(a) // 8)].tobytes()) for a in self._arrays.values()]
        self.fingerprint = stable_hash(name, size, self.domains, first.tobytes(), tuple(probe))

    def labels(self, domain: str = "") -> np.ndarray:
        return self._labels

    def load(self, domain: str, severity: float, index: np.ndarray) -> Tensor:
        if domain not in self._arrays:
            raise unknown_name("domain", domain, self.domains)
        start = (stored_severity(severity, self.name) - 1) * self.size
        rows = self._arrays[domain][start + check_index(index, self.size)]
        return torch.from_numpy(np.ascontiguousarray(rows.transpose(0, 3, 1, 2))).to(self.device)


def open_rows(path: Path, rows: int, shape: tuple[int, ...]) -> np.ndarray:
    """An .npy file mapped into memory, checked for its number of rows, shape and type."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} is not a readable .npy file ({error})") from error
    if array.shape != (rows, *shape):
        wanted = " x ".join(map(str, (rows, *shape)))
        raise DataError(
            f"{path} has shape {' x '.join(map(str, array.shape)) or 'scalar'}, expected {wanted} (five severities of "
            f"{rows // 5} rows)"
        )
    if not np.issubdtype(array.dtype, np.integer) or (shape and array.dtype != np.uint8):
        raise DataError(f"{path} holds {array.dtype}, expected {'uint8' if shape else 'integers'}")
    return array
