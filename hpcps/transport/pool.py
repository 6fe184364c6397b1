"""Buffers for payloads that come as messages, used again when nobody holds them any more."""

from __future__ import annotations

import weakref

import numpy as np

from hpcps.layout import Vector


class Pool:
    """Gives out arrays; the memory of one comes back once the array and all views of it are gone.

    Fresh memory of the size of a model costs as much as filling it twice: the system hands it out page by page.
    """

    def __init__(self, spare: int = 1 << 26) -> None:
        """Keep buffers that nobody holds, up to so many bytes of them, or one."""
        self._free: list[Vector] = []
        self._spare = spare

    def take(self, size: int) -> Vector:
        """Return an array of so many float32, contents unspecified."""
        fitting = [k for k, buffer in enumerate(self._free) if size <= buffer.size <= 2 * size]
        buffer = self._free.pop(fitting[-1]) if fitting else np.empty(size, np.float32)
        # Not a numpy view: views of views refer to the first array, and would not keep this one alive.
        values: Vector = np.frombuffer(buffer.data, np.float32, size)
        weakref.finalize(values, self._give_back, buffer).atexit = False
        return values

    def _give_back(self, buffer: Vector) -> None:
        self._free.append(buffer)
        while len(self._free) > 1 and sum(spare.nbytes for spare in self._free) > self._spare:
            del self._free[0]
