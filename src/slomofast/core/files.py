"""Files that appear under their name only when they are complete."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write to. A reader, or a power cut, sees at `path` all of it or what was there before.

    Several processes may write to the same path; the last one to finish wins.
    """
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_atomically(path: Path, data: bytes) -> None:
    """Put `data` at `path`, all of it or nothing."""
    with written_whole(path) as file:
        file.write(data)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; systems that cannot open folders (Windows) do without."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
