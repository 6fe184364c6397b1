"""Models: a component for each name that `model.name` accepts; building a network imports its framework."""

from hpcps.models import cifar_resnet, gluoncv
from hpcps.models.base import Model
from hpcps.models.cnn import Cnn
from hpcps.models.mlp import Mlp

globals().update({network.__name__: network for network in (*cifar_resnet.NETWORKS, *gluoncv.NETWORKS)})

__all__ = ["Cnn", "Mlp", "Model"]
