"""Copies between the host's memory and a device's through buffers that the device reaches by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import Tensor

CHUNK = 1 << 20
"""Bytes of a buffer: far more than it costs to ask for a copy, little enough that both halves of one soon overlap."""


class Mark(Protocol):
    """A point in what a device has been asked to do."""

    def synchronize(self) -> None:
        """Wait until it has done all before this point."""


class Queue(Protocol):
    """Copies that a device makes one after another, after what it was asked to do before."""

    def copy(self, source: Tensor, out: Tensor) -> None:
        """Ask for a copy; it may be made later."""

    def mark(self) -> Mark:
        """Mark the end of what was asked for so far."""


class Carrier(Protocol):
    """What brings tensors from the host to a device and back."""

    def to_device(self, source: Tensor, out: Tensor) -> None:
        """Copy `source` of the host into `out` of the device, for what the device is asked to do next.

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


class UnpinnedCopies:
    """Leaves it to torch, which copies through buffers of the driver and waits for each copy."""

    def to_device(self, source: Tensor, out: Tensor) -> None:
        """See `Carrier.to_device`."""
        out.copy_(source)

    def to_host(self, source: Tensor, out: Tensor) -> None:
        """See `Carrier.to_host`."""
        out.copy_(source)


class Staging:
    """Copies in chunks: while the device copies one between itself and a buffer, the host does so with another.

    It is for one thread.
    """

    def __init__(self, buffers: Sequence[Tensor], queue: Queue) -> None:
        """Begin with nothing under way.

        Args:
            buffers: two or more of the host, `[bytes]` uint8, as large as each other; pinned, or a copy would wait.
            queue: the device's.
        """
        self._buffers = buffers
        self._queue = queue
        # Until when the device still reads or writes each buffer.
        self._busy: list[Mark | None] = [None] * len(buffers)
        self._turn = 0

    def to_device(self, source: Tensor, out: Tensor) -> None:
        """See `Carrier.to_device`."""
        host, device = source.reshape(-1), out.view(-1)
        for here in self._chunks(host):
            number, buffer = self._next_buffer(host[here])
            buffer.copy_(host[here])
            self._queue.copy(buffer, device[here])
            self._busy[number] = self._queue.mark()

    def to_host(self, source: Tensor, out: Tensor) -> None:
        """See `Carrier.to_host`."""
        device, host = source.view(-1), out.view(-1)
        coming: tuple[int, Tensor, slice] | None = None
        for here in self._chunks(device):
            number, buffer = self._next_buffer(device[here])
            self._queue.copy(device[here], buffer)
            self._busy[number] = self._queue.mark()
            # The one before, while this one comes.
            self._fetch(coming, host)
            coming = number, buffer, here
        self._fetch(coming, host)

    def _chunks(self, values: Tensor) -> Iterator[slice]:
        step = len(self._buffers[0]) // values.element_size()
        for start in range(0, len(values), step):
            yield slice(start, min(start + step, len(values)))

    def _next_buffer(self, like: Tensor) -> tuple[int, Tensor]:
        """Return the buffer whose turn it is, once the device is done with it, and its number."""
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
