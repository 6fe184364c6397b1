"""ResNets for ImageNet, versions 1 and 2, as Gluon's model zoo builds them.

He, Zhang, Ren, Sun, "Deep residual learning for image recognition", 2016, table 1 (version 1), and "Identity mappings
in deep residual networks", 2016 (version 2). The zoo differs from the papers in these points: in version 1, the first
1x1 convolution of a block has the stride, and both 1x1 convolutions of a block have biases; version 2 begins with a
BatchNorm without parameters.
"""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, ClassVar

from hpcps.models.base import Shape, named
from hpcps.models.gluon import ZooModel

if TYPE_CHECKING:
    from torch import Tensor, nn

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Blocks of each stage; from depth 50 on, a block is a bottleneck."""


class ImageNetResNet(ZooModel, ABC):
    """A 7x7 convolution and pooling, four stages of residual blocks, global average pooling and a linear layer."""

    reduction: ClassVar[int] = 32

    def build(self, shape: Shape, classes: int) -> nn.Module:
        depth, version = self.name.removeprefix("resnet").split("_v")
        return _network(int(depth), int(version), shape[0], classes)


NETWORKS = [
    named(
        ImageNetResNet,
        f"resnet{depth}_v{version}",
        f"ResNet-{depth}, version {version}: {parameters} parameters (1 channel, 10 classes).",
    )
    for depth, version, parameters in (
        (18, 1, "11,175,370"),
        (18, 2, "11,173,706"),
        (34, 1, "21,283,530"),
        (34, 2, "21,281,866"),
        (50, 1, "23,541,130"),
        (50, 2, "23,514,698"),
        (101, 1, "42,555,018"),
        (101, 2, "42,506,826"),
        (152, 1, "58,217,866"),
        (152, 2, "58,150,474"),
    )
]


def _network(depth: int, version: int, channels_in: int, classes: int) -> nn.Module:
    """Build the PyTorch network; its classes are defined here, because this Python module must not import torch."""
    import torch
    from torch import nn

    def convolution(inputs: int, outputs: int, size: int, stride: int = 1, *, bias: bool = False) -> nn.Conv2d:
        return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=bias)

    def activated(channels: int) -> tuple[nn.Module, nn.Module]:
        return nn.BatchNorm2d(channels), nn.ReLU(inplace=True)

    def convolutions(inputs: int, outputs: int, stride: int) -> list[nn.Conv2d]:
        """Return those of a block's body."""
        if depth < 50:
            return [convolution(inputs, outputs, 3, stride), convolution(outputs, outputs, 3)]
        first, narrow, biases = version == 1, outputs // 4, version == 1
        return [
            convolution(inputs, narrow, 1, stride if first else 1, bias=biases),
            convolution(narrow, narrow, 3, 1 if first else stride),
            convolution(narrow, outputs, 1, bias=biases),
        ]

    def body(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        """Return the convolutions of a block, with BatchNorm and ReLU between them."""
        first, *others = convolutions(inputs, outputs, stride)
        layers: list[nn.Module] = [first]
        for before, after in zip((first, *others), others, strict=False):
            layers += [*activated(before.out_channels), after]
        return nn.Sequential(*layers)

    class BlockV1(nn.Module):
        """A body and a shortcut, and ReLU of their sum."""

        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.body = body(inputs, outputs, stride).append(nn.BatchNorm2d(outputs))
            self.shortcut = nn.Sequential()
            if inputs != outputs:
                self.shortcut.extend([convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)])

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.body(x) + self.shortcut(x))

    class BlockV2(nn.Module):
        """BatchNorm and ReLU, then a body and a shortcut, and their sum."""

        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.before = nn.Sequential(*activated(inputs))
            self.body = body(inputs, outputs, stride)
            self.shortcut = convolution(inputs, outputs, 1, stride) if inputs != outputs else None

        def forward(self, x: Tensor) -> Tensor:
            active = self.before(x)
            shortcut: Tensor = x if self.shortcut is None else self.shortcut(active)
            out: Tensor = shortcut + self.body(active)
            return out

    class ResidualNetwork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential() if version == 1 else nn.Sequential(nn.BatchNorm2d(channels_in, affine=False))
            self.stem.extend([convolution(channels_in, 64, 7, 2), *activated(64), nn.MaxPool2d(3, 2, 1)])
            width, block = 64, BlockV1 if version == 1 else BlockV2
            self.stages = nn.Sequential()
            for stage, count in enumerate(BLOCKS[depth]):
                channels = (64 if depth < 50 else 256) * 2**stage
                for number in range(count):
                    self.stages.append(block(width, channels, 2 if stage and not number else 1))
                    width = channels
            if version == 2:
                self.stages.extend(activated(width))
            self.output = nn.Linear(width, classes)

        def forward(self, x: Tensor) -> Tensor:
            # On a GPU the gradient of a mean is deterministic, and that of adaptive pooling is not.
            logits: Tensor = self.output(self.stages(self.stem(x)).mean((2, 3)))
            return logits

    return ResidualNetwork()
