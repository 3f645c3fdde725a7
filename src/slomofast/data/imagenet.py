"""ImageNet-C, Tiny-ImageNet-C, ImageNet-R and ImageNet-Sketch in their official folder layouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slomofast.core.errors import ConfigError, DataError, unknown_name
from slomofast.data._draws import stable_hash
from slomofast.data.catalog import DataSet
from slomofast.data.cifar import SEVERITIES, no_folder, stored_severity
from slomofast.data.corrupted import check_index, choose_domains, family_of, groups_of
from slomofast.data.folder import (
    check_classes,
    choose_files,
    class_folders,
    labels_of,
    list_images,
    listing_fingerprint,
)
from slomofast.data.images import centre_view, decode, decode_many


def read_wnids(wnids: str | Path | Sequence[str]) -> list[str]:
    """The network's classes in order: from a sequence, a file (first word of each line) or a folder of class folders.

    torchvision's and timm's ImageNet networks number the 1000 wnids in sorted order, which is checked here.
    """
    if isinstance(wnids, str | Path):
        path = Path(wnids)
        if path.is_dir():
            names = class_folders(path)
        elif path.is_file():
            names = [line.split()[0].strip(",") for line in path.read_text().splitlines() if line.strip()]
        else:
            raise DataError(f"wnids: no file or folder {path}")
    else:
        names = [str(w) for w in wnids]
    if len(set(names)) != len(names) or not names:
        raise DataError("wnids must be different from each other, at least one")
    if names != sorted(names):
        raise DataError("wnids are not in sorted order, in which ImageNet networks number their classes")
    return names


def imagenet_wnids() -> list[str]:
    """The 1000 wnids of ImageNet in order, as timm lists them (timm comes with the extra `imagenet`)."""
    try:
        from timm.data import ImageNetInfo
    except ImportError as error:
        raise ConfigError(
            "this set has a part of the network's 1000 classes; pass wnids= (a file with the 1000 wnids in order, or "
            "the folder of an ImageNet split) so that the logits can be cut to them, or install timm, which knows them"
        ) from error
    return read_wnids(ImageNetInfo("imagenet-1k").label_names())


class ImageNetC(DataSet):
    """ImageNet-C or Tiny-ImageNet-C: `<path>/<corruption>/<severity>/<wnid>/<image>`.

    Every (corruption, severity) holds the same files; the list is read from the first corruption at severity 5 (or
    the highest asked for). Images must have the stored size already (224, or 64 for Tiny-ImageNet-C).

    Args:
        path: folder with one folder per corruption.
        name, classes, image_size: `imagenet_c`, 1000, 224; or `tinyimagenet_c`, 200, 64.
        subset: number of images per corruption, an equal share of every class (see `choose_files`).
        files: a list of images to use instead, one path a line.
        domains: corruptions, default the fifteen; `all` for the nineteen.
        severities: severities that must be there, default all five.
        wnids: expected class folders (file, folder or sequence); default: any `classes` of them.
        device: where loaded images go.
    """

    ordered = False

    def __init__(
        self,
        path: str | Path,
        name: str = "imagenet_c",
        classes: int = 1000,
        image_size: int = 224,
        subset: int | None = None,
        files: str | Path | None = None,
        domains: Sequence[str] | str | None = None,
        severities: Sequence[int] = SEVERITIES,
        wnids: str | Path | Sequence[str] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.root = Path(path)
        if not self.root.is_dir():
            raise no_folder(self.root, name, "<corruption>/<severity>/<wnid>/<image>")
        self.name, self.classes, self.image_size = name, classes, image_size
        self.family = family_of(image_size, classes)
        self.domains = choose_domains(domains)
        self.groups = groups_of(self.domains)
        self.device = torch.device(device or "cpu")
        self.severities = tuple(severities)
        if not self.severities or not set(self.severities) <= set(SEVERITIES):
            raise ConfigError(f"severities are among 1 to 5, got {list(severities)}")
        absent = [d for d in self.domains if not (self.root / d).is_dir()]
        if absent:
            raise DataError(f"{self.root} lacks the corruptions {', '.join(absent)}; `slomofast data check` tells more")
        expected = read_wnids(wnids) if wnids is not None else None
        listed = self.root / self.domains[0] / str(max(self.severities))
        self.class_names = class_folders(listed)
        check_classes(self.class_names, classes, listed)
        if expected is not None:
            check_classes(self.class_names, expected, listed)
        for domain in self.domains:
            for severity in self.severities:
                where = self.root / domain / str(severity)
                check_classes(class_folders(where), self.class_names, where)
        every = list_images(listed, self.class_names)
        self.paths = choose_files(every, subset, files, listed)
        self.size = len(self.paths)
        self._labels = labels_of(self.paths, self.class_names)
        for domain in self.domains:
            first = self.root / domain / str(max(self.severities)) / self.paths[0]
            height, width = decode(first).shape[:2]
            if (height, width) != (image_size, image_size):
                raise DataError(f"{first} is {width}x{height} pixels where {image_size}x{image_size} are expected")
        self.fingerprint = stable_hash(name, self.domains, listing_fingerprint(listed, self.paths))

    def labels(self, domain: str = "") -> np.ndarray:
        return self._labels

    def load(self, domain: str, severity: float, index: np.ndarray) -> Tensor:
        if domain not in self.domains:
            raise unknown_name("domain", domain, self.domains)
        level = stored_severity(severity, self.name)
        if level not in self.severities:
            raise ConfigError(f"severity {level} is not among those opened ({list(self.severities)})")
        where = self.root / domain / str(level)
        files: list[Path | bytes] = [where / self.paths[i] for i in check_index(index, self.size)]
        return decode_many(files, self.image_size).to(self.device)


class NaturalShift(DataSet):
    """One domain of natural images in class folders: ImageNet-R (200 classes) or ImageNet-Sketch (1000).

    Labels are positions among this set's own classes. With fewer classes than the network, `class_mask` holds the
    network's class of each label, and logits are to be cut to those columns.

    Args:
        path: folder with one folder per wnid.
        name, classes: `imagenet_r`, 200; or `imagenet_sketch`, 1000.
        wnids: all classes of the network in order (file, folder or sequence); for ImageNet-R by default ImageNet's
            1000 as timm knows them.
        subset, files: a part of the images, as for `ImageNetC`.
        image_size: side in pixels; the shorter side is resized to 256/224 of it first.
        device: where loaded images go.
    """

    ordered = False

    def __init__(
        self,
        path: str | Path,
        name: str,
        classes: int,
        wnids: str | Path | Sequence[str] | None = None,
        subset: int | None = None,
        files: str | Path | None = None,
        image_size: int = 224,
        device: torch.device | str | None = None,
    ) -> None:
        self.root = Path(path)
        if not self.root.is_dir():
            raise no_folder(self.root, name, "<wnid>/<image>")
        self.name, self.classes, self.image_size = name, classes, image_size
        self.family = family_of(image_size, classes)
        self.domains, self.groups = (name,), {"natural": (name,)}
        self.device = torch.device(device or "cpu")
        self.class_names = class_folders(self.root)
        check_classes(self.class_names, classes, self.root)
        self.class_mask = None
        if wnids is not None or name == "imagenet_r":
            network = read_wnids(wnids) if wnids is not None else imagenet_wnids()
            strange = [c for c in self.class_names if c not in set(network)]
            if strange:
                raise DataError(f"{self.root}: {len(strange)} class folders are no class of the network ({strange[0]})")
            if len(network) != classes:
                place = {w: i for i, w in enumerate(network)}
                self.class_mask = np.array([place[c] for c in self.class_names], np.int64)
        self.paths = choose_files(list_images(self.root, self.class_names), subset, files, self.root)
        self.size = len(self.paths)
        self._labels = labels_of(self.paths, self.class_names)
        decode(self.root / self.paths[0])
        mask = None if self.class_mask is None else tuple(self.class_mask.tolist())
        self.fingerprint = stable_hash(name, image_size, mask, listing_fingerprint(self.root, self.paths))

    def labels(self, domain: str = "") -> np.ndarray:
        return self._labels

    def load(self, domain: str, severity: float, index: np.ndarray) -> Tensor:
        """Images of the one domain; natural images have no severity, so it is not looked at."""
        if domain not in self.domains:
            raise unknown_name("domain", domain, self.domains)
        files: list[Path | bytes] = [self.root / self.paths[i] for i in check_index(index, self.size)]
        view = centre_view(self.image_size, round(self.image_size * 256 / 224))
        return decode_many(files, self.image_size, view).to(self.device)
