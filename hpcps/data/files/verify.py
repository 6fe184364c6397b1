"""Verifies the files of a data set."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hpcps.data.files import folders
from hpcps.inputs import MiB, read_text

if TYPE_CHECKING:
    from hpcps.data.base import Data

CHUNK = 1 << 20
SUMS = "MD5SUMS"
"""The file of checksums next to files from an archive, whose own checksums are not published; `md5sum -c` reads it."""


def md5_of(path: Path) -> str:
    """Return the MD5 of a file, which is the checksum that the official sets publish."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def verify(data: Data) -> list[str]:
    """Open every file of a data set, compare the known checksums, and return a line about each file.

    Raises:
        DataError: a file is missing, truncated, corrupt or not the official one.
    """
    lines = []
    for part in data.open():
        part.labels()
        part.read(np.zeros(1, dtype=np.int64))
        for path in getattr(part, "paths", ()) if data.source else ():
            assert data.source is not None
            expected = _recorded(path.parent).get(path.name) or data.source.files.get(path.name)
            if expected and md5_of(path) != expected:
                raise folders.broken(data.name, data.source, path, f"not the official file: its MD5 is not {expected}")
            lines.append(f"{path}: {'checksum right' if expected else 'readable (its checksum is not known)'}")
    return lines or [f"{data.name}: readable, nothing to download"]


def _recorded(folder: Path) -> dict[str, str]:
    """Return the checksums that were written when an archive was unpacked: the MD5 by file."""
    path = folder / SUMS
    if not path.is_file():
        return {}
    pairs = (line.partition("  ") for line in read_text(path, MiB).splitlines())
    return {name: md5 for md5, _, name in pairs}
