"""The 1,797 handwritten 8x8 digits of scikit-learn, read without importing it, because that takes a second."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from hpcps.data.base import Data, Facts
from hpcps.data.samples import InMemory, Part, Samples
from hpcps.errors import DataError, InputError
from hpcps.inputs import MiB, read_gzip

REINSTALL = "repair it with `pip install --force-reinstall scikit-learn`"


def digits_file() -> Path:
    """Find scikit-learn's data file.

    Raises:
        DataError: scikit-learn is not installed, or has no such file.
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


@lru_cache(maxsize=1)
def _table(path: Path, version: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Read the file, `[samples, 64 pixels and a label]`, once for all roles of a process; `version` says if it changed.

    Raises:
        InputError: it cannot be read.
        ValueError: it has other contents.
    """
    facts = Digits.facts
    total = facts.train + facts.test
    lines = read_gzip(path, MiB).decode("ascii").splitlines()
    if len(lines) != total:
        raise ValueError(f"{len(lines)} lines, not {total}")
    table = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    if table.shape != (total, 65) or table[:, :64].max() > facts.levels or table[:, 64].max() >= facts.classes:
        raise ValueError(f"not {total} digits of 64 pixels and a label")
    table.flags.writeable = False
    return table


class Digits(Data):
    """The 1,797 handwritten digits of scikit-learn, 8x8, grey (Alpaydin and Kaynak, 1998)."""

    facts: ClassVar[Facts] = Facts(shape=(1, 8, 8), train=1_437, test=360, levels=16, mean=(0.0,))

    name: Literal["digits"] = "digits"

    def open(self) -> tuple[Part, Part]:
        path, facts = digits_file(), self.facts
        try:
            state = path.stat()
            table = _table(path, (state.st_ino, state.st_size, state.st_mtime_ns))
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}") from error
        except InputError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno is not None:  # gzip's errors have none
                raise DataError(f"{path}: {error.__cause__.strerror}") from error
            raise DataError(f"{path}: corrupt ({error.reason}); {REINSTALL}") from error
        except ValueError as error:
            raise DataError(f"{path}: corrupt ({error}); {REINSTALL}") from error
        # The file is sorted by writer, so the samples are shuffled before they are split. The order is that of the raw
        # output of Philox with seed 0, which numpy guarantees never to change.
        order = np.argsort(np.random.Philox(0).random_raw(len(table)), kind="stable")
        samples = Samples(table[:, :64].reshape(-1, *facts.shape), table[:, 64].astype(np.int64))
        return InMemory(samples.take(order[: facts.train])), InMemory(samples.take(order[facts.train :]))
