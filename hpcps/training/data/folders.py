"""Where a data set's official files are looked for, and what is said when they are not right."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcps.errors import DataError

FOLDERS = {
    "cifar10": ("cifar-10-batches-bin", "cifar-10-batches-py"),
    "mnist": ("mnist", "MNIST/raw"),
    "fashion_mnist": ("fashion_mnist", "FashionMNIST/raw"),
}
"""The sub-folders of each data set; `hpcps data` writes to the first."""


def data_root(directory: str | Path | None) -> Path:
    """Return the folder with the data sets: `data.dir`, else `$HPCPS_DATA`, else `./data`."""
    return Path(directory or os.environ.get("HPCPS_DATA") or "data").expanduser()


def candidates(name: str, directory: str | Path | None) -> Iterator[Path]:
    """Yield the existing folders that may hold the files, the likelier first.

    The folder itself may hold them, except those of MNIST and Fashion-MNIST in a folder that serves all runs
    (`$HPCPS_DATA`): their files have the same names, and one would be taken for the other.
    """
    root = data_root(directory)
    places = [root / folder for folder in FOLDERS[name]]
    if directory or name == "cifar10":
        places.append(root)
    return (place for place in places if place.is_dir())


def missing(name: str, directory: str | Path | None, looked_for: Sequence[str]) -> DataError:
    """Return the error for a data set that is nowhere."""
    root = data_root(directory)
    return DataError(
        f"no {name} in {root} or its sub-folders {' and '.join(FOLDERS[name])} "
        f"(looked for {' and '.join(looked_for)}): "
        f"get it with `hpcps data {name} --dir {root}`, or say where it is with data.dir or $HPCPS_DATA"
    )


def broken(name: str, path: Path, what: str) -> DataError:
    """Return the error for a file that is there but not right."""
    folder = path.parent
    for sub in FOLDERS[name]:
        if folder.parts[-len(Path(sub).parts) :] == Path(sub).parts:
            folder = folder.parents[len(Path(sub).parts) - 1]
            break
    return DataError(f"{path}: {what}; replace it with `hpcps data {name} --dir {folder}`")
