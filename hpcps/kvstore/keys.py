"""The placement of values on servers, and the type codes of requests; both as in MXNet's KVStore."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

SPLIT_FROM = 1_000_000
"""Arrays with at least this number of elements are split over all servers (`MXNET_KVSTORE_BIGARRAY_BOUND` in MXNet)."""

# MXNet's codes of types; the head of a request contains one.
_CODES = {"float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int8": 5, "int64": 6}
_SPREAD = 9973
_ALL_KEYS = 2**64 - 1


@dataclass(frozen=True)
class ArrayPart:
    """The contiguous elements of an array on one server."""

    server: int
    key: int
    start: int
    stop: int


def range_start(server: int, servers: int) -> int:
    """Return the first key in the range of a server."""
    return _ALL_KEYS // servers * server


def key_of(key: object, servers: int) -> int:
    """Return a key as an integer in the range of a server.

    Raises:
        ValueError: the key is not a whole number in this range.
    """
    end = range_start(1, servers)
    if not isinstance(key, Integral) or not 0 <= int(key) < end:
        raise ValueError(f"a key is a whole number from 0 to {end - 1}, not {key!r}")
    return int(key)


def parts(key: int, size: int, servers: int, split_from: int = SPLIT_FROM) -> list[ArrayPart]:
    """Return the servers of the elements of an array.

    Args:
        key: the key of the array, as the user numbers it.
        size: its number of elements.
        servers: the number of servers.
        split_from: a smaller array is on one server.
    """
    if size < split_from:
        server = key * _SPREAD % servers
        return [ArrayPart(server, range_start(server, servers) + key, 0, size)]
    # Round halves away from zero, as C does, and compute in doubles, as MXNet does.
    cuts = [int(np.floor(float(size) / servers * server + 0.5)) for server in range(servers + 1)]
    return [
        ArrayPart(server, range_start(server, servers) + key, cuts[server], cuts[server + 1])
        for server in range(servers)
    ]


def head_of(dtype: np.dtype[Any]) -> int:
    """Return the head of a plain push or pull of arrays of a type: Cantor's pairing of the kind, 0, and the type.

    Raises:
        ValueError: MXNet has no such type, or the byte order of the type is not native.
    """
    code = _CODES.get(dtype.name) if dtype.isnative else None
    if code is None:
        raise ValueError(f"arrays of {dtype} cannot be sent; these can: {', '.join(_CODES)}")
    return code * (code + 1) // 2 + code


def dtype_of(head: int) -> np.dtype[Any] | None:
    """Return the type of a head; None for a head that is not of a plain push or pull."""
    return _DTYPES.get(head)


_DTYPES = {code * (code + 1) // 2 + code: np.dtype(name) for name, code in _CODES.items()}
