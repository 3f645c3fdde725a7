"""Folders of images, one folder per class: listing them, and corrupting clean ones on the fly."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slomofast.core.errors import ConfigError, DataError
from slomofast.data._draws import stable_hash, uniform
from slomofast.data.corrupted import CorruptedImages
from slomofast.data.images import EXTENSIONS, centre_view, decode, decode_many
from slomofast.data.pack import take


def class_folders(root: Path) -> list[str]:
    """Names of the class folders under `root`, sorted: label i is the i-th."""
    if not root.is_dir():
        raise DataError(f"no folder {root}")
    names = sorted(e.name for e in os.scandir(root) if e.is_dir() and not e.name.startswith("."))
    if not names:
        raise DataError(f"{root} has no class folders; expected {root}/<class>/<image>")
    return names


def check_classes(found: Sequence[str], expected: Sequence[str] | int, where: Path) -> None:
    """Raise a DataError that names class folders too many or missing (or their number)."""
    if isinstance(expected, int):
        if len(found) != expected:
            raise DataError(
                f"{where} has {len(found)} class folders where {expected} are expected; a folder too many or too "
                f"few would shift the labels. Pass classes={len(found)} if that is what you want"
            )
        return
    extra, missing = sorted(set(found) - set(expected)), sorted(set(expected) - set(found))
    if extra or missing:
        said = [f"{len(extra)} too many ({', '.join(extra[:3])})"] if extra else []
        said += [f"{len(missing)} missing ({', '.join(missing[:3])})"] if missing else []
        raise DataError(f"{where}: class folders {' and '.join(said)}")


def list_images(root: Path, classes: Sequence[str]) -> list[str]:
    """Relative paths `<class>/<file>` of every image, sorted within each class.

    Raises:
        DataError: for a class without images.
    """
    paths: list[str] = []
    for name in classes:
        files = sorted(e.name for e in os.scandir(root / name) if os.path.splitext(e.name)[1].lower() in EXTENSIONS)
        if not files:
            raise DataError(f"the class folder {root / name} has no images")
        paths.extend(f"{name}/{file}" for file in files)
    return paths


def choose_files(paths: Sequence[str], subset: int | None, files: str | Path | None, where: Path) -> list[str]:
    """A part of the listed images: those named in a list file, or an equal share of every class.

    `files` has one path a line; the last two parts (`<class>/<file>`) count, anything after a blank is ignored.
    Without it, `subset` images are chosen class by class: the subset / classes files of each class whose names hash
    lowest, so the choice is the same everywhere and depends on no order.
    """
    if files is not None:
        lines = [line.split()[0] for line in Path(files).read_text().splitlines() if line.strip()]
        wanted = ["/".join(line.replace("\\", "/").split("/")[-2:]) for line in lines]
        known = set(paths)
        absent = [w for w in wanted if w not in known]
        if absent:
            raise DataError(f"{files} names {len(absent)} images that {where} lacks, first {absent[0]}")
        if subset is not None and len(wanted) != subset:
            raise ConfigError(f"{files} lists {len(wanted)} images, not subset={subset}")
        return wanted
    if subset is None:
        return list(paths)
    by_class: dict[str, list[str]] = {}
    for path in paths:
        by_class.setdefault(path.split("/")[0], []).append(path)
    share, rest = divmod(subset, len(by_class))
    if rest or not share:
        raise ConfigError(f"subset {subset} is no multiple of the {len(by_class)} classes of {where}")
    chosen: list[str] = []
    for name, members in by_class.items():
        if len(members) < share:
            raise ConfigError(f"subset {subset} needs {share} images of {name}; {where} has {len(members)}")
        chosen.extend(sorted(sorted(members, key=stable_hash)[:share]))
    return chosen


def labels_of(paths: Sequence[str], classes: Sequence[str]) -> np.ndarray:
    """Labels of relative paths: the position of the class folder, int64."""
    place = {name: i for i, name in enumerate(classes)}
    return np.array([place[p.split("/")[0]] for p in paths], np.int64)


def listing_fingerprint(root: Path, paths: Sequence[str], probe: int = 64) -> str:
    """Hash of a list of files: all names, and the sizes of a few spread over the list."""
    step = max(1, len(paths) // probe)
    sizes = [(root / p).stat().st_size for p in paths[::step]]
    return stable_hash(tuple(paths), tuple(sizes))


class Folder(CorruptedImages):
    """Clean images in class folders, corrupted on the fly; labels follow the sorted folder names.

    Small square images are taken as they are; larger ones get the usual test view, shorter side to 256 and the
    central 224 square (in proportion for another `image_size`).

    Args:
        path: folder with one folder per class.
        size: use this many images, spread evenly over the sorted list.
        classes: number of class folders to insist on.
        image_size: side in pixels; by default that of the first image when it is square and at most 96, else 224.
        domains, seed, device: see `CorruptedImages`.
    """

    def __init__(
        self,
        path: str | Path,
        size: int | None = None,
        classes: int | None = None,
        image_size: int | None = None,
        domains: Sequence[str] | str | None = None,
        seed: int = 0,
        device: torch.device | str | None = None,
    ) -> None:
        self.root = Path(path)
        self.class_names = class_folders(self.root)
        if classes is not None:
            check_classes(self.class_names, classes, self.root)
        self.classes = len(self.class_names)
        paths = list_images(self.root, self.class_names)
        self.size = take(size, len(paths), self.root)
        self.paths = [paths[i] for i in np.linspace(0, len(paths) - 1, self.size).round().astype(int)]
        self.label_array = labels_of(self.paths, self.class_names)
        self.name = self.root.name
        height, width = decode(self.root / self.paths[0]).shape[:2]
        as_it_is = height == width and (image_size == height or (image_size is None and height <= 96))
        self.image_size = height if as_it_is else (image_size or 224)
        self._resize = None if as_it_is else round(self.image_size * 256 / 224)
        self.clean_fingerprint = listing_fingerprint(self.root, self.paths) + f"-{self.image_size}"
        self.finish(domains, seed, device)

    def _files(self, index: np.ndarray) -> list[Path | bytes]:
        return [self.root / self.paths[i] for i in index]

    def read(self, index: np.ndarray) -> Tensor:
        return decode_many(self._files(index), self.image_size, centre_view(self.image_size, self._resize))

    def varied(self, index: np.ndarray, seed: int) -> Tensor:
        """Clean images as CCC shows them: mirrored at random, a random part (8 to 100 % of the area) enlarged.

        Small images that are taken as they are get a shift instead.
        """
        if self._resize is None:
            return super().varied(index, seed)
        draws = uniform(f"view {seed}", index, 1 + 4 * 10)
        return decode_many(self._files(index), self.image_size, random_resized_view(draws, self.image_size)).to(
            self.device
        )


def random_resized_view(draws: np.ndarray, side: int) -> Any:
    """View number i: mirrored when draws[i, 0] < 1/2, then a random box resized to a square (bilinear).

    The box has 8 to 100 % of the area and a ratio of 3/4 to 4/3 (log-uniform); ten tries, four draws each, then the
    largest central box.
    """

    def view(picture: Any, position: int) -> Any:
        from PIL import Image

        u = draws[position]
        if u[0] < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        box = random_box(picture.width, picture.height, u[1:].reshape(-1, 4))
        return picture.resize((side, side), Image.Resampling.BILINEAR, box=box)

    return view


def random_box(width: int, height: int, draws: np.ndarray) -> tuple[int, int, int, int]:
    """A random box (left, top, right, bottom) of 8 to 100 % of the area, ratio 3/4 to 4/3; draws are (tries, 4)."""
    for area, ratio, across, down in draws:
        pixels = (0.08 + 0.92 * float(area)) * width * height
        shape = float(np.exp(np.log(3 / 4) + float(ratio) * (np.log(4 / 3) - np.log(3 / 4))))
        w, h = round((pixels * shape) ** 0.5), round((pixels / shape) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            left, top = int(float(across) * (width - w + 1)), int(float(down) * (height - h + 1))
            return left, top, left + w, top + h
    ratio = width / height
    w = min(width, round(height * 4 / 3)) if ratio > 4 / 3 else width
    h = min(height, round(width * 4 / 3)) if ratio < 3 / 4 else height
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
