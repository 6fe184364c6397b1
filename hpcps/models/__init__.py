"""Models: a component for each name that `model.name` accepts; building a network imports its framework."""

from hpcps.models.base import Model
from hpcps.models.cifar_resnet import CifarResNet20, CifarResNet32, CifarResNet44, CifarResNet56, CifarResNet110
from hpcps.models.cnn import Cnn
from hpcps.models.gluoncv import (
    CifarResidualAttentionNet56,
    CifarResidualAttentionNet92,
    CifarResidualAttentionNet452,
    CifarResNet20V2,
    CifarResNet56V2,
    CifarResNet110V2,
    CifarResNeXt29x16,
    CifarResNeXt29x32,
    CifarWideResNet16,
    CifarWideResNet28,
    CifarWideResNet40,
)
from hpcps.models.mlp import Mlp

__all__ = [
    "CifarResNeXt29x16",
    "CifarResNeXt29x32",
    "CifarResNet20",
    "CifarResNet20V2",
    "CifarResNet32",
    "CifarResNet44",
    "CifarResNet56",
    "CifarResNet56V2",
    "CifarResNet110",
    "CifarResNet110V2",
    "CifarResidualAttentionNet56",
    "CifarResidualAttentionNet92",
    "CifarResidualAttentionNet452",
    "CifarWideResNet16",
    "CifarWideResNet28",
    "CifarWideResNet40",
    "Cnn",
    "Mlp",
    "Model",
]
