"""The base class of the networks of MXNet Gluon's model zoo, which have the zoo's tensors in the zoo's order."""

from __future__ import annotations

from abc import ABC
from typing import Any, ClassVar

from hpcps.models.base import Model, Shape


class ZooModel(Model, ABC):
    """A network of `mxnet.gluon.model_zoo.vision`, for images with any number of channels.

    Numbers of parameters in docstrings are those for 1 channel and 10 classes: of the tensors that Gluon trains, so
    without the running statistics of BatchNorm.
    """

    backends: ClassVar[tuple[str, ...]] = ("torch", "mxnet")
    smallest: ClassVar[int | None] = 1
    batchnorm: ClassVar[bool | None] = True

    @property
    def zoo_name(self) -> str:
        """The name of the function of the zoo that builds the network."""
        return self.name

    def build_gluon(self, shape: Shape, classes: int) -> Any:
        from mxnet.gluon.model_zoo import vision

        return getattr(vision, self.zoo_name)(classes=classes)
