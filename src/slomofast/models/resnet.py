"""ResNet-18 and ResNet-50 under torchvision's parameter names, for 224-pixel and 64-pixel images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slomofast.core.norms import norm_relu


def _projection(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class Basic(nn.Module):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = _projection(inputs, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = norm_relu(self.bn1, self.conv1(x))
        out = self.bn2(self.conv2(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1x1, 3x3 (which carries the stride), 1x1 with four times the channels."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.downsample = _projection(inputs, 4 * planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = norm_relu(self.bn1, self.conv1(x))
        out = norm_relu(self.bn2, self.conv2(out))
        out = self.bn3(self.conv3(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """Four stages of residual blocks.

    Images in, (n, 3, H, W); logits out, (n, classes). `small=True` is the 64-pixel form: a 3x3 stride-1 first
    convolution with the max-pool kept; otherwise the 7x7 stride-2 one of ImageNet.
    """

    def __init__(
        self, block: type[Basic] | type[Bottleneck], depths: Sequence[int], classes: int, small: bool = False
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False) if small else nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        channels = 64
        for stage, depth in enumerate(depths):
            planes, blocks = 64 * 2**stage, []
            for i in range(depth):
                blocks.append(block(channels, planes, 2 if i == 0 and stage > 0 else 1))
                channels = planes * block.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = norm_relu(self.bn1, self.conv1(x))
        x = F.max_pool2d(x, 3, 2, 1)
        for stage in (1, 2, 3, 4):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def resnet18(classes: int = 1000, small: bool = False) -> ResNet:
    """ResNet-18."""
    return ResNet(Basic, (2, 2, 2, 2), classes, small)


def resnet50(classes: int = 1000, small: bool = False) -> ResNet:
    """ResNet-50 (the stride sits in the 3x3 convolution, as in torchvision)."""
    return ResNet(Bottleneck, (3, 4, 6, 3), classes, small)
