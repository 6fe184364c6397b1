"""CIFAR-10 in its two official layouts: five training files and a test file of 10,000 records each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcps.training.catalogue import DATA_SETS
from hpcps.training.data import folders
from hpcps.training.data.pickles import PickleError, read_batch
from hpcps.training.data.samples import Indices, Labels, Part, Samples

NAME = "cifar10"
FACTS = DATA_SETS[NAME]
PIXELS = 3 * 32 * 32
RECORDS = 10_000
"""Records of every file."""

Records = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def read_binary(path: Path) -> Records:
    """Map a file of the binary layout: (labels `[n]`, pixels `[n, 3072]`), read from disk only where they are used."""
    try:
        size = path.stat().st_size
        if size != RECORDS * (PIXELS + 1):
            truncated = "truncated" if size < RECORDS * (PIXELS + 1) else "not a CIFAR-10 file"
            raise folders.broken(NAME, path, f"{truncated}: {size:,} bytes, not {RECORDS * (PIXELS + 1):,}")
        records = np.memmap(path, dtype=np.uint8, mode="r", shape=(RECORDS, PIXELS + 1))
    except OSError as error:
        raise folders.broken(NAME, path, f"cannot be read ({error.strerror})") from error
    return records[:, 0], records[:, 1:]


def read_python(path: Path) -> Records:
    """Read a file of the python layout: (labels `[n]`, pixels `[n, 3072]`)."""
    try:
        labels, pixels = read_batch(path.read_bytes())
    except OSError as error:
        raise folders.broken(NAME, path, f"cannot be read ({error.strerror})") from error
    except PickleError as error:
        raise folders.broken(NAME, path, f"truncated or corrupt ({error})") from error
    if labels.shape != (RECORDS,) or pixels.shape != (RECORDS, PIXELS):
        raise folders.broken(NAME, path, f"{len(labels):,} labels and {len(pixels):,} images, not {RECORDS:,}")
    return labels, pixels


@dataclass(frozen=True)
class Layout:
    """One of the official layouts.

    Attributes:
        train: the training files, in order.
        test: the test file.
        read: reads one file.
    """

    train: tuple[str, ...]
    test: str
    read: Callable[[Path], Records]


BINARY = Layout(tuple(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin", read_binary)
PYTHON = Layout(tuple(f"data_batch_{n}" for n in range(1, 6)), "test_batch", read_python)


@dataclass(frozen=True)
class CifarPart:
    """The training or the test part; one file at a time is read."""

    paths: Sequence[Path]
    layout: Layout

    def labels(self) -> Labels:
        """Read all labels."""
        return np.concatenate([self._checked(path, self.layout.read(path)[0]) for path in self.paths])

    def read(self, indices: Indices) -> Samples:
        """Read the samples at `indices`, from the files that have any of them."""
        images = np.empty((len(indices), *FACTS.shape), dtype=np.uint8)
        labels = np.empty(len(indices), dtype=np.int64)
        file_of = indices // RECORDS
        for number, path in enumerate(self.paths):
            here = file_of == number
            if not here.any():
                continue
            file_labels, pixels = self.layout.read(path)
            rows = indices[here] - number * RECORDS
            images[here] = pixels[rows].reshape(-1, *FACTS.shape)
            labels[here] = self._checked(path, file_labels[rows])
        return Samples(images, labels)

    def _checked(self, path: Path, labels: NDArray[np.uint8]) -> Labels:
        if labels.max(initial=0) >= FACTS.classes:
            raise folders.broken(NAME, path, f"corrupt: a label is {labels.max()}, not 0 to {FACTS.classes - 1}")
        return labels.astype(np.int64)


def open_cifar(directory: str | None) -> tuple[Part, Part]:
    """Find the files in either layout: (training part, test part).

    Raises:
        DataError: there are none, or some of them only.
    """
    for folder in folders.candidates(NAME, directory):
        for layout in (BINARY, PYTHON):
            names = (*layout.train, layout.test)
            absent = [name for name in names if not (folder / name).is_file()]
            if not absent:
                return (
                    CifarPart([folder / name for name in layout.train], layout),
                    CifarPart([folder / layout.test], layout),
                )
            if len(absent) < len(names):
                raise folders.broken(NAME, folder / absent[0], "missing, though others of its set are there")
    raise folders.missing(NAME, directory, (BINARY.train[0], PYTHON.train[0]))
