"""Copies between the memory of the host and that of a device, through pinned buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import Tensor

CHUNK = 1 << 20
"""Bytes of a buffer: large compared with the overhead of a copy, small enough that copies overlap early."""


class Mark(Protocol):
    """A point in the queue of a device."""

    def synchronize(self) -> None:
        """Wait until the device has done all work before this point."""


class Queue(Protocol):
    """Copies that a device makes in order, after its earlier work."""

    def copy(self, source: Tensor, out: Tensor) -> None:
        """Enqueue a copy."""

    def mark(self) -> Mark:
        """Mark the present end of the queue."""


class Carrier(Protocol):
    """Copies tensors from the host to a device and back."""

    def to_device(self, source: Tensor, out: Tensor) -> None:
        """Copy `source` of the host into `out` of the device, before the next work of the device.

        `source` may be changed as soon as this returns.

        Args:
            source: of any shape and strides.
            out: contiguous, of the same shape and type.
        """

    def to_host(self, source: Tensor, out: Tensor) -> None:
        """Copy `source` of the device into `out` of the host; `out` is complete when this returns.

        Args:
            source: contiguous.
            out: contiguous, of the same shape and type.
        """


class UnpinnedCopies(Carrier):
    """Copies with torch, which uses buffers of the driver and waits for each copy."""

    def to_device(self, source: Tensor, out: Tensor) -> None:
        out.copy_(source)

    def to_host(self, source: Tensor, out: Tensor) -> None:
        out.copy_(source)


class Staging(Carrier):
    """Copies in chunks: the device copies one chunk while the host copies another.

    One thread uses it.
    """

    def __init__(self, buffers: Sequence[Tensor], queue: Queue) -> None:
        """Take the buffers.

        Args:
            buffers: two or more buffers of the host, `[bytes]` uint8, of equal size; pinned, because other copies wait.
            queue: the queue of the device.
        """
        self._buffers = buffers
        self._queue = queue
        # The point at which the device has finished with each buffer.
        self._busy: list[Mark | None] = [None] * len(buffers)
        self._turn = 0

    def to_device(self, source: Tensor, out: Tensor) -> None:
        host, device = source.reshape(-1), out.view(-1)
        for here in self._chunks(host):
            number, buffer = self._next_buffer(host[here])
            buffer.copy_(host[here])
            self._queue.copy(buffer, device[here])
            self._busy[number] = self._queue.mark()

    def to_host(self, source: Tensor, out: Tensor) -> None:
        device, host = source.view(-1), out.view(-1)
        coming: tuple[int, Tensor, slice] | None = None
        for here in self._chunks(device):
            number, buffer = self._next_buffer(device[here])
            self._queue.copy(device[here], buffer)
            self._busy[number] = self._queue.mark()
            # Fetch the chunk before while the device copies this one.
            self._fetch(coming, host)
            coming = number, buffer, here
        self._fetch(coming, host)

    def _chunks(self, values: Tensor) -> Iterator[slice]:
        step = len(self._buffers[0]) // values.element_size()
        for start in range(0, len(values), step):
            yield slice(start, min(start + step, len(values)))

    def _next_buffer(self, like: Tensor) -> tuple[int, Tensor]:
        """Wait for the device to finish with the next buffer; return the number of the buffer and the buffer."""
        number, self._turn = self._turn, (self._turn + 1) % len(self._buffers)
        self._wait_for(number)
        return number, self._buffers[number].view(like.dtype)[: len(like)]

    def _fetch(self, coming: tuple[int, Tensor, slice] | None, host: Tensor) -> None:
        if coming is not None:
            number, buffer, here = coming
            self._wait_for(number)
            host[here].copy_(buffer)

    def _wait_for(self, number: int) -> None:
        mark, self._busy[number] = self._busy[number], None
        if mark is not None:
            mark.synchronize()
