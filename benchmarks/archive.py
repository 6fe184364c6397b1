"""Packs folders into archives of a limited size, and unpacks them: to carry results from one machine to another.

`python benchmarks/archive.py FOLDER RESULTS` unpacks the archives of a folder into a folder of results.
"""

from __future__ import annotations

import gzip
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

PART = 15 << 20
"""The maximum size of an archive, in bytes."""
PARTS = 8
"""The maximum number of archives."""
WHOLE = 60 << 20
"""The maximum size of all archives together, in bytes."""


def pack(
    groups: Sequence[tuple[str, Sequence[Path]]], root: Path, folder: Path, *, part: int = PART, whole: int = WHOLE
) -> list[str]:
    """Pack groups of files into `NAME.tar.gz.0`, `NAME.tar.gz.1`, …, in their order, as far as there is room.

    Earlier archives in the folder are removed.

    Args:
        groups: a name without a dot, and files and folders below `root`, of each group.
        root: the folder that the names in the archives start from.
        folder: the folder for the archives.
        part: the maximum size of an archive, in bytes.
        whole: the maximum size of all archives together.

    Returns:
        The names of the groups for which there was no room.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in _parts(folder):
        old.unlink()
    room, left_out = PARTS, []
    for name, paths in groups:
        with tempfile.TemporaryFile() as file:
            with tarfile.open(fileobj=file, mode="w:gz") as archive:
                for path in paths:
                    archive.add(path, path.relative_to(root))
            needed = -(-file.tell() // part)
            if needed > room or file.tell() > whole:
                left_out.append(name)
                continue
            whole -= file.tell()
            file.seek(0)
            for number in range(needed):
                (folder / f"{name}.tar.gz.{number}").write_bytes(file.read(part))
            room -= needed
    return left_out


def unpack(folder: Path, root: Path) -> list[str]:
    """Unpack all archives of a folder below `root`, over files that are there; return the names of the groups.

    A group whose archives did not all come along is left out, and that is said.
    """
    names = []
    for name in sorted({path.name.partition(".")[0] for path in _parts(folder)}):
        with tempfile.TemporaryFile() as file:
            for path in sorted(folder.glob(f"{name}.tar.gz.*")):
                file.write(path.read_bytes())
            file.seek(0)
            try:
                with gzip.open(file) as whole:
                    while whole.read(1 << 20):
                        pass
            except (EOFError, OSError, zlib.error) as error:
                print(f"{name} is left out, because its archives cannot be read: {error}")
                continue
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r:gz") as archive:
                # Python before 3.11.4 has no filters.
                archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
                archive.extractall(root)
            names.append(name)
    return names


def _parts(folder: Path) -> Iterator[Path]:
    return folder.glob("*.tar.gz.[0-9]")


if __name__ == "__main__":
    print("unpacked", *unpack(Path(sys.argv[1]), Path(sys.argv[2])))
