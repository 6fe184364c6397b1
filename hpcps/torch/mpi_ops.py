"""Horovod's module of operations, from which its scripts import: the names of `hpcps.torch`."""

from hpcps.torch import *  # noqa: F403
from hpcps.torch import __getattr__ as __getattr__
