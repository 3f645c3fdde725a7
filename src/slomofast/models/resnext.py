"""ResNeXt-29 for 32x32 images, with the parameter names of the AugMix checkpoints in RobustBench."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slomofast.core.norms import norm_relu


class ResNeXtBlock(nn.Module):
    """Reduce, grouped 3x3, expand; the shortcut is projected where the shape changes."""

    def __init__(self, inputs: int, outputs: int, cardinality: int, base_width: int, stride: int) -> None:
        super().__init__()
        # Width grows with the stage: outputs is 4 x 64, 4 x 128, 4 x 256.
        inner = base_width * (outputs // 256) * cardinality
        self.conv_reduce = nn.Conv2d(inputs, inner, 1, bias=False)
        self.bn_reduce = nn.BatchNorm2d(inner)
        self.conv_conv = nn.Conv2d(inner, inner, 3, stride, 1, groups=cardinality, bias=False)
        self.bn = nn.BatchNorm2d(inner)
        self.conv_expand = nn.Conv2d(inner, outputs, 1, bias=False)
        self.bn_expand = nn.BatchNorm2d(outputs)
        self.downsample = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            if stride != 1 or inputs != outputs
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        out = norm_relu(self.bn_reduce, self.conv_reduce(x))
        out = norm_relu(self.bn, self.conv_conv(out))
        out = self.bn_expand(self.conv_expand(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNeXt29(nn.Module):
    """ResNeXt-29 of the given cardinality and base width (4 and 32 in the public robust checkpoints).

    Images in, (n, 3, 32, 32); logits out, (n, classes).
    """

    def __init__(self, classes: int = 10, cardinality: int = 4, base_width: int = 32) -> None:
        super().__init__()
        self.conv_1_3x3 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn_1 = nn.BatchNorm2d(64)
        widths = [64, 256, 512, 1024]
        for stage in (1, 2, 3):
            blocks = [
                ResNeXtBlock(
                    widths[stage - 1] if i == 0 else widths[stage],
                    widths[stage],
                    cardinality,
                    base_width,
                    2 if i == 0 and stage > 1 else 1,
                )
                for i in range(3)
            ]
            self.add_module(f"stage_{stage}", nn.Sequential(*blocks))
        self.classifier = nn.Linear(1024, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = norm_relu(self.bn_1, self.conv_1_3x3(x))
        for stage in (1, 2, 3):
            x = self.get_submodule(f"stage_{stage}")(x)
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))
