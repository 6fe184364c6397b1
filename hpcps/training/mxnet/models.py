"""The networks of Gluon: GluonCV's by their own names, and twins of our small ones."""

from __future__ import annotations

import re
from typing import Any

from hpcps.training.catalogue import Facts


def build_model(name: str, facts: Facts) -> Any:
    """Build the Gluon network for images of a data set, with weights that are still to be set.

    Tensors come in the order of the PyTorch twin's, so both have one flat vector.

    Args:
        name: one of `MODELS`.
        facts: gives the image's shape and the number of classes.
    """
    from gluoncv.model_zoo import get_model
    from gluoncv.model_zoo.cifarresnet import get_cifar_resnet

    if name == "cnn":
        return _cnn(facts)
    if name == "mlp":
        return _mlp(facts)
    resnet = re.fullmatch(r"cifar_resnet(\d+)_v(\d)", name)
    if resnet:  # GluonCV's registry has no names for depths 32 and 44, which its builder makes as well
        depth, version = map(int, resnet.groups())
        return get_cifar_resnet(version, depth, classes=facts.classes)
    return get_model(name, classes=facts.classes)


def _cnn(facts: Facts) -> Any:
    """Two convolutions, each halving the image, and two linear layers."""
    from mxnet.gluon import nn

    network = nn.HybridSequential(prefix="")
    with network.name_scope():
        for channels in (16, 32):
            network.add(nn.Conv2D(channels, 3, padding=1, activation="relu"), nn.MaxPool2D(2))
        network.add(nn.Dense(64, activation="relu"), nn.Dense(facts.classes))
    return network


def _mlp(facts: Facts) -> Any:
    """Two hidden layers of 128 and 64."""
    from mxnet.gluon import nn

    network = nn.HybridSequential(prefix="")
    with network.name_scope():
        network.add(nn.Dense(128, activation="relu"), nn.Dense(64, activation="relu"), nn.Dense(facts.classes))
    return network
