"""Opens a data set by its name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcps.spec.schema import Data
from hpcps.training.catalogue import DATA_SETS, Facts
from hpcps.training.data.cifar import open_cifar
from hpcps.training.data.digits import open_digits
from hpcps.training.data.idx import open_idx
from hpcps.training.data.samples import Part, Samples
from hpcps.training.data.synthetic import open_synthetic


@dataclass(frozen=True)
class DataSet:
    """A data set whose files have been found; nothing large has been read.

    Attributes:
        facts: what is known of it.
        train: the training part.
        test: the test part.
    """

    facts: Facts
    train: Part
    test: Part

    def read_test(self, limit: int | None) -> Samples:
        """Read the test part, or its first `limit` samples."""
        size = min(self.facts.test, limit or self.facts.test)
        return self.test.read(np.arange(size, dtype=np.int64))


def open_data(data: Data) -> DataSet:
    """Find the files of a run's data set.

    Raises:
        DataError: a file is missing; the message says which, and what to do.
    """
    if data.name == "digits":
        train, test = open_digits()
    elif data.name == "synthetic":
        train, test = open_synthetic()
    elif data.name == "cifar10":
        train, test = open_cifar(data.dir)
    else:
        train, test = open_idx(data.name, data.dir)
    return DataSet(DATA_SETS[data.name], train, test)
