"""The addresses of updates in memory, and the division of work on them among threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.blocks import SEGMENT
from hpcps.numerics.layout import Vector
from hpcps.numerics.updates import NotFiniteError, Updates

Result = TypeVar("Result")
Integers = NDArray[np.int64]
Table = tuple[Integers, Integers, Integers]
"""Addresses, offsets and segments of `PointerTable`."""

FINITE: Any = np.int32(0x7F7FFFFF)
"""The largest bit pattern, without the sign, of a finite float32."""

SMALLEST_SHARED = 1 << 21
"""The minimum number of elements of all updates for which threads share the work: waking a thread costs as much as half
a million elements."""
_PIECES = 8
"""The maximum number of pieces of work per thread: a thread that shares its core with another process then does not
delay the others."""
_SMALLEST_PIECE = 1 << 20
"""The minimum number of elements of all updates in a piece, if there are more pieces than threads."""


@dataclass(frozen=True)
class PointerTable:
    """The updates as kernels take them: arrays of integers, whose types do not depend on the updates.

    Attributes:
        addresses: the address of each block of each update, 0 for unused blocks: `[n, B]`.
        offsets: the start of each block in the whole vector: `[B + 1]`.
        segments: the block, the first element and the element after the last of each segment (`SEGMENT`): `[s, 3]`.
    """

    addresses: Integers
    offsets: Integers
    segments: Integers

    @staticmethod
    def of(updates: Updates) -> PointerTable:
        """Return the addresses of updates, which must stay alive while the addresses are used."""
        layout = updates.layout
        begins = np.array([address(payload) for payload in updates.payloads], np.int64).reshape(-1, 1)
        if updates.used.all():
            addresses = begins + 4 * layout.offsets[:-1]
        else:
            addresses = np.where(updates.starts >= 0, begins + 4 * updates.starts, 0)
        return PointerTable(addresses, layout.offsets, layout.segments(SEGMENT))

    def run(self, kernel: Callable[..., Result], threads: int, *arguments: object) -> list[Result]:
        """Call a kernel on ranges of segments that cover all, with at most `threads` threads; return its results."""
        table = self.addresses, self.offsets, self.segments

        def work(first: int, last: int) -> Result:
            return kernel(table, first, last, *arguments)

        count, rows = len(self.segments), max(len(self.addresses), 1)
        # Segments differ in length: a small block is one short segment.
        shared = threads > 1 and count >= 2 * threads and self.offsets[-1] * rows >= SMALLEST_SHARED
        lengths = np.cumsum(self.segments[:, 2] - self.segments[:, 1]) if shared else None
        if lengths is None or lengths[-1] * rows < SMALLEST_SHARED:
            return [work(0, count)] if count else []
        pieces = threads * max(1, min(_PIECES, int(lengths[-1] * rows // (threads * _SMALLEST_PIECE))))
        shares = np.arange(1, pieces) * (lengths[-1] / pieces)
        cuts = np.unique([0, *np.searchsorted(lengths, shares), count]).tolist()
        return list(_pool(threads).map(work, cuts[:-1], cuts[1:]))


def address(array: NDArray[Any]) -> int:
    """Return the address of a contiguous array's elements."""
    place: int = array.__array_interface__["data"][0]
    return place


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "hpcps-kernels")


def result(updates: Updates) -> tuple[Vector, tuple[int, int]]:
    """Return the array for the result, and the addresses of the base (0: none) and of the result."""
    base, out = updates.to.base, updates.to.out
    if out is None:
        out = np.empty(updates.layout.size, np.float32)
    for array in (out,) if base is None else (out, base):
        assert array.dtype == np.float32, "models are float32"
        assert array.shape == (updates.layout.size,), "models are flat"
        assert array.flags.c_contiguous, "models are contiguous"
    return out, (0 if base is None else address(base), address(out))


def finite(updates: Updates, results: list[tuple[int, int]]) -> bool:
    """Return whether the written values are finite.

    Raises:
        NotFiniteError: the updates are not finite.
    """
    if any(worst > FINITE for worst, _ in results):
        assert not updates.finite, "these updates are known to be finite"
        raise NotFiniteError
    return all(result <= FINITE for _, result in results)
