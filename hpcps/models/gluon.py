"""Networks of the model zoos of MXNet: the base class of those of Gluon, and those that only GluonCV builds."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any, ClassVar

from hpcps.models.base import Model, Shape, named

if TYPE_CHECKING:
    from torch import nn


class ZooModel(Model, ABC):
    """A network of `mxnet.gluon.model_zoo.vision`, for images with any number of channels.

    Numbers of parameters in docstrings are those of the tensors that Gluon trains, so without the running
    statistics of BatchNorm.
    """

    backends: ClassVar[tuple[str, ...]] = ("torch", "mxnet")
    smallest: ClassVar[int | None] = 1
    batchnorm: ClassVar[bool | None] = True

    @property
    def zoo_name(self) -> str:
        """The name of the function of the zoo that builds the network."""
        return self.name

    def build_gluon(self, shape: Shape, classes: int) -> Any:
        from mxnet.gluon.model_zoo import vision

        return getattr(vision, self.zoo_name)(classes=classes)


class GluonCvModel(Model, ABC):
    """A network that GluonCV builds from its name."""

    backends: ClassVar[tuple[str, ...]] = ("mxnet",)
    channels: ClassVar[int | None] = 3
    batchnorm: ClassVar[bool | None] = True

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Never called: `backends` does not list PyTorch."""
        raise AssertionError(f"{self.name} does not list the PyTorch backend")

    def build_gluon(self, shape: Shape, classes: int) -> Any:
        from gluoncv.model_zoo import get_model

        return get_model(self.name, classes=classes)


NETWORKS = [
    named(GluonCvModel, name, f"{words}, as GluonCV builds it.")
    for name, words in {
        "cifar_resnet20_v2": "ResNet-20, version 2",
        "cifar_resnet56_v2": "ResNet-56, version 2",
        "cifar_resnet110_v2": "ResNet-110, version 2",
        "cifar_wideresnet16_10": "Wide ResNet-16, ten times as wide",
        "cifar_wideresnet28_10": "Wide ResNet-28, ten times as wide",
        "cifar_wideresnet40_8": "Wide ResNet-40, eight times as wide",
        "cifar_resnext29_32x4d": "ResNeXt-29 with 32 groups of width 4",
        "cifar_resnext29_16x64d": "ResNeXt-29 with 16 groups of width 64",
        "cifar_residualattentionnet56": "Residual attention network of depth 56",
        "cifar_residualattentionnet92": "Residual attention network of depth 92",
        "cifar_residualattentionnet452": "Residual attention network of depth 452",
    }.items()
]
