"""A multilayer perceptron, for small samples of any shape."""

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
