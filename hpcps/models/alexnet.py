"""AlexNet, as Gluon's model zoo builds it.

Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014: the network of 2012 in one column,
without local response normalisation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from hpcps.models.base import Shape
from hpcps.models.gluon import ZooModel

if TYPE_CHECKING:
    from torch import nn


class AlexNet(ZooModel):
    """AlexNet, with dropout of 0.5 and without BatchNorm.

    It has 57,029,322 parameters for images of 224 by 224 (1 channel, 10 classes).
    """

    smallest: ClassVar[int | None] = 63
    batchnorm: ClassVar[bool | None] = False

    name: Literal["alexnet"] = "alexnet"

    def build(self, shape: Shape, classes: int) -> nn.Module:
        from torch import nn

        channels, height, width = shape
        pool = nn.MaxPool2d(3, 2)
        hidden = 4096
        return nn.Sequential(
            *(nn.Conv2d(channels, 64, 11, 4, padding=2), nn.ReLU(inplace=True), pool),
            *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True), pool),
            *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(inplace=True)),
            *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(inplace=True)),
            *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True), pool),
            nn.Flatten(),
            *(nn.Linear(256 * _side(height) * _side(width), hidden), nn.ReLU(inplace=True), nn.Dropout(0.5)),
            *(nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(0.5)),
            nn.Linear(hidden, classes),
        )


def _side(size: int) -> int:
    """Return the height or width of the last feature maps for that of an image."""
    size = (size + 2 * 2 - 11) // 4 + 1
    for _ in range(3):
        size = (size - 3) // 2 + 1
    return size
