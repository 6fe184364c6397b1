"""Inception, version 3, as Gluon's model zoo builds it.

Szegedy et al., "Rethinking the Inception architecture for computer vision", 2016. The zoo differs from the paper in two
points: there is no auxiliary classifier, and dropout is 0.5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from hpcps.models.base import Shape
from hpcps.models.gluon import ZooModel

if TYPE_CHECKING:
    from torch import Tensor, nn

Size = int | tuple[int, int]
Layer = tuple[int, Size] | tuple[int, Size, int]
"""Channels and kernel of a convolution that is padded, or with a stride of a convolution that is not padded."""

ROW, COLUMN = (1, 7), (7, 1)
"""The two halves of a 7x7 convolution."""


class InceptionV3(ZooModel):
    """Inception v3 without auxiliary classifier, with dropout of 0.5: 21,805,482 parameters (1 channel, 10 classes)."""

    smallest: ClassVar[int | None] = 299

    name: Literal["inception_v3"] = "inception_v3"

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return _network(shape, classes)


def _network(shape: Shape, classes: int) -> nn.Module:
    """Build the PyTorch network; its class is defined here, because this Python module must not import torch."""
    import torch
    from torch import nn

    class Branches(nn.ModuleList):
        """Modules whose outputs for the same input are concatenated."""

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([branch(x) for branch in self], 1)

    def chain(inputs: int, *layers: Layer, pool: nn.Module | None = None) -> nn.Sequential:
        """Return convolutions, each followed by BatchNorm and ReLU."""
        modules = nn.Sequential() if pool is None else nn.Sequential(pool)
        for channels, size, *strides in layers:
            height, width = (size, size) if isinstance(size, int) else size
            stride, padding = (strides[0], (0, 0)) if strides else (1, (height // 2, width // 2))
            convolution = nn.Conv2d(inputs, channels, (height, width), stride, padding, bias=False)
            modules.extend([convolution, nn.BatchNorm2d(channels, eps=1e-3), nn.ReLU(inplace=True)])
            inputs = channels
        return modules

    def pooled(inputs: int, channels: int) -> nn.Sequential:
        return chain(inputs, (channels, 1), pool=nn.AvgPool2d(3, 1, padding=1))

    def block_a(inputs: int, channels: int) -> Branches:
        branches = ((64, 1),), ((48, 1), (64, 5)), ((64, 1), (96, 3), (96, 3))
        return Branches([*(chain(inputs, *layers) for layers in branches), pooled(inputs, channels)])

    def block_b(inputs: int) -> Branches:
        branches = ((384, 3, 2),), ((64, 1), (96, 3), (96, 3, 2))
        return Branches([*(chain(inputs, *layers) for layers in branches), nn.MaxPool2d(3, 2)])

    def block_c(inside: int) -> Branches:
        inputs = 768
        branches = (
            ((192, 1),),
            ((inside, 1), (inside, ROW), (192, COLUMN)),
            ((inside, 1), (inside, COLUMN), (inside, ROW), (inside, COLUMN), (192, ROW)),
        )
        return Branches([*(chain(inputs, *layers) for layers in branches), pooled(inputs, 192)])

    def block_d(inputs: int) -> Branches:
        branches = ((192, 1), (320, 3, 2)), ((192, 1), (192, ROW), (192, COLUMN), (192, 3, 2))
        return Branches([*(chain(inputs, *layers) for layers in branches), nn.MaxPool2d(3, 2)])

    def block_e(inputs: int) -> Branches:
        def split(*layers: Layer) -> nn.Sequential:
            return chain(inputs, *layers).append(Branches([chain(384, (384, (1, 3))), chain(384, (384, (3, 1)))]))

        return Branches([chain(inputs, (320, 1)), split((384, 1)), split((448, 1), (384, 3)), pooled(inputs, 192)])

    features = nn.Sequential(
        *chain(shape[0], (32, 3, 2), (32, 3, 1), (64, 3)),
        nn.MaxPool2d(3, 2),
        *chain(64, (80, 1), (192, 3, 1)),
        nn.MaxPool2d(3, 2),
        *(block_a(192, 32), block_a(256, 64), block_a(288, 64)),
        block_b(288),
        *(block_c(128), block_c(160), block_c(160), block_c(192)),
        block_d(768),
        *(block_e(1280), block_e(2048)),
        nn.AvgPool2d(8),
        nn.Flatten(),
    )
    maps = (_side(shape[1]), _side(shape[2]))
    return features.extend([nn.Dropout(0.5), nn.Linear(2048 * maps[0] * maps[1], classes)])


def _side(size: int) -> int:
    """Return the height or width of the last feature maps for that of an image."""
    for kernel, stride in ((3, 2), (3, 1), (3, 2), (3, 1), (3, 2), (3, 2), (3, 2), (8, 8)):
        size = (size - kernel) // stride + 1
    return size
