"""The folders in which a data set's official files are searched, and the errors for missing and corrupt files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcps.data.files.source import Source
from hpcps.errors import DataError


def data_root(directory: str | Path | None) -> Path:
    """Return the folder of the data sets: `data.dir`, else `$HPCPS_DATA`, else `./data`."""
    return Path(directory or os.environ.get("HPCPS_DATA") or "data").expanduser()


def candidates(source: Source, directory: str | Path | None) -> Iterator[Path]:
    """Yield the existing folders that may hold the files, in the order in which to search them.

    The folder of the data sets itself may hold them. This does not apply to MNIST and Fashion-MNIST in a folder for all
    runs (`$HPCPS_DATA`), because their files have the same names and cannot be told apart.
    """
    root = data_root(directory)
    places = [root / folder for folder in source.folders]
    if directory or source.unmistakable:
        places.append(root)
    return (place for place in places if place.is_dir())


def missing(name: str, source: Source, directory: str | Path | None, looked_for: Sequence[str]) -> DataError:
    """Return the error for a data set that is not found."""
    root = data_root(directory)
    return DataError(
        f"no {name} in {root} or its sub-folders {' and '.join(source.folders)} "
        f"(looked for {' and '.join(looked_for)}): "
        f"get it with `hpcps data {name} --dir {root}`, or say where it is with data.dir or $HPCPS_DATA"
    )


def broken(name: str, source: Source, path: Path, what: str) -> DataError:
    """Return the error for a file that is incomplete, corrupt or missing from its set."""
    folder = path.parent
    for sub in source.folders:
        if folder.parts[-len(Path(sub).parts) :] == Path(sub).parts:
            folder = folder.parents[len(Path(sub).parts) - 1]
            break
    return DataError(f"{path}: {what}; replace it with `hpcps data {name} --dir {folder}`")
