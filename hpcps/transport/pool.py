"""A pool of buffers for received payloads."""

from __future__ import annotations

import weakref

import numpy as np

from hpcps.numerics.layout import Vector


class BufferPool:
    """Allocates arrays; the memory of an array returns to the pool when the array and all its views are deleted.

    New memory of the size of a model costs as much as filling it twice, because the system allocates it page by page.
    """

    def __init__(self, spare: int = 1 << 26) -> None:
        """Keep unused buffers: at most `spare` bytes of them, but at least one."""
        self._free: list[Vector] = []
        self._spare = spare

    def take(self, size: int) -> Vector:
        """Return an array of `size` float32 values, contents unspecified."""
        fitting = [k for k, buffer in enumerate(self._free) if size <= buffer.size <= 2 * size]
        buffer = self._free.pop(fitting[-1]) if fitting else np.empty(size, np.float32)
        # Not a numpy view: a view of a view refers to the first array, and would not keep this array alive.
        values: Vector = np.frombuffer(buffer.data, np.float32, size)
        weakref.finalize(values, self._give_back, buffer).atexit = False
        return values

    def _give_back(self, buffer: Vector) -> None:
        self._free.append(buffer)
        while len(self._free) > 1 and sum(spare.nbytes for spare in self._free) > self._spare:
            del self._free[0]
