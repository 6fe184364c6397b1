"""Images and labels as they lie in the files: bytes, not yet normalised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """Some samples of a data set.

    Attributes:
        images: `[n, c, h, w]` uint8.
        labels: `[n]` int64.
    """

    images: Pixels
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Indices) -> Samples:
        """Copy the samples at `indices`."""
        return Samples(self.images[indices], self.labels[indices])


class Part(Protocol):
    """The training or the test part of a data set; opening it reads nothing that is large."""

    def labels(self) -> Labels:
        """Read all labels, in file order."""

    def read(self, indices: Indices) -> Samples:
        """Read the samples at these places, counted in file order, and no more than they need."""


@dataclass(frozen=True)
class InMemory:
    """A part small enough to be held whole."""

    samples: Samples

    def labels(self) -> Labels:
        """Return all labels."""
        return self.samples.labels

    def read(self, indices: Indices) -> Samples:
        """Copy the samples at `indices`."""
        return self.samples.take(indices)
