"""Samples and labels as the files hold them, not normalised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Inputs = NDArray[np.uint8] | NDArray[np.float32]
Labels = NDArray[np.int64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Samples:
    """Some samples of a data set.

    Attributes:
        images: `[n, *shape]`: bytes (uint8), which are divided by `Facts.levels`, or float32 of any shape.
        labels: `[n]` int64; `[n, targets]` if a sample has several (see `Facts.targets`).
    """

    images: Inputs
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Indices) -> Samples:
        """Copy the samples at `indices`."""
        return Samples(self.images[indices], self.labels[indices])


class Part(Protocol):
    """The training or the test part of a data set.

    If it has an attribute `paths`, `hpcps data --check` verifies these files.
    """

    def labels(self) -> Labels:
        """Read the label of each sample by which splits assign it, `[n]`, in file order."""

    def read(self, indices: Indices) -> Samples:
        """Read the samples at these indices in file order, and little more than these."""


@dataclass(frozen=True)
class InMemory:
    """A part that is small enough to be in memory."""

    samples: Samples

    def labels(self) -> Labels:
        """Return all labels."""
        return self.samples.labels

    def read(self, indices: Indices) -> Samples:
        """Copy the samples at `indices`."""
        return self.samples.take(indices)
