"""Reads idx files, the format of MNIST, compressed or uncompressed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hpcps.errors import InputError
from hpcps.inputs import read_gzip


def read_idx(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read an idx file of bytes; an uncompressed file is mapped, and only the used parts are read from disk.

    Args:
        path: the file; compressed if its name ends in `.gz`.
        shape: the shape that its header must have.

    Raises:
        InputError: the file cannot be read, or is not of that shape.
    """
    header = b"\0\0\x08" + bytes([len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape)
    expected = len(header) + int(np.prod(shape))
    try:
        if path.suffix == ".gz":
            content: NDArray[np.uint8] = np.frombuffer(read_gzip(path, expected), dtype=np.uint8)
        elif path.stat().st_size == 0:
            content = np.empty(0, dtype=np.uint8)
        else:
            content = np.memmap(path, dtype=np.uint8, mode="r")
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror})") from error
    found = content[: len(header)].tobytes()
    if found != header[: len(found)]:
        raise InputError(path, f"corrupt: its header is not that of {shape} bytes")
    if len(content) != expected:
        truncated = "truncated" if len(content) < expected else "corrupt"
        raise InputError(path, f"{truncated}: {len(content):,} bytes, not {expected:,}")
    return content[len(header) :].reshape(shape)
