"""A small vision transformer for measurements with LayerNorm networks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slomofast.core.errors import ConfigError


class Attention(nn.Module):
    """Multi-head self-attention over tokens (n, t, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v)
        return self.proj(out.transpose(1, 2).reshape(n, t, width))


class TransformerBlock(nn.Module):
    """Attention and a two-layer perceptron, each behind LayerNorm and added to its input."""

    def __init__(self, width: int, heads: int, expansion: int = 4) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, expansion * width)
        self.fc2 = nn.Linear(expansion * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class VisionTransformer(nn.Module):
    """Patches, a learned position each, transformer blocks, the mean token, a linear head.

    Images in, (n, 3, size, size); logits out, (n, classes). The mean over tokens replaces a class token.
    """

    def __init__(
        self,
        size: int = 32,
        patch: int = 4,
        width: int = 192,
        depth: int = 6,
        heads: int = 3,
        classes: int = 10,
    ) -> None:
        super().__init__()
        if size % patch:
            raise ConfigError(f"a patch of {patch} pixels does not divide an image of {size}")
        self.patch_embed = nn.Conv2d(3, width, patch, patch)
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch_embed(x).flatten(2).transpose(1, 2) + self.pos_embed
        return self.head(self.norm(self.blocks(tokens)).mean(1))
