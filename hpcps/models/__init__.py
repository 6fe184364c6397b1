"""Models: a component for each name that `model.name` accepts; building a network imports its framework."""

from hpcps.models import cifar_resnet, gluoncv, resnet
from hpcps.models.alexnet import AlexNet
from hpcps.models.base import Model
from hpcps.models.cnn import Cnn
from hpcps.models.inception import InceptionV3
from hpcps.models.mlp import Mlp
from hpcps.models.mobilenet import MobileNetV1, MobileNetV2

_FAMILIES = (*cifar_resnet.NETWORKS, *resnet.NETWORKS, *gluoncv.NETWORKS)
globals().update({network.__name__: network for network in _FAMILIES})

__all__ = ["AlexNet", "Cnn", "InceptionV3", "Mlp", "MobileNetV1", "MobileNetV2", "Model"]
