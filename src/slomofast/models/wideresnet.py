"""Wide residual networks for small images, with the parameter names of RobustBench's checkpoints."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slomofast.core.errors import ConfigError
from slomofast.core.norms import norm_relu


class WideBlock(nn.Module):
    """Two 3x3 convolutions, each behind BatchNorm and ReLU, added to a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.dropout = dropout
        self.convShortcut = (
            nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs or stride != 1 else None
        )

    def forward(self, x: Tensor) -> Tensor:
        activated = norm_relu(self.bn1, x)
        out = self.conv1(activated)
        out = norm_relu(self.bn2, out)
        if self.dropout > 0:
            out = F.dropout(out, self.dropout, self.training)
        out = self.conv2(out)
        # A block that changes shape shortcuts from the activated input, the others from the raw one.
        return out + (x if self.convShortcut is None else self.convShortcut(activated))


class WideStage(nn.Module):
    """Blocks of one width; the first may halve the resolution."""

    def __init__(self, blocks: int, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.layer = nn.Sequential(
            *(
                WideBlock(inputs if i == 0 else outputs, outputs, stride if i == 0 else 1, dropout)
                for i in range(blocks)
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class WideResNet(nn.Module):
    """WRN-`depth`-`width`: three stages of (depth - 4) / 6 blocks with 16, 32, 64 times `width` channels.

    Images in, (n, 3, H, W); logits out, (n, classes). `stem_stride=2` halves the resolution at once, which
    makes the network about four times cheaper.
    """

    def __init__(
        self, depth: int = 28, width: int = 10, classes: int = 10, dropout: float = 0.0, stem_stride: int = 1
    ) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ConfigError(f"a WideResNet's depth is 6 n + 4 with n >= 1 (10, 16, 22, 28, 40, ...), got {depth}")
        if width < 1:
            raise ConfigError(f"a WideResNet's width is at least 1, got {width}")
        blocks = (depth - 4) // 6
        channels = [16, 16 * width, 32 * width, 64 * width]
        self.conv1 = nn.Conv2d(3, channels[0], 3, stem_stride, 1, bias=False)
        self.block1 = WideStage(blocks, channels[0], channels[1], 1, dropout)
        self.block2 = WideStage(blocks, channels[1], channels[2], 2, dropout)
        self.block3 = WideStage(blocks, channels[2], channels[3], 2, dropout)
        self.bn1 = nn.BatchNorm2d(channels[3])
        self.fc = nn.Linear(channels[3], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block3(self.block2(self.block1(self.conv1(x))))
        x = norm_relu(self.bn1, x)
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))
