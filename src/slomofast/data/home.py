"""Where data lives when no path is given."""

from __future__ import annotations

import os
from pathlib import Path


def data_home() -> Path:
    """The folder for data sets and indices: `$SLOMOFAST_HOME`, else `~/.cache/slomofast`. It may not exist yet."""
    given = os.environ.get("SLOMOFAST_HOME")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "slomofast"
