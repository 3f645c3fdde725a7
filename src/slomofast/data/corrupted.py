"""Clean images corrupted on the fly: any corruption, any severity, any pair, on any device."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slomofast.core.errors import ConfigError, unknown_name
from slomofast.corruptions import CANONICAL, GROUPS, corrupt, list_corruptions
from slomofast.data._draws import stable_hash, uniform
from slomofast.data.catalog import LARGE, DataSet
from slomofast.data.images import through_jpeg

_KEEP_BYTES = {"cpu": 512 * 2**20, "cuda": 16 * 2**30}
CCC_QUALITY = 85  # JPEG quality of the published CCC images


def choose_domains(domains: Sequence[str] | str | None) -> tuple[str, ...]:
    """The corruptions asked for: all fifteen by default, `all` for the nineteen, else as named (checked)."""
    if domains is None:
        return tuple(CANONICAL)
    if domains == "all":
        return tuple(list_corruptions(extra=True))
    names = tuple(domains.split(",")) if isinstance(domains, str) else tuple(domains)
    for name in names:
        if name not in list_corruptions(extra=True):
            raise unknown_name("corruption", name, list_corruptions(extra=True))
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"domains must be different corruptions, at least one; got {list(names)}")
    return names


def groups_of(domains: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The canonical groups, cut to these domains; empty groups are left out."""
    cut = {group: tuple(d for d in members if d in domains) for group, members in GROUPS.items()}
    return {group: members for group, members in cut.items() if members}


def family_of(image_size: int, classes: int) -> str:
    """`cifar` up to 48 pixels, `cifar100` if they show a hundred classes, `imagenet` above."""
    if image_size > 48:
        return "imagenet"
    return "cifar100" if classes == 100 else "cifar"


def check_index(index: np.ndarray, size: int) -> np.ndarray:
    """Image numbers as a flat int64 array inside [0, size), or a ConfigError."""
    numbers = np.asarray(index)
    if numbers.ndim != 1 or not (np.issubdtype(numbers.dtype, np.integer) or not len(numbers)):
        raise ConfigError(f"image numbers are a flat integer array, got {numbers.dtype} {numbers.shape}")
    if len(numbers) and (numbers.min() < 0 or numbers.max() >= size):
        raise ConfigError(f"image numbers run from 0 to {size - 1}, got {numbers.min()} to {numbers.max()}")
    return numbers.astype(np.int64)


