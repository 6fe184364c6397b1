"""Downloads and verifies the official files of a data set; runs on a login node, because a run downloads nothing."""

from __future__ import annotations

import hashlib
import http.client
import os
import tarfile
import urllib.request
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

import numpy as np

from hpcps.data.files.source import Archive, Source
from hpcps.errors import DataError
from hpcps.inputs import MiB, read_text, regular

if TYPE_CHECKING:
    from hpcps.data.base import Data

CHUNK = 1 << 20
SUMS = "MD5SUMS"
"""The file of checksums next to files from an archive, whose own checksums are not published; `md5sum -c` reads it."""

Report = Callable[[str, int, int], None]
"""Called during a download with the file, the bytes so far and all bytes (0: unknown)."""

TIMEOUT = 60.0
"""Seconds without received bytes after which the next mirror is tried."""


def fetch(source: Source, root: Path, mirror: str | None, report: Report) -> None:
    """Download the files that are missing in `root` or corrupt, verify them and unpack them.

    An archive that is already in `root` is used if its checksum is right.

    Args:
        source: the source of the data set.
        root: the folder for all data sets; the files are written to a sub-folder.
        mirror: the address of a folder to download from instead of the official ones; the checksums are the same.
        report: called with the progress.

    Raises:
        DataError: no mirror can be reached, a checksum is wrong, or the folder cannot be written.
    """
    mirrors = [mirror] if mirror else source.mirrors
    try:
        root.mkdir(parents=True, exist_ok=True)
        if source.archives:
            for file, archive in source.archives.items():
                if _intact(root / file, archive.md5):
                    return _unpack(root / file, archive)
            file, archive = next(iter(source.archives.items()))
            _download(root / file, archive.md5, mirrors, report)
            _unpack(root / file, archive)
            (root / file).unlink()
        else:
            folder = root / source.folders[0]
            folder.mkdir(parents=True, exist_ok=True)
            for file, md5 in source.files.items():
                if not _intact(folder / file, md5):
                    _download(folder / file, md5, mirrors, report)
                # An uncompressed file is preferred to this one, and it may be the corrupt one.
                (folder / file).with_suffix("").unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{error.filename or root}: {error.strerror}; choose another folder with --dir") from error


def _intact(path: Path, md5: str) -> bool:
    return path.is_file() and md5_of(path) == md5


def _download(path: Path, md5: str, mirrors: Sequence[str], report: Report) -> None:
    """Download to a temporary file next to `path`, and rename it if its checksum is right."""
    partial = path.with_name(f"{path.name}.part")
    failures = []
    for mirror in mirrors:
        address = f"{mirror.rstrip('/')}/{path.name}"
        try:
            response = urllib.request.urlopen(address, timeout=TIMEOUT)
        except (OSError, http.client.HTTPException, ValueError) as error:
            failures.append(f"{address}: {error}")
            continue
        with response, partial.open("wb") as out:
            failure = _copy(response, out, int(response.headers.get("Content-Length") or 0), path.name, report)
        if not failure:
            found = md5_of(partial)
            if found == md5:
                os.replace(partial, path)
                return
            failure = f"wrong checksum: its MD5 is {found}, not {md5}"
        failures.append(f"{address}: {failure}")
    raise DataError(
        "\n  ".join([f"cannot download {path.name}:", *failures])
        + f"\nTry again later, or use another address with --from; or download {path.name} on another machine, copy it "
        f"to {path.parent}, and run this again"
    )


def _copy(response: IO[bytes], out: IO[bytes], total: int, file: str, report: Report) -> str:
    """Copy a response to a file; return the failure of the connection, or an empty text."""
    done = 0
    while True:
        try:
            chunk = response.read(CHUNK)
        except (OSError, http.client.HTTPException) as error:
            return f"interrupted after {done:,} bytes ({error})"
        if not chunk:
            break
        out.write(chunk)
        done += len(chunk)
        report(file, done, total)
    return f"interrupted after {done:,} of {total:,} bytes" if done < total else ""


def _unpack(path: Path, archive: Archive) -> None:
    """Extract the files that the data set uses from an archive, and nothing else; each is renamed when complete."""
    wanted = set(archive.files)
    folder = path.parent / archive.folder
    folder.mkdir(exist_ok=True)
    sums = []
    try:
        with tarfile.open(regular(path)) as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                content = tar.extractfile(member) if member.isfile() and name in wanted else None
                if content is None:
                    continue
                partial = folder / f"{name}.part"
                with content, partial.open("wb") as out:
                    while chunk := content.read(CHUNK):
                        out.write(chunk)
                sums.append(f"{md5_of(partial)}  {name}\n")
                os.replace(partial, folder / name)
                wanted.remove(name)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be unpacked ({error}); delete it and run this again") from error
    if wanted:
        raise DataError(f"{path}: lacks {', '.join(sorted(wanted))}; delete it and run this again")
    (folder / SUMS).write_text("".join(sums))


def md5_of(path: Path) -> str:
    """Return the MD5 of a file, which is the checksum that the official sets publish."""
    digest = hashlib.md5(usedforsecurity=False)
    with regular(path).open("rb") as file:
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
                raise data.broken(path, f"not the official file: its MD5 is not {expected}")
            lines.append(f"{path}: {'checksum right' if expected else 'readable (its checksum is not known)'}")
    return lines or [f"{data.name}: readable, nothing to download"]


def _recorded(folder: Path) -> dict[str, str]:
    """Return the checksums that were written when an archive was unpacked: the MD5 by file."""
    path = folder / SUMS
    if not path.is_file():
        return {}
    pairs = (line.partition("  ") for line in read_text(path, MiB).splitlines())
    return {name: md5 for md5, _, name in pairs}
