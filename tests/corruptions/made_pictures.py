"""Pictures with edges, flat patches, black, white and grey, so that every branch of a corruption is met."""

from __future__ import annotations

import torch
from torch import Tensor


def picture_batch(count: int, size: int, seed: int = 0) -> Tensor:
    """Smooth colour gradients with rectangles and a little texture; uint8, shape (count, 3, size, size)."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 5, 5, generator=generator)
    images = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear", align_corners=True)
    images = images + 0.04 * torch.randn(count, 3, size, size, generator=generator)
    for image in images:
        for _ in range(4):
            top, left = torch.randint(0, size - 4, (2,), generator=generator).tolist()
            high, wide = torch.randint(3, size // 2, (2,), generator=generator).tolist()
            image[:, top : top + high, left : left + wide] = torch.rand(3, 1, 1, generator=generator)
        image[:, :2, :3], image[:, -2:, -3:], image[:, :2, -3:] = 0.0, 1.0, 0.5
    return images.clamp(0, 1).mul(255).to(torch.uint8)
