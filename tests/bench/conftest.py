"""Jobs small enough to run many times: two corruptions of a few letters, an untrained network."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from slomofast.bench import Job

TINY: dict[str, Any] = {
    "data": "glyphs",
    "data_options": {"size": 60, "domains": "gaussian_noise,fog"},
    "model": "wrn_10_1",
    "batch_size": 10,
    "images_per_domain": 30,
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Equal thread counts make equal bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny() -> Job:
    """`tent` on six batches."""
    return Job("tent", **TINY)


def variants(job: Job, **choices: list[Any]) -> list[Job]:
    """The job once for each value of one field."""
    ((name, values),) = choices.items()
    return [dataclasses.replace(job, **{name: value}) for value in values]
