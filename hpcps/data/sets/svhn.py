"""SVHN, cropped digits: two MATLAB files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from hpcps.data.base import Data, Facts
from hpcps.data.files.source import Source
from hpcps.data.samples import Indices, Labels, Part, Samples
from hpcps.errors import text_of

TRAIN, TEST = "train_32x32.mat", "test_32x32.mat"


class Svhn(Data):
    """SVHN: 99,289 digits of house numbers, 32x32, in colour (Netzer and others, 2011), without the extra images."""

    facts: ClassVar[Facts] = Facts(
        shape=(3, 32, 32), train=73_257, test=26_032, mean=(0.4377, 0.4438, 0.4728), std=(0.1980, 0.2010, 0.1970)
    )
    source: ClassVar[Source] = Source(
        folders=("svhn",),
        mirrors=("http://ufldl.stanford.edu/housenumbers",),
        files={TRAIN: "e26dedcc434d2e4c54c9b2d4a06d8373", TEST: "eb5a983be6a315427106f1b164d9cef3"},
    )

    name: Literal["svhn"] = "svhn"

    def open(self) -> tuple[Part, Part]:
        _, (train, test) = self.source.find(self.name, self.dir, [(TRAIN, TEST)])
        return SvhnPart(self, train, self.facts.train), SvhnPart(self, test, self.facts.test)


@dataclass(frozen=True)
class SvhnPart:
    """The training or the test part: one file with images and labels, of which 10 is the digit 0."""

    data: Svhn
    path: Path
    size: int

    @property
    def paths(self) -> tuple[Path, ...]:
        """Its file."""
        return (self.path,)

    def labels(self) -> Labels:
        """Read all labels."""
        labels = self._read("y")[:, 0].astype(np.int64)
        if labels.min() < 1 or labels.max() > self.data.facts.classes:
            wrong = labels.min() if labels.min() < 1 else labels.max()
            raise self.data.broken(self.path, f"corrupt: a label is {wrong}, not 1 to {self.data.facts.classes}")
        return labels % self.data.facts.classes

    def read(self, indices: Indices) -> Samples:
        """Read the samples at `indices`; the file is read as a whole, because it is compressed."""
        images = np.moveaxis(self._read("X")[..., indices], (3, 2), (0, 1))
        return Samples(np.ascontiguousarray(images), self.labels()[indices])

    def _read(self, variable: str) -> NDArray[Any]:
        """Read one variable, whose shape and type are checked before its values are uncompressed."""
        from scipy.io import loadmat, whosmat

        channels, height, width = self.data.facts.shape
        expected = {"X": (height, width, channels, self.size), "y": (self.size, 1)}
        try:
            found = {name: shape for name, shape, kind in whosmat(self.path) if kind in ("uint8", "double")}
            values: NDArray[Any] | None = None
            if found == expected:
                values = loadmat(self.path, variable_names=[variable])[variable]
        except OSError as error:
            raise self.data.broken(self.path, f"cannot be read ({error.strerror or error})") from error
        except Exception as error:  # a damaged file can raise anything
            raise self.data.broken(self.path, f"truncated or corrupt ({text_of(error)})") from error
        if values is None:
            raise self.data.broken(self.path, f"not a file of svhn: it holds {found}, not {expected}")
        return values
