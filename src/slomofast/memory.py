"""What a method keeps of the stream: class queues of confident features, as modules made of buffers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PrototypeQueues(nn.Module):
    """For every class the features of lowest entropy offered so far, and their weighted mean as prototype.

    A push is one `topk` over (classes, capacity + batch): after any pushes without pruning each queue holds exactly
    the `capacity` lowest entropies offered. Queues are sorted, most confident first; an empty slot has entropy inf.
    """

    features: Tensor
    entropies: Tensor

    def __init__(self, classes: int, capacity: int, dim: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("features", torch.zeros(classes, capacity, dim, device=device, dtype=dtype))
        self.register_buffer("entropies", torch.full((classes, capacity), float("inf"), device=device))

    @torch.no_grad()
    def push(self, features: Tensor, entropies: Tensor, labels: Tensor, keep: Tensor) -> None:
        """Offer a batch: features (B, D), entropies (B,), predicted classes (B,), and which samples count (B,)."""
        classes, capacity, _ = self.features.shape
        mine = (labels[None, :] == torch.arange(classes, device=labels.device)[:, None]) & keep[None, :]
        offered = torch.where(mine, entropies.float()[None, :], float("inf"))
        values, chosen = torch.cat([self.entropies, offered], 1).topk(capacity, dim=1, largest=False)
        old = self.features.gather(1, chosen.clamp(max=capacity - 1)[..., None].expand_as(self.features))
        new = features.to(self.features.dtype)[(chosen - capacity).clamp(min=0)]
        self.features.copy_(torch.where((chosen < capacity)[..., None], old, new))
        self.entropies.copy_(values)

    @torch.no_grad()
    def drop_most_confident(self) -> None:
        """Remove the entry of lowest entropy from every full queue, so that old certainties make room."""
        full = torch.isfinite(self.entropies).all(1, keepdim=True)
        entropies = torch.cat([self.entropies[:, 1:], torch.full_like(self.entropies[:, :1], float("inf"))], 1)
        features = torch.cat([self.features[:, 1:], torch.zeros_like(self.features[:, :1])], 1)
        self.features.copy_(torch.where(full[..., None], features, self.features))
        self.entropies.copy_(torch.where(full, entropies, self.entropies))

    @torch.no_grad()
    def prototypes(self, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
        """Prototypes (C, D): means of the queues weighted by 1 / (entropy + eps); and which classes have one (C,)."""
        present = torch.isfinite(self.entropies)
        weight = torch.where(present, 1.0 / (self.entropies + eps), 0.0)
        weight = weight / weight.sum(1, keepdim=True).clamp_min(1e-12)
        return torch.einsum("ck,ckd->cd", weight, self.features.float()), present.any(1)

    def fill(self) -> Tensor:
        """Share of all slots in use."""
        return torch.isfinite(self.entropies).float().mean()
