"""Verifies the files of a data set where they are."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from hpcps.spec.schema import Data
from hpcps.training.data import cifar, folders, idx
from hpcps.training.data.open import open_data
from hpcps.training.data.sources import SOURCES

CHUNK = 1 << 20
SUMS = "MD5SUMS"
"""Written beside the files of an archive, whose own checksums are not published; for `md5sum -c` too."""


def md5_of(path: Path) -> str:
    """Return the MD5 of a file; the official sets are published with it."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def verify(data: Data) -> list[str]:
    """Open every file of a data set, compare the checksums that are known, and return a line about each.

    Raises:
        DataError: a file is missing, truncated, corrupt or not the official one.
    """
    opened = open_data(data)
    lines = []
    for part in (opened.train, opened.test):
        part.labels()
        part.read(np.zeros(1, dtype=np.int64))
        for path in part.paths if isinstance(part, cifar.CifarPart | idx.IdxPart) else ():
            expected = _recorded(path.parent).get(path.name) or SOURCES[data.name].files.get(path.name)
            if expected and md5_of(path) != expected:
                raise folders.broken(data.name, path, f"not the official file: its MD5 is not {expected}")
            lines.append(f"{path}: {'checksum right' if expected else 'readable (no checksum is known for it)'}")
    return lines or [f"{data.name}: readable, nothing to download"]


def _recorded(folder: Path) -> dict[str, str]:
    """Return the checksums that were written when an archive was unpacked: MD5 by file."""
    path = folder / SUMS
    if not path.is_file():
        return {}
    pairs = (line.partition("  ") for line in path.read_text().splitlines())
    return {name: md5 for md5, _, name in pairs}
