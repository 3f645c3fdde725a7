"""What may be learned from: a batch of images, a batch of source images with labels. The rest is refused with words."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from slomofast.core.errors import InputError

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def checked_batch(x: Any, sample_shape: tuple[int, ...] | None) -> Tensor:
    """The batch, if it is one of floating-point images, of `sample_shape` where that is known."""
    if not isinstance(x, Tensor):
        raise InputError(f"expected a tensor of images, got {type(x).__name__}")
    if x.dtype not in FLOATS:
        remedy = "convert with x.float() / 255" if x.dtype == torch.uint8 else "convert with x.float()"
        raise InputError(f"expected floating-point images, got {x.dtype}; {remedy}")
    if x.dim() < 2:
        raise InputError(f"expected a batch, got shape {tuple(x.shape)}; add a batch axis with x[None]")
    if x.numel() == 0:
        raise InputError(f"the batch is empty (shape {tuple(x.shape)}); skip it")
    if sample_shape is not None and tuple(x.shape[1:]) != sample_shape:
        raise InputError(
            f"expected samples of shape {sample_shape}, as in the first batch, got {tuple(x.shape[1:])}; "
            "resize them, or make another adapter for this shape"
        )
    return x


def checked_pair(batch: Any) -> tuple[Tensor, Tensor]:
    """A source batch as images and labels."""
    if not (isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)):
        kinds = [type(part).__name__ for part in batch] if isinstance(batch, tuple | list) else type(batch).__name__
        raise InputError(f"source batches must be pairs (images, labels) of tensors, got {kinds}")
    images, labels = batch
    if len(images) != len(labels):
        raise InputError(f"a source batch has {len(images)} images and {len(labels)} labels; give one for each")
    return images, labels
