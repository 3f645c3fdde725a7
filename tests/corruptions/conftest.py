"""A batch of small pictures for every test of this room."""

from __future__ import annotations

import pytest
from made_pictures import picture_batch
from torch import Tensor


@pytest.fixture(scope="session")
def pictures() -> Tensor:
    return picture_batch(6, 32)
