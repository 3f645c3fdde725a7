"""A data set small enough to check by eye: a picture's pixels say which image of which domain it is."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from slomofast.data.catalog import DataSet

GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog"),
    "digital": ("brightness", "contrast"),
    "distortion": ("elastic_transform", "pixelate", "jpeg_compression"),
}


class FakeData(DataSet):
    """Channel 0 holds the image's number (below 256), channel 1 the domain, channel 2 ten times the severity."""

    name, family, classes, image_size, fingerprint = "fake", "cifar", 10, 2, "fake"

    def __init__(self, size: int = 40, groups: dict[str, tuple[str, ...]] | None = None) -> None:
        self.size = size
        self.groups = GROUPS if groups is None else groups
        self.domains = tuple(d for members in GROUPS.values() for d in members)
        self.loads = 0

    def labels(self, domain: str) -> np.ndarray:
        return np.arange(self.size, dtype=np.int64) % self.classes

    def load(self, domain: str, severity: float, index: np.ndarray) -> Tensor:
        self.loads += 1
        images = torch.zeros(len(index), 3, 2, 2, dtype=torch.uint8)
        images[:, 0] = torch.from_numpy(index % 256).to(torch.uint8)[:, None, None]
        images[:, 1] = self.domains.index(domain)
        images[:, 2] = round(10 * severity)
        return images


class PairData(FakeData):
    """The same with two corruptions at a time: channels 1 and 2 hold ten times the two severities."""

    def load_pair(self, first: tuple[str, float], second: tuple[str, float], index: np.ndarray) -> Tensor:
        images = self.load(first[0], first[1], index)
        images[:, 1] = round(10 * first[1])
        images[:, 2] = round(10 * second[1])
        return images