class CorruptedImages(DataSet):
    """Base of the sets that corrupt clean images themselves.

    A subclass sets `name`, `classes`, `image_size`, `size`, `clean_fingerprint`, `label_array` and writes
    `read(index)`, then calls `finish`. `flip` and `shift` say how `load_pair` varies an image.

    Args of `finish`:
        domains: corruptions, default the fifteen.
        seed: of the corruptions' randomness; image i gets the same noise in every run.
        device: where images are kept and corrupted.
    """

    ordered = False
    flip = True
    shift = 4
    clean_fingerprint: str
    label_array: np.ndarray

    def finish(self, domains: Sequence[str] | str | None, seed: int, device: torch.device | str | None) -> None:
        """Fill in what follows from the clean images."""
        self.domains = choose_domains(domains)
        self.groups = groups_of(self.domains)
        self.family = family_of(self.image_size, self.classes)
        self.seed = int(seed)
        self.device = torch.device(device or "cpu")
        self.fingerprint = stable_hash("corrupted", 1, self.clean_fingerprint, self.size, self.domains, self.seed)
        self._kept: Tensor | None = None

    @abstractmethod
    def read(self, index: np.ndarray) -> Tensor:
        """Clean images on the CPU: uint8 (n, 3, image_size, image_size)."""

    def labels(self, domain: str = "") -> np.ndarray:
        """Labels of every image, the same in every domain: int64, shape (size,)."""
        return self.label_array

    def clean(self, index: np.ndarray) -> Tensor:
        """Clean images on the set's device: uint8 (n, 3, image_size, image_size).

        A set that fits is decoded once and stays on the device.
        """
        index = check_index(index, self.size)
        if self._kept is None:
            total = self.size * 3 * self.image_size**2
            if total > _KEEP_BYTES.get(self.device.type, 0):
                return self.read(index).to(self.device, non_blocking=True)
            self._kept = self.read(np.arange(self.size)).to(self.device)
        return self._kept[torch.from_numpy(index).to(self.device)]

    def load(self, domain: str, severity: float, index: np.ndarray) -> Tensor:
        if domain not in self.domains:
            raise unknown_name("domain", domain, self.domains)
        return self._corrupt(self.clean(index), domain, severity, index, self.seed)

    def _corrupt(self, images: Tensor, name: str, severity: float, index: np.ndarray, seed: int) -> Tensor:
        return images if severity == 0 else corrupt(images, name, severity, seed=seed, index=index)

    def load_pair(
        self, first: tuple[str, float], second: tuple[str, float], index: np.ndarray, draw: int = 0
    ) -> Tensor:
        """Images under two corruptions, one after the other: uint8 (n, 3, image_size, image_size).

        Every image is varied first (flip and crop, drawn from the pair and the image's number), as in CCC. Large
        images end with a JPEG round trip. `draw` gives another variation of the same images.
        """
        images = self.pair_pixels(first, second, index, draw)
        return images if self.pair_quality is None else through_jpeg(images, self.pair_quality)

    def plain_pair(self, first: tuple[str, float], second: tuple[str, float], index: np.ndarray) -> Tensor:
        """Images under two corruptions, not varied and without a JPEG round trip: what CCC is calibrated on."""
        index = check_index(index, self.size)
        return self._corrupt_twice(self.clean(index), first, second, index, self.seed)

    @property
    def pair_quality(self) -> int | None:
        """JPEG quality that `load_pair` ends with: that of CCC for large images, None for small ones."""
        return CCC_QUALITY if self.image_size >= LARGE else None

    def pair_pixels(
        self, first: tuple[str, float], second: tuple[str, float], index: np.ndarray, draw: int = 0
    ) -> Tensor:
        """What `load_pair` gives, before its JPEG round trip."""
        index = check_index(index, self.size)
        seed = int(stable_hash(self.seed, *first, *second, draw), 16) % 2**31
        return self._corrupt_twice(self.varied(index, seed), first, second, index, seed)

    def _corrupt_twice(
        self, images: Tensor, first: tuple[str, float], second: tuple[str, float], index: np.ndarray, seed: int
    ) -> Tensor:
        for name, severity in (first, second):
            if name not in list_corruptions(extra=True):
                raise unknown_name("corruption", name, list_corruptions(extra=True))
            images = self._corrupt(images, name, severity, index, seed)
        return images

    def varied(self, index: np.ndarray, seed: int) -> Tensor:
        """Clean images, mirrored half of the time (where `flip`) and moved by up to `shift` pixels."""
        return shifted(self.clean(index), uniform(f"view {seed}", index, 3), self.shift, self.flip)

    def clean_loader(self, batch_size: int = 200, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of clean images in [0, 1] with their labels, shuffled, on the set's device."""
        order = np.random.default_rng(seed).permutation(self.size)
        for start in range(0, self.size, batch_size):
            index = order[start : start + batch_size]
            target = torch.from_numpy(self.label_array[index]).to(self.device)
            yield self.clean(index).float() / 255, target


def shifted(images: Tensor, draws: np.ndarray, shift: int, flip: bool) -> Tensor:
    """Images moved by whole pixels (edges reflected) and mirrored: draws are (n, 3) in [0, 1)."""
    u = torch.from_numpy(draws).to(images.device)
    n, _, height, width = images.shape
    if flip:
        images = torch.where((u[:, 0] < 0.5)[:, None, None, None], images.flip(3), images)
    if shift == 0:
        return images
    padded = F.pad(images.float(), (shift,) * 4, mode="reflect").to(images.dtype)
    top, left = ((u[:, k] * (2 * shift + 1)).long() for k in (1, 2))
    rows = (top[:, None] + torch.arange(height, device=images.device))[:, None, :, None]
    columns = (left[:, None] + torch.arange(width, device=images.device))[:, None, None, :]
    batch = torch.arange(n, device=images.device)[:, None, None, None]
    channel = torch.arange(images.shape[1], device=images.device)[None, :, None, None]
    return padded[batch, channel, rows, columns]
