"""Orders of domains: across groups, and by how hard the source model finds them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from slomofast.core.errors import ConfigError
from slomofast.data.catalog import Catalog, DataSet
from slomofast.streams.order import spread

CROSS_GROUP = (
    "gaussian_noise",
    "defocus_blur",
    "snow",
    "brightness",
    "shot_noise",
    "glass_blur",
    "frost",
    "contrast",
    "impulse_noise",
    "motion_blur",
    "fog",
    "elastic_transform",
    "pixelate",
    "zoom_blur",
    "jpeg_compression",
)


def across_groups(catalog: Catalog) -> tuple[str, ...]:
    """The catalogue's domains in the published cross-group order.

    Domains outside the fifteen of that order follow, one of each group in turn.
    """
    known = [d for d in CROSS_GROUP if d in catalog.domains]
    others = [d for d in catalog.domains if d not in CROSS_GROUP]
    groups = [[d for d in others if d in set(members)] for members in catalog.groups.values()]
    grouped = {d for members in groups for d in members}
    groups.append([d for d in others if d not in grouped])
    rest: list[str] = []
    for turn in range(max(map(len, groups), default=0)):
        rest.extend(members[turn] for members in groups if turn < len(members))
    return tuple(dict.fromkeys(known + rest))


def by_source_error(catalog: Catalog, setting: str) -> tuple[str, ...]:
    """Domains from the lowest source error to the highest; equal errors keep the catalogue's order."""
    errors = catalog.source_errors
    if errors is None:
        raise ConfigError(
            f"{setting} orders domains by the source model's error and none were given; measure them with "
            "slomofast.streams.measure_source_errors(model, data) and pass them as Stream(source_errors=...)"
        )
    missing = [d for d in catalog.domains if d not in errors]
    if missing:
        raise ConfigError(f"{setting}: source_errors lacks {', '.join(missing)}; measure every domain of the stream")
    return tuple(sorted(catalog.domains, key=lambda d: float(errors[d])))


@torch.no_grad()
def measure_source_errors(
    predict: Callable[[Tensor], Tensor],
    data: DataSet,
    severity: float = 5,
    images: int | None = None,
    batch_size: int = 200,
) -> dict[str, float]:
    """Error in percent of a fixed model on every domain, by domain.

    `predict` maps images in [0, 1] of shape (n, 3, H, W) to logits. `images` per domain are spread evenly over
    the data set and the same in every domain; all of them if None.
    """
    index = spread(data.size, data.size if images is None else min(images, data.size))
    mask = data.class_mask
    errors = {}
    for domain in data.domains:
        labels = data.labels(domain)
        wrong = torch.zeros((), dtype=torch.int64)
        for start in range(0, len(index), batch_size):
            part = index[start : start + batch_size]
            logits = predict(as_float(data.load(domain, severity, part)))
            if mask is not None:
                logits = logits[:, torch.as_tensor(mask, device=logits.device)]
            target = torch.as_tensor(np.asarray(labels[part]), device=logits.device)
            wrong = wrong.to(logits.device) + (logits.argmax(1) != target).sum()
        errors[domain] = 100 * float(wrong) / len(index)
    return errors


def as_float(images: Tensor) -> Tensor:
    """uint8 images as float32 in [0, 1]; float images as they are."""
    return images.float().div_(255) if images.dtype == torch.uint8 else images.float()
