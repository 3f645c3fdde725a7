"""Shared set-up: one thread per process, the same random numbers in every test, where the optional real data lies."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    """A test must not depend on which tests ran before it in the same process."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with real images and source models; tests that use it skip where it is absent."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("SLOMOFAST_SHARED_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set SLOMOFAST_SHARED_DATA to use some")
    return folder
