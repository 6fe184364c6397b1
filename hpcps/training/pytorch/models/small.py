"""Small networks without BatchNorm, for small images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Cnn(nn.Module):
    """Two 3x3 convolutions, each halving the image, and two linear layers; 14,000 parameters for 8x8 digits.

    No dropout and no BatchNorm: a worker's state is its parameters and its momentum.
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.hidden = nn.Linear(32 * (height // 4) * (width // 4), 64)
        self.output = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits `[b, classes]` of images `[b, c, h, w]`."""
        x = functional.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        logits: Tensor = self.output(torch.relu(self.hidden(x.flatten(1))))
        return logits


class Mlp(nn.Module):
    """Two hidden layers of 128 and 64; 17,000 parameters for 8x8 digits."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.hidden1 = nn.Linear(channels * height * width, 128)
        self.hidden2 = nn.Linear(128, 64)
        self.output = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits `[b, classes]` of images `[b, c, h, w]`."""
        logits: Tensor = self.output(torch.relu(self.hidden2(torch.relu(self.hidden1(x.flatten(1))))))
        return logits
