"""What a stream may know about data, and what every data set answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

LARGE = 128  # pixels from which images are treated as in CCC; smaller ones are CCC-mini


@dataclass(frozen=True)
class Catalog:
    """The domains of a data set and their common size: all that a setting needs to lay out a stream.

    `labels(domain)` is consulted by label-correlated streams alone; `source_errors` (percent, by domain) by
    the orders that depend on the source model.
    """

    domains: tuple[str, ...]
    size: int
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    labels: Callable[[str], np.ndarray] | None = None
    source_errors: Mapping[str, float] | None = None


class DataSet(ABC):
    """Images by (domain, severity, index). Image `index` is the same picture in every domain where that makes sense.

    Attributes:
        name: short name, used in tables.
        family: `cifar` (small images), `cifar100` (those of a hundred classes) or `imagenet` (large ones); picks a
            method's preset.
        classes: number of classes of the labels.
        image_size: side of the square images in pixels.
        domains: names in canonical order.
        size: images in every domain.
        groups: group name -> its domains.
        fingerprint: hash of what decides the pixels.
        class_mask: for label spaces that are a part of the network's, the network's class of each label
            (logits are cut to these columns); None otherwise.
    """

    name: str
    family: str
    classes: int
    image_size: int
    domains: tuple[str, ...]
    size: int
    groups: Mapping[str, tuple[str, ...]]
    fingerprint: str
    class_mask: np.ndarray | None = None

    @abstractmethod
    def labels(self, domain: str) -> np.ndarray:
        """Labels of every image of a domain: int64, shape (size,)."""

    @abstractmethod
    def load(self, domain: str, severity: float, index: np.ndarray) -> Tensor:
        """Images `index` of a domain at a severity: uint8, shape (n, 3, image_size, image_size)."""

    def catalog(self, source_errors: Mapping[str, float] | None = None) -> Catalog:
        """The view of this data set that settings get to see."""
        return Catalog(self.domains, self.size, dict(self.groups), self.labels, source_errors)
