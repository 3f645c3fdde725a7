"""Fetching public archives: resumed after a cut, checked against their checksum, unpacked in one step."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slomofast.core.errors import ConfigError, DataError, unknown_name
from slomofast.data.ccc import index_shard
from slomofast.data.home import data_home
from slomofast.data.pack import check_labels

Progress = Callable[[str, int, int | None], None]
"""Called with (file name, bytes so far, bytes in all if known)."""


@dataclass(frozen=True)
class Archive:
    """A public archive: where it lies, its MD5 (None where none is published), what it unpacks to.

    `page` is where a person finds it, should the address fail.
    """

    url: str
    md5: str | None
    holds: str
    page: str = ""

    @property
    def file(self) -> str:
        """Name of the archive's file."""
        return self.url.rpartition("/")[2].partition("?")[0]


_ZENODO = "https://zenodo.org/records"
ARCHIVES: dict[str, tuple[str, tuple[Archive, ...]]] = {
    "cifar10_c": (
        "CIFAR-10-C",
        (
            Archive(
                f"{_ZENODO}/2535967/files/CIFAR-10-C.tar?download=1", "56bf5dcef84df0e2308c6dcbcbbd8499", "19 arrays"
            ),
        ),
    ),
    "cifar100_c": (
        "CIFAR-100-C",
        (
            Archive(
                f"{_ZENODO}/3555552/files/CIFAR-100-C.tar?download=1", "11f0ed0f1191edbf9fa23466ae6021d3", "19 arrays"
            ),
        ),
    ),
    "tinyimagenet_c": (
        "Tiny-ImageNet-C",
        (
            Archive(
                f"{_ZENODO}/8206060/files/Tiny-ImageNet-C.tar?download=1",
                "f9c9a9dbdc11469f0b850190f7ad8be1",
                "the fifteen",
            ),
        ),
    ),
    "imagenet_c": (
        "ImageNet-C",
        (
            Archive(f"{_ZENODO}/2235448/files/noise.tar?download=1", "e80562d7f6c3f8834afb1ecf27252745", "noise"),
            Archive(f"{_ZENODO}/2235448/files/blur.tar?download=1", "2d8e81fdd8e07fef67b9334fa635e45c", "blur"),
            Archive(f"{_ZENODO}/2235448/files/weather.tar?download=1", "33ffea4db4d93fe4a428c40a6ce0c25d", "weather"),
            Archive(f"{_ZENODO}/2235448/files/digital.tar?download=1", "89157860d7b10d5797849337ca2e5c03", "digital"),
        ),
    ),
    "imagenet_r": (
        "imagenet-r",
        (
            Archive(
                "https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar",
                "a61312130a589d0ca1a8fca1f2bd3337",
                "200 classes",
            ),
        ),
    ),
    "imagenet_sketch": (
        "sketch",
        (
            Archive(  # an author's copy of the zip file that the authors' page has on a drive service
                "https://huggingface.co/datasets/songweig/imagenet_sketch/resolve/main/data/ImageNet-Sketch.zip",
                None,
                "1000 classes",
                "https://github.com/HaohanWang/ImageNet-Sketch",
            ),
        ),
    ),
}
"""Kind of data set -> (folder under the data home, its archives)."""

CCC_URL = "https://mlcloud.uni-tuebingen.de:7443/datasets/CCC"
CCC_LEVELS = {"easy": 40, "medium": 20, "hard": 0}
CCC_SPEEDS, CCC_SEEDS = (1000, 2000, 5000), (43, 44, 45)
CCC_IMAGES, CCC_SHARD = 7_500_000, 25_000

DOWNLOADS = (*ARCHIVES, "ccc")
"""Every kind of data set that `slomofast data get` fetches."""


