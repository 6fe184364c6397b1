"""Small networks without BatchNorm: a multilayer perceptron, and two convolutional networks for small images."""

from __future__ import annotations

from collections import OrderedDict
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from hpcps.models.base import Model, Shape

if TYPE_CHECKING:
    from torch import nn


class Mlp(Model):
    """Two hidden layers of 128 and 64; 17,000 parameters for 8x8 digits."""

    backends: ClassVar[tuple[str, ...]] = ("torch", "mxnet")
    batchnorm: ClassVar[bool | None] = False

    name: Literal["mlp"] = "mlp"
    dropout: float = Field(
        0.0, ge=0, lt=1, description="mlp: probability that dropout sets a hidden value to 0 in a training step."
    )

    def build(self, shape: Shape, classes: int) -> nn.Module:
        from torch import nn

        drop = nn.Dropout(self.dropout)
        return nn.Sequential(
            OrderedDict(
                flat=nn.Flatten(),
                hidden1=nn.Linear(prod(shape), 128),
                relu1=nn.Sequential(nn.ReLU(), drop) if self.dropout else nn.ReLU(),
                hidden2=nn.Linear(128, 64),
                relu2=nn.Sequential(nn.ReLU(), drop) if self.dropout else nn.ReLU(),
                output=nn.Linear(64, classes),
            )
        )

    def build_gluon(self, shape: Shape, classes: int) -> Any:
        from mxnet.gluon import nn

        network = nn.HybridSequential(prefix="")
        with network.name_scope():
            for width in (128, 64):
                network.add(nn.Dense(width, activation="relu"), *([nn.Dropout(self.dropout)] if self.dropout else ()))
            network.add(nn.Dense(classes))
        return network


class Cnn(Model):
    """Two 3x3 convolutions, each followed by 2x2 pooling, and two linear layers; 14,000 parameters for 8x8 digits.

    It has neither dropout nor BatchNorm, so a worker's state is its parameters and its momentum.
    """

    backends: ClassVar[tuple[str, ...]] = ("torch", "mxnet")
    smallest: ClassVar[int | None] = 4
    batchnorm: ClassVar[bool | None] = False

    name: Literal["cnn"] = "cnn"

    def build(self, shape: Shape, classes: int) -> nn.Module:
        from torch import nn

        channels, height, width = shape
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 16, 3, padding=1),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(16, 32, 3, padding=1),
                relu2=nn.ReLU(),
                pool2=nn.MaxPool2d(2),
                flat=nn.Flatten(),
                hidden=nn.Linear(32 * (height // 4) * (width // 4), 64),
                relu3=nn.ReLU(),
                output=nn.Linear(64, classes),
            )
        )

    def build_gluon(self, shape: Shape, classes: int) -> Any:
        from mxnet.gluon import nn

        network = nn.HybridSequential(prefix="")
        with network.name_scope():
            for channels in (16, 32):
                network.add(nn.Conv2D(channels, 3, padding=1, activation="relu"), nn.MaxPool2D(2))
            network.add(nn.Dense(64, activation="relu"), nn.Dense(classes))
        return network


class LeNet(Model):
    """LeNet as Caffe builds it: two 5x5 convolutions with pooling, and two linear layers.

    It has 431,080 parameters for images of 28 by 28 with one channel. LeCun, Bottou, Bengio, Haffner, "Gradient-based
    learning applied to document recognition", 1998, with pooling of maxima, wider layers and one ReLU.
    """

    backends: ClassVar[tuple[str, ...]] = ("torch", "mxnet")
    smallest: ClassVar[int | None] = 16
    batchnorm: ClassVar[bool | None] = False

    name: Literal["lenet"] = "lenet"

    def build(self, shape: Shape, classes: int) -> nn.Module:
        from torch import nn

        channels, height, width = shape
        rows, columns = (((size - 4) // 2 - 4) // 2 for size in (height, width))
        return nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(channels, 20, 5),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(20, 50, 5),
                pool2=nn.MaxPool2d(2),
                flat=nn.Flatten(),
                hidden=nn.Linear(50 * rows * columns, 500),
                relu=nn.ReLU(),
                output=nn.Linear(500, classes),
            )
        )

    def build_gluon(self, shape: Shape, classes: int) -> Any:
        from mxnet.gluon import nn

        network = nn.HybridSequential(prefix="")
        with network.name_scope():
            for channels in (20, 50):
                network.add(nn.Conv2D(channels, 5), nn.MaxPool2D(2))
            network.add(nn.Dense(500, activation="relu"), nn.Dense(classes))
        return network
