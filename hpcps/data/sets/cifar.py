"""CIFAR-10 and CIFAR-100, each in its two official layouts: binary files, and pickles of Python."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from hpcps.data.base import Data, Facts
from hpcps.data.files.formats import PickleError, read_batch
from hpcps.data.files.source import Archive, Source
from hpcps.data.samples import Indices, Labels, Part, Samples
from hpcps.errors import InputError
from hpcps.inputs import read_bytes

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32

Records = tuple[NDArray[np.uint8], NDArray[np.uint8]]


@dataclass(frozen=True)
class FileLayout:
    """One of the official layouts of a data set. All training files have equally many records.

    Attributes:
        train: the training files, in order.
        test: the test file.
        label: where a record's label is: of binary files the index of its byte, which the pixels follow; of pickles
            the name of the list of labels.
    """

    train: tuple[str, ...]
    test: str
    label: int | str


class CifarData(Data, ABC):
    """A data set of colour photographs, 32x32."""

    layouts: ClassVar[tuple[FileLayout, ...]]
    source: ClassVar[Source]

    def open(self) -> tuple[Part, Part]:
        files = [(*layout.train, layout.test) for layout in self.layouts]
        number, (*train, test) = self.source.find(self.name, self.dir, files)
        label = self.layouts[number].label
        each = self.facts.train // len(train)
        return CifarPart(self, train, label, each), CifarPart(self, [test], label, self.facts.test)


@dataclass(frozen=True)
class CifarPart:
    """The training or the test part; it reads one file at a time.

    Attributes:
        data: the data set.
        paths: its files.
        label: where a record's label is, see `FileLayout`.
        each: the number of records in each file.
    """

    data: CifarData
    paths: Sequence[Path]
    label: int | str
    each: int

    def labels(self) -> Labels:
        """Read all labels."""
        return np.concatenate([self._checked(path, self._records(path)[0]) for path in self.paths])

    def read(self, indices: Indices) -> Samples:
        """Read the samples at `indices` from the files that hold them."""
        images = np.empty((len(indices), *SHAPE), dtype=np.uint8)
        labels = np.empty(len(indices), dtype=np.int64)
        file_of = indices // self.each
        for number, path in enumerate(self.paths):
            here = file_of == number
            if not here.any():
                continue
            file_labels, pixels = self._records(path)
            rows = indices[here] - number * self.each
            images[here] = pixels[rows].reshape(-1, *SHAPE)
            labels[here] = self._checked(path, file_labels[rows])
        return Samples(images, labels)

    def _records(self, path: Path) -> Records:
        """Read the labels `[each]` and the pixels `[each, 3072]` of a file."""
        return self._read_binary(path, self.label) if isinstance(self.label, int) else self._read_pickle(path)

    def _read_binary(self, path: Path, label: int) -> Records:
        """Map a binary file: only the parts that are used are read from disk."""
        record = label + 1 + PIXELS
        try:
            size = path.stat().st_size
            if size != self.each * record:
                truncated = "truncated" if size < self.each * record else f"not a file of {self.data.name}"
                raise self.data.broken(path, f"{truncated}: {size:,} bytes, not {self.each * record:,}")
            records = np.memmap(path, dtype=np.uint8, mode="r", shape=(self.each, record))
        except OSError as error:
            raise self.data.broken(path, f"cannot be read ({error.strerror})") from error
        return records[:, label], records[:, label + 1 :]

    def _read_pickle(self, path: Path) -> Records:
        try:
            labels, pixels = read_batch(read_bytes(path, 2 * self.each * PIXELS), str(self.label))
        except InputError as error:
            raise self.data.broken(path, error.reason) from error
        except PickleError as error:
            raise self.data.broken(path, f"truncated or corrupt ({error})") from error
        if labels.shape != (self.each,) or pixels.shape != (self.each, PIXELS):
            raise self.data.broken(path, f"{len(labels):,} labels and {len(pixels):,} images, not {self.each:,}")
        return labels, pixels

    def _checked(self, path: Path, labels: NDArray[np.uint8]) -> Labels:
        classes = self.data.facts.classes
        if labels.max(initial=0) >= classes:
            raise self.data.broken(path, f"corrupt: a label is {labels.max()}, not 0 to {classes - 1}")
        return labels.astype(np.int64)


_BATCHES = tuple(f"data_batch_{n}" for n in range(1, 6))


class Cifar10(CifarData):
    """CIFAR-10: 60,000 colour photographs of 10 kinds of things, 32x32 (Krizhevsky, 2009)."""

    facts: ClassVar[Facts] = Facts(
        shape=SHAPE,
        train=50_000,
        test=10_000,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        augment=True,
    )
    layouts: ClassVar[tuple[FileLayout, ...]] = (
        FileLayout(tuple(f"{name}.bin" for name in _BATCHES), "test_batch.bin", 0),
        FileLayout(_BATCHES, "test_batch", "labels"),
    )
    source: ClassVar[Source] = Source(
        folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
        mirrors=("https://www.cs.toronto.edu/~kriz",),
        archives={
            "cifar-10-binary.tar.gz": Archive(
                md5="c32a1d4ab5d03f1284b67883e8d87530",
                folder="cifar-10-batches-bin",
                files=(*layouts[0].train, layouts[0].test),
            ),
            "cifar-10-python.tar.gz": Archive(
                md5="c58f30108f718f92721af3b95e74349a",
                folder="cifar-10-batches-py",
                files=(*layouts[1].train, layouts[1].test),
            ),
        },
        files={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
    )

    name: Literal["cifar10"] = "cifar10"


class Cifar100(CifarData):
    """CIFAR-100: 60,000 colour photographs of 100 kinds of things, 32x32, with their fine labels (Krizhevsky, 2009)."""

    facts: ClassVar[Facts] = Facts(
        shape=SHAPE,
        classes=100,
        train=50_000,
        test=10_000,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        augment=True,
    )
    layouts: ClassVar[tuple[FileLayout, ...]] = (
        FileLayout(("train.bin",), "test.bin", 1),
        FileLayout(("train",), "test", "fine_labels"),
    )
    source: ClassVar[Source] = Source(
        folders=("cifar-100-binary", "cifar-100-python"),
        mirrors=("https://www.cs.toronto.edu/~kriz",),
        archives={
            "cifar-100-binary.tar.gz": Archive(
                md5="03b5dce01913d631647c71ecec9e9cb8",
                folder="cifar-100-binary",
                files=("train.bin", "test.bin"),
            ),
            "cifar-100-python.tar.gz": Archive(
                md5="eb9058c3a382ffc7106e4002c42a8d85",
                folder="cifar-100-python",
                files=("train", "test"),
            ),
        },
        files={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    )

    name: Literal["cifar100"] = "cifar100"