def md5_of(path: Path) -> str:
    """MD5 of a file, read in pieces."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def fetch(
    url: str,
    path: Path,
    md5: str | None = None,
    progress: Progress | None = None,
    attempts: int = 5,
    pause: float = 1.0,
    timeout: float = 60.0,
) -> Path:
    """Download a file to `path`, continuing where an earlier try stopped.

    Bytes collect in `<path>.part` and the file appears under its name only when it is complete and its checksum
    fits. A connection that ends early is taken up again, `attempts` times without new bytes in all.

    Raises:
        DataError: the server refuses, the file stays incomplete, or its checksum differs (the part is deleted then).
    """
    if path.exists():
        if md5 is None or md5_of(path) == md5:
            return path
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    failures, reason = 0, "the connection ended early"
    while failures < attempts:
        before = part.stat().st_size if part.exists() else 0
        try:
            complete = _continue(url, part, progress, timeout)
        except urllib.error.HTTPError as error:
            if error.code == 416:  # the part is longer than the file: it belongs to something else
                part.unlink(missing_ok=True)
                complete, reason = False, "the server had no such range"
            elif error.code in (408, 429, 500, 502, 503, 504):
                complete, reason = False, f"HTTP {error.code}"
            else:
                raise DataError(f"{url} answers HTTP {error.code} ({error.reason})") from error
        except (OSError, http.client.HTTPException) as error:
            complete, reason = False, str(error) or type(error).__name__
        if complete:
            break
        after = part.stat().st_size if part.exists() else 0
        failures = 0 if after > before else failures + 1
        if failures:
            time.sleep(pause * failures)
    else:
        raise DataError(f"{url} could not be fetched completely ({reason}); the same command continues it")
    if md5 is not None and (found := md5_of(part)) != md5:
        part.unlink()
        raise DataError(
            f"{url} has MD5 {found} where {md5} is published; the file was discarded, try again or check the source"
        )
    os.replace(part, path)
    return path


def _continue(url: str, part: Path, progress: Progress | None, timeout: float) -> bool:
    """Append what is missing; whether the file is complete now."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "slomofast"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        total = (error.headers.get("Content-Range") or "").rpartition("/")[2]
        if error.code == 416 and total.isdigit() and int(total) == have:
            return True
        raise
    with response:
        if have and response.status != 206:  # the server ignores ranges: start over
            have = 0
        length = response.headers.get("Content-Length")
        total_bytes = have + int(length) if length and length.isdigit() else None
        name = part.name.removesuffix(".part")
        with part.open("ab" if have else "wb") as file:
            while block := response.read(2**18):
                file.write(block)
                have += len(block)
                if progress is not None:
                    progress(name, have, total_bytes)
    return total_bytes is None or have == total_bytes


