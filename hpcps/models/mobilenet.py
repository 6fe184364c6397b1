"""MobileNets of width 1, versions 1 and 2, as Gluon's model zoo builds them.

Howard et al., "MobileNets: efficient convolutional neural networks for mobile vision applications", 2017, table 1;
Sandler et al., "MobileNetV2: inverted residuals and linear bottlenecks", 2018, table 2. The zoo differs from the second
paper in two points: the first bottleneck also has a 1x1 convolution before the depthwise one, and the last layer is a
1x1 convolution without bias. Neither has dropout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from hpcps.models.base import Shape
from hpcps.models.gluon import ZooModel

if TYPE_CHECKING:
    from torch import Tensor, nn

SEPARABLE = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))
"""Channels and stride of each depthwise separable convolution of version 1."""

BOTTLENECKS = ((16, 1, 1), (24, 2, 2), (32, 3, 2), (64, 4, 2), (96, 3, 1), (160, 3, 2), (320, 1, 1))
"""Channels, number of bottlenecks and stride of the first one, for each stage of version 2."""

EXPANSION = 6
"""How many times wider a bottleneck of version 2 is inside; the first one is not wider."""

LAST = 1280
"""Channels of the last feature maps of version 2."""


class MobileNetV1(ZooModel):
    """MobileNet, version 1, width 1: 3,216,650 parameters (1 channel, 10 classes)."""

    reduction: ClassVar[int] = 32
    channels_last: ClassVar[bool] = True

    name: Literal["mobilenet_v1"] = "mobilenet_v1"

    @property
    def zoo_name(self) -> str:
        return "mobilenet1_0"

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return _network(1, shape[0], classes)


class MobileNetV2(ZooModel):
    """MobileNet, version 2, width 1: 2,237,184 parameters (1 channel, 10 classes)."""

    reduction: ClassVar[int] = 32
    channels_last: ClassVar[bool] = True

    name: Literal["mobilenet_v2"] = "mobilenet_v2"

    @property
    def zoo_name(self) -> str:
        return "mobilenet_v2_1_0"

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return _network(2, shape[0], classes)


def _network(version: int, channels_in: int, classes: int) -> nn.Module:
    """Build the PyTorch network; its classes are defined here, because this Python module must not import torch."""
    from torch import nn

    def convolution(
        inputs: int, outputs: int, size: int = 1, stride: int = 1, *, depthwise: bool = False
    ) -> list[nn.Module]:
        groups = inputs if depthwise else 1
        layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False)
        return [layer, nn.BatchNorm2d(outputs)]

    def activation() -> nn.Module:
        return nn.ReLU(inplace=True) if version == 1 else nn.ReLU6(inplace=True)

    class Bottleneck(nn.Module):
        """An inverted residual: wider inside, with a shortcut if the shape stays the same."""

        def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
            super().__init__()
            inside = inputs * expansion
            self.body = nn.Sequential(*convolution(inputs, inside), activation())
            self.body.extend([*convolution(inside, inside, 3, stride, depthwise=True), activation()])
            self.body.extend(convolution(inside, outputs))
            self.shortcut = stride == 1 and inputs == outputs

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.body(x)
            return out + x if self.shortcut else out

    class MobileNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = 32
            self.features = nn.Sequential(*convolution(channels_in, width, 3, 2), activation())
            if version == 1:
                for channels, stride in SEPARABLE:
                    self.features.extend([*convolution(width, width, 3, stride, depthwise=True), activation()])
                    self.features.extend([*convolution(width, channels), activation()])
                    width = channels
                self.output: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(width, classes))
            else:
                for stage, (channels, count, stride) in enumerate(BOTTLENECKS):
                    for number in range(count):
                        expansion = EXPANSION if stage else 1
                        self.features.append(Bottleneck(width, channels, expansion, 1 if number else stride))
                        width = channels
                self.features.extend([*convolution(width, LAST), activation()])
                self.output = nn.Sequential(nn.Conv2d(LAST, classes, 1, bias=False), nn.Flatten())

        def forward(self, x: Tensor) -> Tensor:
            # On a GPU the gradient of a mean is deterministic, and that of adaptive pooling is not.
            logits: Tensor = self.output(self.features(x).mean((2, 3), keepdim=True))
            return logits

    return MobileNet()
