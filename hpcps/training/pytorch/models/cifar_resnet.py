"""CIFAR ResNets, version 1, as GluonCV builds them.

He, Zhang, Ren, Sun, "Deep residual learning for image recognition", 2016, section 4.2. GluonCV differs from the paper
in two things, which are kept: no ReLU after the stem's BatchNorm, and a 1x1 convolution with BatchNorm on the shortcut
where the number of channels changes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

CHANNELS = (16, 16, 32, 64)
"""Channels after the stem and after each of the three stages."""


def batch_norm(channels: int) -> nn.BatchNorm2d:
    """Return Gluon's BatchNorm: epsilon 1e-5, and 0.9 of the running statistics kept at each batch."""
    return nn.BatchNorm2d(channels, eps=1e-5, momentum=0.1)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False),
            batch_norm(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            batch_norm(channels),
        )
        self.shortcut = (
            nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False), batch_norm(channels))
            if channels != channels_in
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(shortcut + body)."""
        return torch.relu(self.shortcut(x) + self.body(x))


class CifarResNet(nn.Module):
    """A stem, three stages of (depth − 2) / 6 blocks, global average pooling and a linear layer."""

    def __init__(self, depth: int, channels_in: int, classes: int) -> None:
        super().__init__()
        width = CHANNELS[0]
        self.stem = nn.Sequential(nn.Conv2d(channels_in, width, 3, padding=1, bias=False), batch_norm(width))
        blocks = []
        for stage, channels in enumerate(CHANNELS[1:]):
            for block in range((depth - 2) // 6):
                blocks.append(BasicBlock(width, channels, stride=2 if stage and not block else 1))
                width = channels
        self.stages = nn.Sequential(*blocks)
        self.output = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits `[b, classes]` of images `[b, c, h, w]`."""
        # A mean has a deterministic gradient on a GPU; adaptive pooling has not.
        features: Tensor = self.output(self.stages(self.stem(x)).mean((2, 3)))
        return features