def unpack(archive: Path, target: Path, top: str = "") -> None:
    """Unpack a tar or zip archive into `target`; entries appear there only when all of it was readable.

    A single top folder of the archive is left out when it is called like `target` or `top`, so that `CIFAR-10-C.tar`
    fills its folder directly whatever that is called.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=target.parent) as folder:
        try:
            if zipfile.is_zipfile(archive):
                _extract_zip(archive, folder)
            else:
                _extract_tar(archive, folder)
        except (tarfile.TarError, zipfile.BadZipFile, OSError, EOFError) as error:
            raise DataError(f"{archive} cannot be unpacked ({error}); delete it and fetch it again") from error
        entries = [e for e in Path(folder).iterdir() if e.name != "__MACOSX"]
        if len(entries) == 1 and entries[0].is_dir() and entries[0].name.lower() in (target.name.lower(), top.lower()):
            entries = list(entries[0].iterdir())
        for entry in entries:
            place = target / entry.name
            if place.is_dir():
                shutil.rmtree(place)
            os.replace(entry, place)


def _extract_zip(archive: Path, folder: str) -> None:
    """Unpack a zip file, comparing every entry with its own checksum; entries that reach outside are refused."""
    with zipfile.ZipFile(archive) as file:
        for name in file.namelist():
            if _outside(name):
                raise zipfile.BadZipFile(f"its entry {name!r} reaches outside")
        file.extractall(folder)


def _extract_tar(archive: Path, folder: str) -> None:
    """Unpack a tar file of plain files and folders; links, devices and entries that reach outside are refused."""
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            if _outside(member.name) or not (member.isfile() or member.isdir()):
                raise tarfile.TarError(f"{member.name} is no plain file inside the archive")
        # Python 3.11 has this second guard from 3.11.4 on
        guard: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        tar.extractall(folder, **guard)


def _outside(name: str) -> bool:
    """Whether an entry of an archive would land outside the folder it is unpacked to."""
    return name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/")


def get(
    name: str, folder: Path | None = None, progress: Progress | None = None, keep: bool = False, **options: float
) -> Path:
    """Download and unpack a published data set; the folder it then lies in.

    What was unpacked before is not fetched again, and an archive that lies beside the folder already, fetched by hand
    for instance, is taken as it is once its checksum fits. `keep` leaves the archives beside the folder.

    Raises:
        DataError: an archive cannot be fetched (the message says how to do it by hand), fails its checksum, or does
            not hold what it should.
    """
    if name == "ccc":
        return get_ccc(folder=folder, progress=progress, **options)  # type: ignore[arg-type]
    if name not in ARCHIVES:
        raise unknown_name("downloadable data set", name, DOWNLOADS)
    default, archives = ARCHIVES[name]
    target = folder or data_home() / default
    for archive in archives:
        done = target / f".{archive.file}.done"
        if done.exists():
            continue
        _check_address(archive.url)
        place = target.parent / archive.file
        try:
            fetch(archive.url, place, archive.md5, progress, **options)  # type: ignore[arg-type]
            unpack(place, target, default)
            if archive.md5 is None:
                _check_names(name, target)
        except DataError as error:
            raise DataError(f"{error}\n{_by_hand(name, archive, place, target)}") from error
        done.write_text(archive.md5 or "unchecked")
        if not keep:
            place.unlink()
    return target


def _check_address(url: str) -> None:
    if not url.startswith(("https://", "http://127.0.0.1")):
        raise ConfigError(f"{url} is not fetched: only https addresses are")


def _by_hand(name: str, archive: Archive, place: Path, target: Path) -> str:
    where = archive.page or archive.url
    return (
        f"To fetch it by hand, get {archive.file} from {where}, put it at {place} and give the same command again; "
        f"or unpack it yourself and look it over with `slomofast data check {name}:{target}`"
    )


def _check_names(name: str, target: Path) -> None:
    """Where no checksum is published: whether the class folders and the number of images are right."""
    from slomofast.data.check import check_data

    found = check_data(f"{name}:{target}", images=False)
    if found:
        more = f" and {len(found) - 1} more problems" if len(found) > 1 else ""
        raise DataError(f"what was unpacked is not all of {name}: {found[0].path}: {found[0].problem}{more}")


def ccc_name(level: str, speed: int, seed: int) -> str:
    """Folder name of a published CCC stream.

    >>> ccc_name("medium", 1000, 44)
    'baseline_20_transition+speed_1000_seed_44'
    """
    if level not in CCC_LEVELS:
        raise unknown_name("CCC level", level, CCC_LEVELS)
    for what, value, known in (("speed", speed, CCC_SPEEDS), ("seed", seed, CCC_SEEDS)):
        if value not in known:
            raise ConfigError(f"CCC was published with the {what}s {', '.join(map(str, known))}, not {value}")
    return f"baseline_{CCC_LEVELS[level]}_transition+speed_{speed}_seed_{seed}"


def ccc_shards(speed: int) -> int:
    """How many shards a published stream has: each ends with the first whole notch past 25,000 images."""
    per_shard = -(-CCC_SHARD // speed) * speed
    return -(-CCC_IMAGES // per_shard)


def get_ccc(
    level: str = "medium",
    speed: int = 1000,
    seed: int = 44,
    shards: int | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
    **options: float,
) -> Path:
    """Download a published CCC stream, or its first `shards` of 25,000 images; the folder it then lies in.

    The shards are read as they are, so nothing is unpacked. No checksums are published: a shard's length is compared
    with what the server announces, and every image must have its label. Shards that are there are not fetched again.
    """
    stream = ccc_name(level, speed, seed)
    count = ccc_shards(speed) if shards is None else shards
    if not 1 <= count <= ccc_shards(speed):
        raise ConfigError(f"{stream} has {ccc_shards(speed)} shards, asked for {count}")
    _check_address(CCC_URL)
    target = folder or data_home() / "CCC" / stream
    for number in range(count):
        place = target / f"serial_{number:05d}.tar"
        try:
            fetch(f"{CCC_URL}/{stream}/{place.name}", place, None, progress, **options)  # type: ignore[arg-type]
        except DataError as error:
            usable = f"The first {number} shards are there and can be used as ccc:{target}. " if number else ""
            raise DataError(
                f"{error}\n{usable}Shards fetched by hand go to {target} under their own names; "
                f"`slomofast data check ccc:{target}` looks them over"
            ) from error
        try:
            labels = index_shard(place)[2]
            check_labels(labels, 1000, place)
        except DataError:
            place.unlink()
            raise
    return target
