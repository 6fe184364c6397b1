"""Which models and data sets there are, and the facts about them that need no framework and no file."""

from __future__ import annotations

from dataclasses import dataclass

OF_EVERY_BACKEND = (
    "cifar_resnet20_v1",
    "cifar_resnet32_v1",
    "cifar_resnet44_v1",
    "cifar_resnet56_v1",
    "cifar_resnet110_v1",
    "cnn",
    "mlp",
)
"""Names that mean the same network, with the same initial weights, in every backend."""

OF_GLUONCV = (
    "cifar_resnet20_v2",
    "cifar_resnet56_v2",
    "cifar_resnet110_v2",
    "cifar_wideresnet16_10",
    "cifar_wideresnet28_10",
    "cifar_wideresnet40_8",
    "cifar_resnext29_32x4d",
    "cifar_resnext29_16x64d",
    "cifar_residualattentionnet56",
    "cifar_residualattentionnet92",
    "cifar_residualattentionnet452",
)
"""Names that only GluonCV has, and so only the MXNet backend."""

MODELS = OF_EVERY_BACKEND + OF_GLUONCV
"""Names that `model.name` accepts."""

BACKENDS = {"torch": OF_EVERY_BACKEND, "mxnet": MODELS}
"""Names that `model.backend` accepts, and the models of each."""

FOR_COLOUR = frozenset(name for name in MODELS if name.startswith("cifar_"))
"""Those that take colour images only."""

WITH_BATCHNORM = FOR_COLOUR
"""Those that have running statistics."""


def memory_format(model: str, device: str) -> str:
    """Return how images and kernels lie in memory, as torch calls it; sums differ, so all of a run must have the same.

    On a CPU the convolutions of a CIFAR ResNet are a fifth quicker with channels last; smaller ones gain nothing.
    """
    return "channels_last" if model in WITH_BATCHNORM and device == "cpu" else "contiguous_format"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a data set before its files are read.

    Attributes:
        shape: channels, height, width of an image.
        classes: the number of labels.
        train: the number of training samples.
        test: the number of test samples.
        levels: the pixel value that is white; pixels are divided by it.
        mean: of each channel, subtracted after the division.
        std: of each channel, divided by last.
        augment: whether training images may be cropped and flipped (a mirrored digit is another digit).
    """

    shape: tuple[int, int, int]
    classes: int = 10
    train: int
    test: int
    levels: int = 255
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    augment: bool = False


DATA_SETS = {
    "cifar10": Facts(
        shape=(3, 32, 32),
        train=50_000,
        test=10_000,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        augment=True,
    ),
    "fashion_mnist": Facts(shape=(1, 28, 28), train=60_000, test=10_000, mean=(0.2860,), std=(0.3530,)),
    "mnist": Facts(shape=(1, 28, 28), train=60_000, test=10_000, mean=(0.1307,), std=(0.3081,)),
    "digits": Facts(shape=(1, 8, 8), train=1_437, test=360, levels=16),
    "synthetic": Facts(shape=(3, 32, 32), train=8_000, test=2_000, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
}
"""Names that `data.name` accepts."""
