"""The types of elements that a session exchanges: how they are stored, and how they are reduced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_STORED: dict[str, Any] = {
    "float16": np.float16,
    "bfloat16": np.uint16,
    "float32": np.float32,
    "float64": np.float64,
    "int8": np.int8,
    "uint8": np.uint8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "bool": np.bool_,
}
TYPES = tuple(_STORED)
"""The types of which sums are exchanged, and other reductions."""
FLOATS = ("float16", "bfloat16", "float32", "float64")
COPIED = {
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}
"""The bytes of an element of the types that are only copied, by a broadcast or an allgather."""
_REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add,
    "mean": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "product": np.multiply,
}
OPERATIONS = tuple(_REDUCTIONS)
"""The reductions that are computed element by element, without a rule."""
_TILE = 1 << 14
"""Elements that are reduced at a time, so that their results stay in the cache."""


def size_of(dtype: str) -> int:
    """Return the bytes of an element."""
    return COPIED.get(dtype) or int(np.dtype(_STORED[dtype]).itemsize)


def stored(values: Bytes, dtype: str) -> NDArray[Any]:
    """Return bytes as elements; bfloat16 as uint16, because numpy has no such type."""
    return values.view(_STORED[dtype])


def to_float32(values: Bytes, dtype: str) -> NDArray[np.float32]:
    """Return elements of a floating type as float32; without a copy if they are float32."""
    return _numbers(stored(values, dtype), dtype).astype(np.float32, copy=False)


def write(numbers: NDArray[Any], dtype: str, out: Bytes) -> None:
    """Round numbers to elements, and write these as bytes."""
    target = stored(out, dtype)
    if dtype != "bfloat16":
        np.copyto(target, numbers, casting="unsafe")
        return
    bits = numbers.astype(np.float32, copy=False).view(np.uint32)
    # Round half to even. A NaN keeps its upper bits, and a bit that makes it stay a NaN.
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    target[...] = np.where(np.isnan(numbers), (bits >> np.uint32(16)) | np.uint32(0x40), rounded)


def reduce(rows: Sequence[Bytes], dtype: str, operation: str, out: Bytes) -> None:
    """Write what one of `OPERATIONS` makes of the rows, in their order.

    Floats are reduced in float64 and rounded once, those of bfloat16 by way of float32; a NaN in one row is a NaN of
    the result. Sums and products of integers wrap around. For bools, the sum and the maximum are the logical or, the
    product and the minimum the logical and.
    """
    if len(rows) == 1:
        out[:] = rows[0]
        return
    wide: Any = np.float64 if dtype in FLOATS else np.bool_ if dtype == "bool" else np.int64
    values, size, combine = [stored(row, dtype) for row in rows], size_of(dtype), _REDUCTIONS[operation]
    total = np.empty(_TILE, wide)
    with np.errstate(all="ignore"):
        for start in range(0, len(values[0]), _TILE):
            stop = min(start + _TILE, len(values[0]))
            tile = total[: stop - start]
            tile[...] = _numbers(values[0][start:stop], dtype)
            for row in values[1:]:
                combine(tile, _numbers(row[start:stop], dtype), out=tile)
            if operation == "mean":
                tile /= len(rows)
            write(tile, dtype, out[start * size : stop * size])


def _numbers(elements: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return elements as numbers of a type that numpy has."""
    if dtype != "bfloat16":
        return elements
    return (elements.astype(np.uint32) << np.uint32(16)).view(np.float32)
