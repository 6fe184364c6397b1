"""Reads the formats of official files: idx of MNIST, and the pickles of CIFAR without executing code from them."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcps.errors import InputError, text_of
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


class PickleError(Exception):
    """The bytes are not a CIFAR batch, or refer to objects that such a batch does not need."""


class _Dtype:
    """Replaces `numpy.dtype`; only its code is kept."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code.decode("ascii", "replace") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """Replaces a numpy array while it is unpickled; numpy's own unpickling is not used."""

    def __init__(self, *_: object) -> None:
        self.fields: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, column_major, data = state
        self.fields = (shape, dtype, column_major, data)

    @classmethod
    def of_buffer(cls, data: object, dtype: object, shape: object, order: object) -> _Array:
        array = cls()
        array.fields = (shape, dtype, order == "F", data)
        return array

    def pixels(self) -> NDArray[np.uint8]:
        shape, dtype, column_major, data = self.fields
        if not isinstance(dtype, _Dtype) or dtype.code != "u1":
            raise PickleError("its data are not bytes")
        if isinstance(data, str):
            data = data.encode("latin-1")
        flat = np.frombuffer(data, dtype=np.uint8)
        return flat.reshape(tuple(shape), order="F" if column_major else "C")


def _latin1(text: str, encoding: str) -> bytes:
    """Replace `_codecs.encode`, with which Python 3 represents bytes in an old protocol."""
    return text.encode("latin-1")


_ALLOWED = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _Array.of_buffer,
    ("numpy._core.numeric", "_frombuffer"): _Array.of_buffer,
    ("_codecs", "encode"): _latin1,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise PickleError(f"it refers to {module}.{name}, which no CIFAR file does") from None


def read_batch(content: bytes, label: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read one batch file: (labels `[n]`, pixels `[n, 3072]`).

    Args:
        content: the bytes of the file.
        label: the name of its list of labels.

    Raises:
        PickleError: it is truncated, corrupt or not a batch file.
    """
    try:
        batch = _Unpickler(io.BytesIO(content), encoding="latin-1").load()
        table = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        labels, pixels = np.array(table[label]), table["data"].pixels()
        if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() > 255:
            raise PickleError("its labels are not small integers")
    except PickleError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise PickleError(text_of(error)) from error
    return labels.astype(np.uint8), pixels
