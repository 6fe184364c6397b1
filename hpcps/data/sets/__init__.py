"""The data sets, by the names that `data.name` accepts."""

from hpcps.data.sets.cifar10 import Cifar10
from hpcps.data.sets.digits import Digits
from hpcps.data.sets.mnist import FashionMnist, Mnist
from hpcps.data.sets.synthetic import Synthetic

__all__ = ["Cifar10", "Digits", "FashionMnist", "Mnist", "Synthetic"]
