"""CIFAR ResNets, version 1, as GluonCV builds them.

He, Zhang, Ren, Sun, "Deep residual learning for image recognition", 2016, section 4.2. GluonCV differs from the paper
in two points: there is no ReLU after the stem's BatchNorm, and the shortcut has a 1x1 convolution with BatchNorm where
the number of channels changes.
"""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any, ClassVar

from hpcps.models.base import Model, Shape, named

if TYPE_CHECKING:
    from torch import Tensor, nn

CHANNELS = (16, 16, 32, 64)
"""Channels after the stem and after each of the three stages."""


class CifarResNet(Model, ABC):
    """A stem, three stages of (depth - 2) / 6 blocks, global average pooling and a linear layer."""

    backends: ClassVar[tuple[str, ...]] = ("torch", "mxnet")
    channels: ClassVar[int | None] = 3
    batchnorm: ClassVar[bool | None] = True
    channels_last: ClassVar[bool] = True

    @property
    def _depth(self) -> int:
        return int(self.name.removeprefix("cifar_resnet").removesuffix("_v1"))

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return _network(self._depth, shape[0], classes)

    def build_gluon(self, shape: Shape, classes: int) -> Any:
        """Build the twin with GluonCV's builder, which has depths 8, 32 and 44, too, unlike its registry."""
        from gluoncv.model_zoo.cifarresnet import get_cifar_resnet

        return get_cifar_resnet(1, self._depth, classes=classes)


COUNTS = {8: "77,754", 20: "272,186", 32: "466,618", 44: "661,050", 56: "855,482", 110: "1,730,426"}

NETWORKS = [
    named(CifarResNet, f"cifar_resnet{depth}_v1", f"ResNet-{depth}: {parameters} parameters (1 channel, 10 classes).")
    for depth, parameters in COUNTS.items()
]


def _network(depth: int, channels_in: int, classes: int) -> nn.Module:
    """Build the PyTorch network; its classes are defined here, because this Python module must not import torch."""
    import torch
    from torch import nn

    def batch_norm(channels: int) -> nn.BatchNorm2d:
        """Return Gluon's BatchNorm: epsilon 1e-5, and a decay of 0.9 for the running statistics."""
        return nn.BatchNorm2d(channels, eps=1e-5, momentum=0.1)

    def convolution(channels_in: int, channels: int, size: int, stride: int = 1) -> nn.Conv2d:
        return nn.Conv2d(channels_in, channels, size, stride, padding=size // 2, bias=False)

    class BasicBlock(nn.Module):
        """Two 3x3 convolutions and a shortcut."""

        def __init__(self, channels_in: int, channels: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                convolution(channels_in, channels, 3, stride),
                batch_norm(channels),
                nn.ReLU(inplace=True),
                convolution(channels, channels, 3),
                batch_norm(channels),
            )
            self.shortcut = (
                nn.Sequential(convolution(channels_in, channels, 1, stride), batch_norm(channels))
                if channels != channels_in
                else nn.Identity()
            )

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.shortcut(x) + self.body(x))

    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = CHANNELS[0]
            self.stem = nn.Sequential(convolution(channels_in, width, 3), batch_norm(width))
            blocks = []
            for stage, channels in enumerate(CHANNELS[1:]):
                for block in range((depth - 2) // 6):
                    blocks.append(BasicBlock(width, channels, stride=2 if stage and not block else 1))
                    width = channels
            self.stages = nn.Sequential(*blocks)
            self.output = nn.Linear(width, classes)

        def forward(self, x: Tensor) -> Tensor:
            # On a GPU the gradient of a mean is deterministic, and that of adaptive pooling is not.
            logits: Tensor = self.output(self.stages(self.stem(x)).mean((2, 3)))
            return logits

    return ResNet()
