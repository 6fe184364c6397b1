"""Networks of GluonCV's model zoo for CIFAR-10, which only the MXNet backend supports."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hpcps.models.base import Model, Shape

if TYPE_CHECKING:
    from torch import nn


class GluonCvModel(Model, ABC):
    """A network that GluonCV builds from its name."""

    backends: ClassVar[tuple[str, ...]] = ("mxnet",)
    channels: ClassVar[int | None] = 3
    batchnorm: ClassVar[bool | None] = True

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Never called: `backends` does not list PyTorch."""
        raise AssertionError(f"{self.name} does not list the PyTorch backend")

    def build_gluon(self, shape: Shape, classes: int) -> Any:
        """See `Model.build_gluon`."""
        from gluoncv.model_zoo import get_model

        return get_model(self.name, classes=classes)


class CifarResNet20V2(GluonCvModel):
    """ResNet-20, version 2, as GluonCV builds it."""

    name: Literal["cifar_resnet20_v2"] = "cifar_resnet20_v2"


class CifarResNet56V2(GluonCvModel):
    """ResNet-56, version 2, as GluonCV builds it."""

    name: Literal["cifar_resnet56_v2"] = "cifar_resnet56_v2"


class CifarResNet110V2(GluonCvModel):
    """ResNet-110, version 2, as GluonCV builds it."""

    name: Literal["cifar_resnet110_v2"] = "cifar_resnet110_v2"


class CifarWideResNet16(GluonCvModel):
    """Wide ResNet-16, ten times as wide, as GluonCV builds it."""

    name: Literal["cifar_wideresnet16_10"] = "cifar_wideresnet16_10"


class CifarWideResNet28(GluonCvModel):
    """Wide ResNet-28, ten times as wide, as GluonCV builds it."""

    name: Literal["cifar_wideresnet28_10"] = "cifar_wideresnet28_10"


class CifarWideResNet40(GluonCvModel):
    """Wide ResNet-40, eight times as wide, as GluonCV builds it."""

    name: Literal["cifar_wideresnet40_8"] = "cifar_wideresnet40_8"


class CifarResNeXt29x32(GluonCvModel):
    """ResNeXt-29 with 32 groups of width 4, as GluonCV builds it."""

    name: Literal["cifar_resnext29_32x4d"] = "cifar_resnext29_32x4d"


class CifarResNeXt29x16(GluonCvModel):
    """ResNeXt-29 with 16 groups of width 64, as GluonCV builds it."""

    name: Literal["cifar_resnext29_16x64d"] = "cifar_resnext29_16x64d"


class CifarResidualAttentionNet56(GluonCvModel):
    """Residual attention network of depth 56, as GluonCV builds it."""

    name: Literal["cifar_residualattentionnet56"] = "cifar_residualattentionnet56"


class CifarResidualAttentionNet92(GluonCvModel):
    """Residual attention network of depth 92, as GluonCV builds it."""

    name: Literal["cifar_residualattentionnet92"] = "cifar_residualattentionnet92"


class CifarResidualAttentionNet452(GluonCvModel):
    """Residual attention network of depth 452, as GluonCV builds it."""

    name: Literal["cifar_residualattentionnet452"] = "cifar_residualattentionnet452"
