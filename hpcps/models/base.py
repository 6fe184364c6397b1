"""The base class of models: their keys in the experiment file, and methods that build the network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, create_model

from hpcps.registry.config import Config

if TYPE_CHECKING:
    from torch import nn

Shape = tuple[int, ...]


class Model(Config, ABC):
    """The network that is trained; a subclass adds `name` and its own keys.

    `build` must import the framework itself: servers and `hpcps check` need the class, but not the framework.
    """

    backends: ClassVar[tuple[str, ...]] = ("torch",)
    """The values of `model.backend` with which the network can be built."""

    channels: ClassVar[int | None] = None
    """The number of channels that an image must have; None: any shape, or `build` raises an error."""

    smallest: ClassVar[int | None] = None
    """The smallest height and width of an image; None: samples of any shape, or `build` raises an error."""

    reduction: ClassVar[int] = 1
    """How many times lower and narrower than an image the last feature maps with BatchNorm are."""

    batchnorm: ClassVar[bool | None] = None
    """Whether the network has BatchNorm statistics; None: unknown before it is built."""

    sequential: ClassVar[bool] = False
    """Whether the network predicts a label for each element of a sample, such as the next byte of a text."""

    channels_last: ClassVar[bool] = False
    """Whether images and kernels have the channels-last memory format on a CPU, which changes the order of sums."""

    backend: Literal["torch", "mxnet"] = Field(
        "torch", description="The framework that trains: PyTorch, or MXNet with GluonCV in a separate environment."
    )
    name: str

    @abstractmethod
    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Build the PyTorch network; its initial weights are overwritten (see `hpcps.training.weights`).

        Args:
            shape: the shape of one sample, such as `(3, 32, 32)`; the network's input is `[b, *shape]`, float32.
            classes: the number of labels; the output is `[b, classes]`, or `[b * n, classes]` for samples `[n]` if the
                network is `sequential`.

        Returns:
            A module with one input tensor and float32 parameters. If it has a method `loss(outputs, labels)`, which
            returns the mean loss of a batch, training and evaluation use that instead of cross entropy.
        """

    def build_gluon(self, shape: Shape, classes: int) -> Any:
        """Build the same network in Gluon for `backend = "mxnet"`, with the parameters in the same order."""
        raise AssertionError(f"{self.name} does not list the MXNet backend")

    def memory_format(self, device: str) -> str:
        """Return torch's name of the memory format of images and kernels, which records also contain.

        On a CPU, channels last makes the convolutions of a CIFAR ResNet a fifth faster and a MobileNet nearly twice as
        fast; smaller networks and the large ResNets gain nothing.
        """
        return "channels_last" if self.channels_last and device == "cpu" else "contiguous_format"


def named(base: type[Model], name: str, words: str) -> type[Model]:
    """Return a model that differs from its base class only in its name and its docstring."""
    only: Any = Literal[name]
    model: type[Model] = create_model(name, __base__=base, __module__=base.__module__, name=(only, name))
    model.__doc__ = words
    return model
