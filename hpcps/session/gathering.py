"""Allgathers: each worker sends its rows, as many as it has, and all get those of all, in the order of the workers.

A worker sends the number of its rows and their bytes, filled up to whole float32, of which messages consist. A result
has the numbers of all workers first. One aggregator puts it together, so that no worker needs to know what the others
send before it sends.
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
_NO_ROWS: Vector = np.zeros(_NUMBER // _WORD, np.float32)
"""What a worker without rows sends."""


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

    def message(self, rows: Bytes) -> Vector:
        """Return what is sent of the rows of this worker `[n, bytes of a row]`; it stays valid until the next call."""
        values = self._memory.first((_NUMBER + _filled(rows.size)) // _WORD)
        content = values.view(np.uint8)
        content[:_NUMBER].view(np.int64)[0] = len(rows)
        content[_NUMBER : _NUMBER + rows.size] = rows.reshape(-1)
        return values

    def of_all(self, result: Vector) -> list[Bytes]:
        """Return a copy of the rows of each worker.

        Raises:
            RunError: they are not what an aggregator sends.
        """
        content, row = result.view(np.uint8), _bytes_of_a_row(self._declaration)
        begin, found = _NUMBER * self._workers, []
        for number in _numbers(content, self._workers, row, self._declaration):
            found.append(content[begin : begin + number * row].reshape(number, row).copy())
            begin += _filled(number * row)
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

    def join(self, sent: Mapping[Peer, Vector]) -> None:
        """Put together what the workers have sent; one that has joined has no rows.

        Raises:
            RunError: one of them has sent something else than rows.
        """
        contents = [sent.get(worker, _NO_ROWS).view(np.uint8) for worker in self._workers]
        row, numbers = _bytes_of_a_row(self._declaration), []
        for content in contents:
            numbers += _numbers(content, 1, row, self._declaration)
        self.result = self._memory.first(sum(map(len, contents)) // _WORD)
        out, begin = self.result.view(np.uint8), _NUMBER * len(numbers)
        out[:begin].view(np.int64)[:] = numbers
        for content in contents:
            stop = begin + len(content) - _NUMBER
            out[begin:stop] = content[_NUMBER:]
            begin = stop


def _bytes_of_a_row(declaration: Declaration) -> int:
    return declaration.size * size_of(declaration.dtype)


def _filled(size: int) -> int:
    """Return the bytes of whole float32 that so many bytes take."""
    return -(-size // _WORD) * _WORD


def _numbers(content: Bytes, workers: int, row: int, declaration: Declaration) -> list[int]:
    """Return the numbers of rows with which a message of some workers begins.

    Args:
        content: the message.
        workers: the number of workers whose rows it has.
        row: the bytes of a row.
        declaration: the declaration of the tensor.

    Raises:
        RunError: the rest is not so many rows.
    """
    begin = _NUMBER * workers
    numbers: list[int] = content[:begin].view(np.int64).tolist() if len(content) >= begin else [-1]
    if min(numbers) < 0 or begin + sum(_filled(number * row) for number in numbers) != len(content):
        raise _damaged(declaration)
    return numbers


def _damaged(declaration: Declaration) -> RunError:
    return RunError(
        f"an allgather of tensor {declaration} has come with a wrong number of rows: use the same version of hpcps in "
        "all processes. If they have it, the message was damaged on its way: start the script again"
    )
