"""Stores of made-up records, built once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import made_up


@pytest.fixture(scope="session")
def small_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few dozen records; do not write into it."""
    return made_up.write_store(tmp_path_factory.mktemp("small") / "runs", made_up.small())


@pytest.fixture(scope="session")
def small_report(small_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page made from `small_store`."""
    from slomofast.report import build_report

    return build_report(small_store, tmp_path_factory.mktemp("report"), title="A small store")
