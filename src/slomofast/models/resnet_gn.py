"""ResNet-26 with GroupNorm for 32x32 images, named as in the public rotation-TTT checkpoints."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PreActBlock(nn.Module):
    """GroupNorm, ReLU, 3x3 twice; a shortcut that changes shape pools and pads with zero channels."""

    def __init__(self, inputs: int, planes: int, stride: int, groups: int) -> None:
        super().__init__()
        self.bn1 = nn.GroupNorm(groups, inputs)
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.GroupNorm(groups, planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.stride, self.extra = stride, planes - inputs

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.bn1(x)))
        out = self.conv2(F.relu(self.bn2(out)))
        if self.stride != 1:
            x = F.avg_pool2d(x, self.stride)
        if self.extra:
            x = F.pad(x, (0, 0, 0, 0, 0, self.extra))
        return out + x


class ResNetGN(nn.Module):
    """Pre-activation ResNet of 6 n + 2 layers with GroupNorm (names keep `bn`, as the public checkpoints do).

    Images in, (n, 3, 32, 32); logits out, (n, classes).
    """

    def __init__(self, depth: int = 26, classes: int = 10, width: int = 1, groups: int = 8) -> None:
        super().__init__()
        blocks, channels = (depth - 2) // 6, 16
        self.conv1 = nn.Conv2d(3, channels, 3, 1, 1, bias=False)
        for stage in range(3):
            planes, layers = 16 * width * 2**stage, []
            for i in range(blocks):
                layers.append(PreActBlock(channels, planes, 2 if i == 0 and stage > 0 else 1, groups))
                channels = planes
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
        self.bn = nn.GroupNorm(groups, channels)
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))  # type: ignore[operator]
        x = F.relu(self.bn(x))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))
