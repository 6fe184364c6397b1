"""Where the updates lie in memory, and how the work on them is cut."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcps.blocks import SEGMENT
from hpcps.layout import Vector
from hpcps.updates import Updates

Result = TypeVar("Result")
Integers = NDArray[np.int64]

SMALLEST_SHARED = 1 << 21
"""Elements, over all updates, from which on threads share the work: to wake one costs as much as half a million."""
_PIECES = 8
"""Pieces of the work for each thread, so that one which shares its core with another process holds nobody up."""


@dataclass(frozen=True)
class Places:
    """What a kernel is told of the updates: numbers, of the same type whatever the arrays are.

    Attributes:
        addresses: of each block of each update; 0 where nothing counts: `[n, B]`.
        offsets: where each block begins in the whole vector: `[B + 1]`.
        segments: the block, first and last-but-one element of each segment (`SEGMENT`): `[s, 3]`.
    """

    addresses: Integers
    offsets: Integers
    segments: Integers

    @staticmethod
    def of(updates: Updates) -> Places:
        """Look where the updates lie; they must be kept as long as the places are used."""
        layout = updates.layout
        begins = np.array([address(payload) for payload in updates.payloads], np.int64).reshape(-1, 1)
        if updates.used.all():
            addresses = begins + 4 * layout.offsets[:-1]
        else:
            addresses = np.where(updates.starts >= 0, begins + 4 * updates.starts, 0)
        return Places(addresses, layout.offsets, layout.segments(SEGMENT))

    def run(self, work: Callable[[int, int], Result], threads: int) -> list[Result]:
        """Do the work on the segments from one number to another, in pieces, by so many threads; return all results."""
        count, rows = len(self.segments), max(len(self.addresses), 1)
        # Segments are of different length: small blocks are segments too.
        shared = threads > 1 and count >= 2 * threads and self.offsets[-1] * rows >= SMALLEST_SHARED
        lengths = np.cumsum(self.segments[:, 2] - self.segments[:, 1]) if shared else None
        if lengths is None or lengths[-1] * rows < SMALLEST_SHARED:
            return [work(0, count)] if count else []
        shares = np.arange(1, threads * _PIECES) * (lengths[-1] / (threads * _PIECES))
        cuts = np.unique([0, *np.searchsorted(lengths, shares), count]).tolist()
        return list(_pool(threads).map(work, cuts[:-1], cuts[1:]))


def address(array: Vector) -> int:
    """Return where an array's elements lie; they are contiguous."""
    place: int = array.__array_interface__["data"][0]
    return place


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "hpcps-kernels")
