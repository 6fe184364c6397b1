"""The data sets, by the names that `data.name` accepts."""

from hpcps.data.sets.cifar import Cifar10, Cifar100
from hpcps.data.sets.digits import Digits
from hpcps.data.sets.mnist import FashionMnist, Mnist
from hpcps.data.sets.svhn import Svhn
from hpcps.data.sets.synthetic import Synthetic
from hpcps.data.sets.text import TextData

__all__ = ["Cifar10", "Cifar100", "Digits", "FashionMnist", "Mnist", "Svhn", "Synthetic", "TextData"]
