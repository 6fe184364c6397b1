"""MNIST and Fashion-MNIST: four idx files each, with the same names."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from hpcps.data.base import Data, Facts
from hpcps.data.files.formats import read_idx
from hpcps.data.files.source import Source
from hpcps.data.samples import Indices, Labels, Part, Samples
from hpcps.errors import InputError

TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def _checksums(*checksums: str) -> dict[str, str]:
    return {f"{name}.gz": md5 for name, md5 in zip((*TRAIN, *TEST), checksums, strict=True)}


class IdxData(Data, ABC):
    """A data set of four idx files."""

    source: ClassVar[Source]

    def open(self) -> tuple[Part, Part]:
        _, (*train, images, labels) = self.source.find(self.name, self.dir, [(*TRAIN, *TEST)], ("", ".gz"))
        return IdxPart(self, (train[0], train[1]), self.facts.train), IdxPart(self, (images, labels), self.facts.test)


class Mnist(IdxData):
    """MNIST: 70,000 handwritten digits, 28x28, grey (LeCun, Cortes and Burges)."""

    facts: ClassVar[Facts] = Facts(shape=(1, 28, 28), train=60_000, test=10_000, mean=(0.1307,), std=(0.3081,))
    source: ClassVar[Source] = Source(
        folders=("mnist", "MNIST/raw"),
        unmistakable=False,
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "https://storage.googleapis.com/cvdf-datasets/mnist",
        ),
        files=_checksums(
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    )

    name: Literal["mnist"] = "mnist"


class FashionMnist(IdxData):
    """Fashion-MNIST: 70,000 pieces of clothing of 10 kinds, 28x28, grey (Xiao, Rasul and Vollgraf, 2017)."""

    facts: ClassVar[Facts] = Facts(shape=(1, 28, 28), train=60_000, test=10_000, mean=(0.2860,), std=(0.3530,))
    source: ClassVar[Source] = Source(
        folders=("fashion_mnist", "FashionMNIST/raw"),
        unmistakable=False,
        mirrors=(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        ),
        files=_checksums(
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    )

    name: Literal["fashion_mnist"] = "fashion_mnist"


@dataclass(frozen=True)
class IdxPart:
    """The training or the test part: a file of images and one of labels."""

    data: IdxData
    paths: tuple[Path, Path]
    size: int

    def labels(self) -> Labels:
        """Read all labels."""
        labels = self._read(self.paths[1], (self.size,))
        classes = self.data.facts.classes
        if labels.max() >= classes:
            raise self.data.broken(self.paths[1], f"corrupt: a label is {labels.max()}, not 0 to {classes - 1}")
        return labels.astype(np.int64)

    def read(self, indices: Indices) -> Samples:
        """Read the samples at `indices`."""
        shape = self.data.facts.shape
        images = self._read(self.paths[0], (self.size, *shape[1:]))[indices]
        return Samples(images.reshape(-1, *shape), self.labels()[indices])

    def _read(self, path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        try:
            return read_idx(path, shape)
        except InputError as error:
            raise self.data.broken(path, error.reason) from error
