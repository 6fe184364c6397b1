"""Where the official files of a data set are: addresses, folders, and their published MD5 checksums."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpcps.errors import DataError


def data_root(directory: str | Path | None) -> Path:
    """Return the folder of the data sets: `data.dir`, else `$HPCPS_DATA`, else `./data`."""
    return Path(directory or os.environ.get("HPCPS_DATA") or "data").expanduser()


@dataclass(frozen=True, kw_only=True)
class Archive:
    """An archive of a data set.

    Attributes:
        md5: its checksum.
        folder: the folder to which it unpacks.
        files: the files in it that the data set uses.
    """

    md5: str
    folder: str
    files: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Source:
    """The source of a data set.

    Attributes:
        folders: the sub-folders, in the folder for all data sets, that may hold the files; `hpcps data` writes to the
            first.
        unmistakable: whether no other data set has files with the same names.
        mirrors: the addresses of folders that hold the files, in the order in which to try them.
        archives: the archives by file name; one of them is enough, and the first is downloaded.
        files: single files and their checksums; all are downloaded if there are no archives.
    """

    folders: tuple[str, ...]
    unmistakable: bool = True
    mirrors: tuple[str, ...]
    archives: dict[str, Archive] = field(default_factory=dict)
    files: dict[str, str]

    def find(
        self, name: str, directory: str | Path | None, layouts: Sequence[Sequence[str]], endings: Sequence[str] = ("",)
    ) -> tuple[int, list[Path]]:
        """Find the files of a data set in the first folder that has any of them.

        Args:
            name: the name of the data set.
            directory: `data.dir`.
            layouts: the names of all files, in each layout in which the set is published.
            endings: what may follow each name, the preferred ending first.

        Returns:
            The number of the layout, and its files.

        Raises:
            DataError: there are no files, or a file of a layout is missing.
        """
        for folder in self.candidates(directory):
            for number, names in enumerate(layouts):
                paths = [[folder / f"{file}{ending}" for ending in endings] for file in names]
                found = [next(filter(Path.is_file, alike), None) for alike in paths]
                if any(found) and None in found:
                    absent = folder / names[found.index(None)]
                    raise self.broken(name, absent, "missing, although other files of its set are present")
                if any(found):
                    return number, [path for path in found if path]
        either = "".join(f"({ending})" for ending in endings if ending)
        root = data_root(directory)
        raise DataError(
            f"no {name} in {root} or its sub-folders {' and '.join(self.folders)} "
            f"(looked for {' and '.join(f'{names[0]}{either}' for names in layouts)}): "
            f"get it with `hpcps data {name} --dir {root}`, or say where it is with data.dir or $HPCPS_DATA"
        )

    def candidates(self, directory: str | Path | None) -> Iterator[Path]:
        """Yield the existing folders that may hold the files, in the order in which to search them.

        The folder of the data sets itself may hold them. This does not apply to MNIST and Fashion-MNIST in a folder for
        all runs (`$HPCPS_DATA`), because their files have the same names and cannot be told apart.
        """
        root = data_root(directory)
        places = [root / folder for folder in self.folders]
        if directory or self.unmistakable:
            places.append(root)
        return (place for place in places if place.is_dir())

    def broken(self, name: str, path: Path, what: str) -> DataError:
        """Return the error for a file that is incomplete, corrupt or missing from its set."""
        folder = path.parent
        for sub in self.folders:
            if folder.parts[-len(Path(sub).parts) :] == Path(sub).parts:
                folder = folder.parents[len(Path(sub).parts) - 1]
                break
        return DataError(f"{path}: {what}; replace it with `hpcps data {name} --dir {folder}`")
