"""Data sets by name: `open_data("cifar10_c:/data/CIFAR-10-C")`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from slomofast.core.config import typed
from slomofast.core.errors import ConfigError, DataError, unknown_name
from slomofast.data.catalog import DataSet
from slomofast.data.ccc import CccShards
from slomofast.data.cifar import CifarC
from slomofast.data.folder import Folder
from slomofast.data.home import data_home
from slomofast.data.imagenet import ImageNetC, NaturalShift
from slomofast.data.pack import Pack
from slomofast.data.synthetic import Glyphs


@dataclass(frozen=True)
class DataInfo:
    """A kind of data set: its name in a spec, what it is, the layout it reads, the folder it has by default.

    `folder` is looked for under `data_home()` when a spec gives no path; None means a path is needed (or, for
    glyphs, that none is).
    """

    name: str
    title: str
    layout: str
    make: Callable[..., DataSet]
    takes_path: bool = True
    folder: str | None = None

    @property
    def options(self) -> list[str]:
        """Names `open_data` accepts for this kind."""
        return [p for p in inspect.signature(self.make).parameters if p not in ("path", "name")]


_KINDS: dict[str, DataInfo] = {
    info.name: info
    for info in (
        DataInfo("glyphs", "letters drawn by code, corrupted on the fly", "none", Glyphs, takes_path=False),
        DataInfo(
            "cifar10_c",
            "CIFAR-10-C",
            "<corruption>.npy, labels.npy",
            partial(CifarC, name="cifar10_c", classes=10),
            folder="CIFAR-10-C",
        ),
        DataInfo(
            "cifar100_c",
            "CIFAR-100-C",
            "<corruption>.npy, labels.npy",
            partial(CifarC, name="cifar100_c", classes=100),
            folder="CIFAR-100-C",
        ),
        DataInfo(
            "imagenet_c",
            "ImageNet-C",
            "<corruption>/<severity>/<wnid>/*.JPEG",
            partial(ImageNetC, name="imagenet_c"),
            folder="ImageNet-C",
        ),
        DataInfo(
            "tinyimagenet_c",
            "Tiny-ImageNet-C",
            "<corruption>/<severity>/<wnid>/*.JPEG",
            partial(ImageNetC, name="tinyimagenet_c", classes=200, image_size=64),
            folder="Tiny-ImageNet-C",
        ),
        DataInfo(
            "imagenet_r",
            "ImageNet-R, 200 classes",
            "<wnid>/*.jpg",
            partial(NaturalShift, name="imagenet_r", classes=200),
            folder="imagenet-r",
        ),
        DataInfo(
            "imagenet_sketch",
            "ImageNet-Sketch",
            "<wnid>/*.JPEG",
            partial(NaturalShift, name="imagenet_sketch", classes=1000),
            folder="sketch",
        ),
        DataInfo("ccc", "a CCC stream", "*.tar with <key>.input.jpg, <key>.output.cls", CccShards),
        DataInfo("folder", "clean images corrupted on the fly", "<class>/<image>", Folder),
        DataInfo("pack", "clean images corrupted on the fly", ".npz: data, offsets, labels, classes", Pack),
    )
}


def list_data() -> list[DataInfo]:
    """Every kind of data set a spec can name."""
    return list(_KINDS.values())


def check_data(spec: str, options: Mapping[str, Any]) -> tuple[DataInfo, dict[str, Any]]:
    """The kind of data set a spec names and its options as their types; an error for one that is not there.

    Files are not looked at.

    >>> check_data("glyphs", {"size": "20"})[1]
    {'size': 20}
    """
    kind = str(spec).partition(":")[0]
    if kind not in _KINDS:
        raise unknown_name("data set", kind, _KINDS)
    info = _KINDS[kind]
    for option in options:
        if option not in info.options:
            raise unknown_name(f"option of {kind}", option, info.options)
    return info, typed(info.make, options)


def open_data(spec: str, **options: Any) -> DataSet:
    """The data set a spec names, checked so far that a run on it can start.

    Args:
        spec: `<kind>` or `<kind>:<path>`, for example `glyphs`, `cifar10_c:/data/CIFAR-10-C`,
            `pack:/data/cifar10_test.npz`, `folder:/data/val`. Published sets without a path are looked for under
            `data_home()`.
        options: of that kind; `slomofast data list` shows them.

    Raises:
        ConfigError: an unknown kind or option, or one of another type.
        DataError: files that are missing, damaged or in another layout.

    >>> open_data("glyphs", size=20).domains[:2]
    ('gaussian_noise', 'shot_noise')
    """
    info, options = check_data(spec, options)
    kind, _, path = str(spec).partition(":")
    if not info.takes_path:
        if path:
            raise ConfigError(f"{kind} takes no path, got {path!r}; options are {', '.join(info.options)}")
        return info.make(**options)
    if path:
        where = Path(path).expanduser()
    elif info.folder:
        where = data_home() / info.folder
        if not where.exists():
            raise DataError(f"{kind} is not at {where}; write {kind}:<path>{_fetching(kind)}")
    else:
        raise ConfigError(f"{kind} needs a path: write {kind}:<path>{_fetching(kind)}")
    return info.make(path=where, **options)


def _fetching(kind: str) -> str:
    from slomofast.data.download import DOWNLOADS

    return f", or fetch it with `slomofast data get {kind}`" if kind in DOWNLOADS else ""
