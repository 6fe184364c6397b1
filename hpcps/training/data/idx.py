"""MNIST and Fashion-MNIST: four idx files, compressed or plain."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcps.training.catalogue import DATA_SETS
from hpcps.training.data import folders
from hpcps.training.data.samples import Indices, Labels, Part, Samples

TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


@contextmanager
def _told(name: str, path: Path) -> Iterator[None]:
    """Turn whatever reading a damaged file raises into a message that names it."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise folders.broken(name, path, f"truncated or corrupt ({error})") from error
    except OSError as error:
        raise folders.broken(name, path, f"cannot be read ({error.strerror})") from error


def read_idx(name: str, path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read an idx file of bytes; a plain one is mapped, and read from disk only where it is used.

    Args:
        name: the data set.
        path: the file; compressed if it ends in `.gz`.
        shape: what its header must say.
    """
    header = b"\0\0\x08" + bytes([len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
    expected = len(header) + int(np.prod(shape))
    with _told(name, path):
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                content = np.frombuffer(file.read(), dtype=np.uint8)
        elif path.stat().st_size == 0:
            content = np.empty(0, dtype=np.uint8)
        else:
            content = np.memmap(path, dtype=np.uint8, mode="r")
    found = content[: len(header)].tobytes()
    if found != header[: len(found)]:
        raise folders.broken(name, path, f"corrupt: its header is not that of {shape} bytes")
    if len(content) != expected:
        truncated = "truncated" if len(content) < expected else "corrupt"
        raise folders.broken(name, path, f"{truncated}: {len(content):,} bytes, not {expected:,}")
    return content[len(header) :].reshape(shape)


@dataclass(frozen=True)
class IdxPart:
    """The training or the test part: a file of images and one of labels."""

    name: str
    paths: tuple[Path, Path]
    size: int

    def labels(self) -> Labels:
        """Read all labels."""
        labels = read_idx(self.name, self.paths[1], (self.size,))
        classes = DATA_SETS[self.name].classes
        if labels.max() >= classes:
            raise folders.broken(
                self.name, self.paths[1], f"corrupt: a label is {labels.max()}, not 0 to {classes - 1}"
            )
        return labels.astype(np.int64)

    def read(self, indices: Indices) -> Samples:
        """Read the samples at `indices`."""
        channels, height, width = DATA_SETS[self.name].shape
        images = read_idx(self.name, self.paths[0], (self.size, height, width))[indices]
        return Samples(images.reshape(-1, channels, height, width), self.labels()[indices])


def open_idx(name: str, directory: str | None) -> tuple[Part, Part]:
    """Find the four files: (training part, test part).

    Raises:
        DataError: there are none, or some of them only.
    """
    facts = DATA_SETS[name]
    for folder in folders.candidates(name, directory):
        present: dict[str, Path] = {}
        for file in (*TRAIN, *TEST):
            for path in (folder / file, folder / f"{file}.gz"):
                if path.is_file():
                    present.setdefault(file, path)
        if present:
            absent = [file for file in (*TRAIN, *TEST) if file not in present]
            if absent:
                raise folders.broken(name, folder / absent[0], "missing, though others of its set are there")
            return (
                IdxPart(name, (present[TRAIN[0]], present[TRAIN[1]]), facts.train),
                IdxPart(name, (present[TEST[0]], present[TEST[1]]), facts.test),
            )
    raise folders.missing(name, directory, (f"{TRAIN[0]}(.gz)",))
