"""Allgathers: each worker sends its rows, as many as it has, and all get those of all, in the order of the workers.

The bytes of a worker follow their number, and both fill whole float32, of which messages consist. A result has the
numbers of all workers first. One aggregator puts it together, so that no worker needs to know what the others send
before it sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hpcps.errors import RunError
from hpcps.numerics.layout import Allocate, Vector
from hpcps.protocol.messages import Peer
from hpcps.session.elements import Bytes, size_of
from hpcps.session.tensors import Declaration

_NUMBER, _WORD = 8, 4
"""Bytes of a number, and of a float32."""


class _Memory:
    """Memory to send from that grows: twice as large each time, because none is given back before the end."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate, self._values = allocate, np.zeros(0, np.float32)

    def first(self, elements: int) -> Vector:
        """Return so many elements; those of an earlier call are invalid."""
        if elements > self._values.size:
            self._values = self._allocate(max(elements, 2 * self._values.size))
        return self._values[:elements]


class Rows:
    """What a worker sends of an allgather, and takes of it."""

    def __init__(self, declaration: Declaration, workers: int, allocate: Allocate) -> None:
        """Begin without memory.

        Args:
            declaration: the declaration of the tensor.
            workers: the number of workers.
            allocate: returns memory to send from.
        """
        self._declaration, self._workers, self._memory = declaration, workers, _Memory(allocate)

    def message(self, source: Bytes) -> Vector:
        """Return what is sent of the bytes of this worker; it stays valid until the next call."""
        values = self._memory.first(_elements(len(source)))
        content = values.view(np.uint8)
        content[:_NUMBER].view(np.int64)[0] = len(source)
        content[_NUMBER : _NUMBER + len(source)] = source
        return values

    def of_all(self, result: Vector) -> list[Bytes]:
        """Return a copy of the bytes of each worker.

        Raises:
            RunError: they are not what an aggregator sends.
        """
        content, begin = result.view(np.uint8), _NUMBER * self._workers
        sizes = content[:begin].view(np.int64).tolist() if len(content) >= begin else []
        if min(sizes, default=-1) < 0 or begin + sum(map(_filled, sizes)) != len(content):
            raise _damaged(self._declaration)
        found = []
        for size in sizes:
            found.append(content[begin : begin + size].copy())
            begin += _filled(size)
        return found


class Gathering:
    """What an aggregator does with the rows of an allgather.

    Attributes:
        result: the last result; it stays valid until all workers have sent again.
    """

    result: Vector

    def __init__(self, declaration: Declaration, workers: Sequence[Peer], allocate: Allocate) -> None:
        """Begin without memory; see `Rows`."""
        self._declaration, self._workers, self._memory = declaration, tuple(workers), _Memory(allocate)
        self._row = declaration.size * size_of(declaration.dtype)

    def join(self, rows: Mapping[Peer, Vector]) -> None:
        """Put together what the workers have sent.

        Raises:
            RunError: one of them has sent something else than whole rows.
        """
        contents = [rows[worker].view(np.uint8) for worker in self._workers]
        sizes = [int(content[:_NUMBER].view(np.int64)[0]) if len(content) >= _NUMBER else -1 for content in contents]
        for size, content in zip(sizes, contents, strict=True):
            whole = size >= 0 and (size % self._row == 0 if self._row else size == 0)
            if not whole or 4 * _elements(size) != len(content):
                raise _damaged(self._declaration)
        begin = _NUMBER * len(sizes)
        self.result = self._memory.first((begin + sum(map(_filled, sizes))) // _WORD)
        out = self.result.view(np.uint8)
        out[:begin].view(np.int64)[:] = sizes
        for size, content in zip(sizes, contents, strict=True):
            out[begin : begin + _filled(size)] = content[_NUMBER:]
            begin += _filled(size)


def _filled(size: int) -> int:
    """Return the bytes of whole float32 that so many bytes take."""
    return -(-size // _WORD) * _WORD


def _elements(size: int) -> int:
    """Return the elements of float32 that a worker sends of so many bytes."""
    return (_NUMBER + _filled(size)) // _WORD


def _damaged(declaration: Declaration) -> RunError:
    return RunError(
        f"an allgather of tensor {declaration} has come without whole rows: use the same version of hpcps in all "
        "processes. If they have it, the message was damaged on its way: start the script again"
    )
