"""AlexNet, and VGG networks with and without BatchNorm, as Gluon's model zoo and torchvision build them.

Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014: the network of 2012 in one column,
without local response normalisation. Simonyan and Zisserman, "Very deep convolutional networks for large-scale image
recognition", 2015, table 1 (A, B, D and E); Ioffe and Szegedy, "Batch normalization", 2015, between each convolution
and its ReLU in the networks `_bn`.
"""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, ClassVar, Literal

from hpcps.models.base import Shape, named
from hpcps.models.gluon import ZooModel

if TYPE_CHECKING:
    from torch import nn

CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""The number of 3x3 convolutions before each pooling."""

WIDTHS = (64, 128, 256, 512, 512)


class Vgg(ZooModel, ABC):
    """Five stages of convolutions and pooling, and three linear layers with dropout of 0.5."""

    smallest: ClassVar[int | None] = 32
    batchnorm: ClassVar[bool | None] = False

    def build(self, shape: Shape, classes: int) -> nn.Module:
        from torch import nn

        depth, _, normalised = self.name.removeprefix("vgg").partition("_")
        channels, height, width = shape
        layers: list[nn.Module] = []
        for count, outputs in zip(CONVOLUTIONS[int(depth)], WIDTHS, strict=True):
            for _ in range(count):
                layers.append(nn.Conv2d(channels, outputs, 3, padding=1))
                if normalised:
                    layers.append(nn.BatchNorm2d(outputs))
                layers.append(nn.ReLU(inplace=True))
                channels = outputs
            layers.append(nn.MaxPool2d(2))
        hidden = 4096
        return nn.Sequential(
            *layers,
            nn.Flatten(),
            *(nn.Linear(channels * (height // 32) * (width // 32), hidden), nn.ReLU(inplace=True), nn.Dropout(0.5)),
            *(nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(0.5)),
            nn.Linear(hidden, classes),
        )


class NormalisedVgg(Vgg, ABC):
    """The same with BatchNorm after each convolution."""

    reduction: ClassVar[int] = 16
    batchnorm: ClassVar[bool | None] = True


SAMPLES = "images of 32 by 32, 1 channel, 10 classes"

NETWORKS = [
    named(base, f"vgg{depth}{suffix}", f"VGG-{depth}{words}: {parameters} parameters ({SAMPLES}).")
    for base, suffix, words, counts in (
        (Vgg, "", "", ("28,142,858", "28,327,370", "33,637,066", "38,946,762")),
        (NormalisedVgg, "_bn", " with BatchNorm", ("28,148,362", "28,333,258", "33,645,514", "38,957,770")),
    )
    for depth, parameters in zip(CONVOLUTIONS, counts, strict=True)
]


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
