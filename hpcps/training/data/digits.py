"""The 1,797 handwritten 8x8 digits of scikit-learn, read without importing it (which takes a second)."""

from __future__ import annotations

import gzip
import importlib.util
import zlib
from pathlib import Path

import numpy as np

from hpcps.errors import DataError
from hpcps.training.catalogue import DATA_SETS
from hpcps.training.data.samples import InMemory, Part, Samples

REINSTALL = "repair it with `pip install --force-reinstall scikit-learn`"


def digits_file() -> Path:
    """Find scikit-learn's data file.

    Raises:
        DataError: scikit-learn is not installed, or lacks it.
    """
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise DataError(
            "the digits come with scikit-learn, which is not installed: `pip install scikit-learn`, "
            "or choose another data.name (`synthetic` needs nothing)"
        )
    path = Path(next(iter(found.submodule_search_locations)), "datasets", "data", "digits.csv.gz")
    if not path.is_file():
        raise DataError(f"{path}: missing; {REINSTALL}")
    return path


def open_digits() -> tuple[Part, Part]:
    """Read the digits: (training part of 1,437, test part of 360).

    The file goes writer by writer, so it is shuffled before it is cut, always alike: in the order of the raw
    output of Philox with seed 0, a stream that numpy promises never to change.
    """
    path, facts = digits_file(), DATA_SETS["digits"]
    total = facts.train + facts.test
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            lines = file.readlines()
        if len(lines) != total:
            raise ValueError(f"{len(lines)} lines, not {total}")
        table = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
        if table.shape != (total, 65) or table[:, :64].max() > facts.levels or table[:, 64].max() >= facts.classes:
            raise ValueError(f"not {total} digits of 64 pixels and a label")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system; gzip's own have no number
            raise DataError(f"{path}: {error.strerror}") from error
        raise DataError(f"{path}: corrupt ({error}); {REINSTALL}") from error
    order = np.argsort(np.random.Philox(0).random_raw(total), kind="stable")
    samples = Samples(table[:, :64].reshape(-1, *facts.shape), table[:, 64].astype(np.int64))
    return InMemory(samples.take(order[: facts.train])), InMemory(samples.take(order[facts.train :]))
