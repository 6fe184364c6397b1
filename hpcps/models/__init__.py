"""Models: a component for each name that `model.name` accepts; building a network imports its framework."""

from hpcps.models import cifar_resnet, gluon, resnet, vgg
from hpcps.models.base import Model
from hpcps.models.decoder import Decoder
from hpcps.models.inception import InceptionV3
from hpcps.models.mobilenet import MobileNetV1, MobileNetV2
from hpcps.models.small import Cnn, LeNet, Mlp
from hpcps.models.vgg import AlexNet

_FAMILIES = (*cifar_resnet.NETWORKS, *resnet.NETWORKS, *vgg.NETWORKS, *gluon.NETWORKS)
globals().update({network.__name__: network for network in _FAMILIES})

__all__ = ["AlexNet", "Cnn", "Decoder", "InceptionV3", "LeNet", "Mlp", "MobileNetV1", "MobileNetV2", "Model"]
