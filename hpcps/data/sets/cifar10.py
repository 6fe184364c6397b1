"""CIFAR-10 in its two official layouts: five training files and a test file of 10,000 records each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from hpcps.data.base import Data, Facts
from hpcps.data.files.formats import PickleError, read_batch
from hpcps.data.files.source import Archive, Source
from hpcps.data.samples import Indices, Labels, Part, Samples
from hpcps.errors import DataError, InputError
from hpcps.inputs import read_bytes

PIXELS = 3 * 32 * 32
RECORDS = 10_000
"""The number of records in every file."""

Records = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def read_binary(path: Path) -> Records:
    """Map a file of the binary layout: (labels `[n]`, pixels `[n, 3072]`); only the used parts are read from disk."""
    try:
        size = path.stat().st_size
        if size != RECORDS * (PIXELS + 1):
            truncated = "truncated" if size < RECORDS * (PIXELS + 1) else "not a CIFAR-10 file"
            raise broken(path, f"{truncated}: {size:,} bytes, not {RECORDS * (PIXELS + 1):,}")
        records = np.memmap(path, dtype=np.uint8, mode="r", shape=(RECORDS, PIXELS + 1))
    except OSError as error:
        raise broken(path, f"cannot be read ({error.strerror})") from error
    return records[:, 0], records[:, 1:]


def read_python(path: Path) -> Records:
    """Read a file of the python layout: (labels `[n]`, pixels `[n, 3072]`)."""
    try:
        labels, pixels = read_batch(read_bytes(path, 2 * RECORDS * PIXELS))
    except InputError as error:
        raise broken(path, error.reason) from error
    except PickleError as error:
        raise broken(path, f"truncated or corrupt ({error})") from error
    if labels.shape != (RECORDS,) or pixels.shape != (RECORDS, PIXELS):
        raise broken(path, f"{len(labels):,} labels and {len(pixels):,} images, not {RECORDS:,}")
    return labels, pixels


@dataclass(frozen=True)
class FileLayout:
    """One of the official layouts.

    Attributes:
        train: the training files, in order.
        test: the test file.
        read: reads one file.
    """

    train: tuple[str, ...]
    test: str
    read: Callable[[Path], Records]


BINARY = FileLayout(tuple(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin", read_binary)
PYTHON = FileLayout(tuple(f"data_batch_{n}" for n in range(1, 6)), "test_batch", read_python)


SOURCE = Source(
    folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
    mirrors=("https://www.cs.toronto.edu/~kriz",),
    archives={
        "cifar-10-binary.tar.gz": Archive(
            md5="c32a1d4ab5d03f1284b67883e8d87530",
            folder="cifar-10-batches-bin",
            files=(*BINARY.train, BINARY.test),
        ),
        "cifar-10-python.tar.gz": Archive(
            md5="c58f30108f718f92721af3b95e74349a",
            folder="cifar-10-batches-py",
            files=(*PYTHON.train, PYTHON.test),
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


class Cifar10(Data):
    """CIFAR-10: 60,000 colour photographs of 10 kinds of things, 32x32 (Krizhevsky, 2009)."""

    facts: ClassVar[Facts] = Facts(
        shape=(3, 32, 32),
        train=50_000,
        test=10_000,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        augment=True,
    )
    source: ClassVar[Source] = SOURCE

    name: Literal["cifar10"] = "cifar10"

    def open(self) -> tuple[Part, Part]:
        for folder in SOURCE.candidates(self.dir):
            for layout in (BINARY, PYTHON):
                names = (*layout.train, layout.test)
                absent = [name for name in names if not (folder / name).is_file()]
                if not absent:
                    return (
                        CifarPart([folder / name for name in layout.train], layout),
                        CifarPart([folder / layout.test], layout),
                    )
                if len(absent) < len(names):
                    raise broken(folder / absent[0], "missing, although other files of its set are present")
        raise SOURCE.missing("cifar10", self.dir, (BINARY.train[0], PYTHON.train[0]))


@dataclass(frozen=True)
class CifarPart:
    """The training or the test part; it reads one file at a time."""

    paths: Sequence[Path]
    layout: FileLayout

    def labels(self) -> Labels:
        """Read all labels."""
        return np.concatenate([self._checked(path, self.layout.read(path)[0]) for path in self.paths])

    def read(self, indices: Indices) -> Samples:
        """Read the samples at `indices` from the files that hold them."""
        images = np.empty((len(indices), *Cifar10.facts.shape), dtype=np.uint8)
        labels = np.empty(len(indices), dtype=np.int64)
        file_of = indices // RECORDS
        for number, path in enumerate(self.paths):
            here = file_of == number
            if not here.any():
                continue
            file_labels, pixels = self.layout.read(path)
            rows = indices[here] - number * RECORDS
            images[here] = pixels[rows].reshape(-1, *Cifar10.facts.shape)
            labels[here] = self._checked(path, file_labels[rows])
        return Samples(images, labels)

    def _checked(self, path: Path, labels: NDArray[np.uint8]) -> Labels:
        if labels.max(initial=0) >= Cifar10.facts.classes:
            raise broken(path, f"corrupt: a label is {labels.max()}, not 0 to {Cifar10.facts.classes - 1}")
        return labels.astype(np.int64)


def broken(path: Path, what: str) -> DataError:
    """Return the error for a file of CIFAR-10 that is incomplete, corrupt or missing from its set."""
    return SOURCE.broken("cifar10", path, what)
