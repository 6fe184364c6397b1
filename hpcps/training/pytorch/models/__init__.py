"""The networks, by the names in `hpcps.training.catalogue.MODELS`."""

from __future__ import annotations

from torch import nn

from hpcps.training.catalogue import Facts
from hpcps.training.pytorch.models.cifar_resnet import CifarResNet
from hpcps.training.pytorch.models.small import Cnn, Mlp


def build_model(name: str, facts: Facts) -> nn.Module:
    """Build the network for images of a data set, with weights that are still to be set.

    Args:
        name: one of `MODELS`.
        facts: gives the image's shape and the number of classes.
    """
    if name == "cnn":
        return Cnn(facts.shape, facts.classes)
    if name == "mlp":
        return Mlp(facts.shape, facts.classes)
    depth = int(name.removeprefix("cifar_resnet").removesuffix("_v1"))
    return CifarResNet(depth, facts.shape[0], facts.classes)
