"""Memory of this process that other processes of its host can read.

The memory has no name in a file system (`memfd_create`). The system frees it when the last process that has it open
ends, so a killed process leaves nothing behind. Its size is fixed, so a reader never accesses a missing page.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hpcps.numerics.layout import Vector
from hpcps.protocol.envelope import MalformedMessageError

_PAGE = mmap.PAGESIZE
NAME = "hpcps"
"""The name of the memory in the list of open files of a process; no file has this name."""


class SegmentAddress(NamedTuple):
    """The address of a payload: the segment (a file descriptor of its owner), the first byte, and the size in bytes."""

    segment: int
    start: int
    size: int

    def pack(self) -> bytes:
        """Return the address as 24 bytes."""
        return _ADDRESS.pack(*self)

    @classmethod
    def unpack(cls, packed: bytes) -> SegmentAddress:
        """Read what `pack` wrote.

        Raises:
            MalformedMessageError: it has another length.
        """
        if len(packed) != ADDRESS_BYTES:
            raise MalformedMessageError(f"{len(packed)} bytes are no address in memory, which has {ADDRESS_BYTES}")
        return cls(*_ADDRESS.unpack(packed))


_ADDRESS = struct.Struct("<QQQ")
ADDRESS_BYTES = _ADDRESS.size


@dataclass
class _Segment:
    """A piece of memory, and whether it is in use."""

    fd: int
    values: Vector
    address: int
    taken: bool = True


class Arena:
    """Allocates shared memory, and finds the address of an array in it.

    Attributes:
        shortage: why an array that was allocated since `recycle` is in ordinary memory; None if none is.
    """

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self.shortage: str | None = None

    def allocate(self, size: int) -> Vector:
        """Return an array of `size` float32 values, contents unspecified; in ordinary memory if there is no other."""
        bytes_ = max(size, 1) * 4
        fitting = [s for s in self._segments if not s.taken and s.values.nbytes >= bytes_]
        segment = min(fitting, key=lambda s: s.values.nbytes, default=None)
        if segment is None:
            try:
                segment = _make(-(-bytes_ // _PAGE) * _PAGE)
            except OSError as error:
                self.shortage = f"{bytes_ / 1e6:.1f} MB: {error.strerror}"
                return np.empty(size, np.float32)
            except AttributeError:  # not Linux
                self.shortage = "this system has none"
                return np.empty(size, np.float32)
            self._segments.append(segment)
        segment.taken = True
        return segment.values[:size]

    def locate(self, payload: Vector) -> SegmentAddress | None:
        """Return the address of a payload; None if it is not in this arena."""
        if not payload.flags.c_contiguous:
            return None
        address = payload.ctypes.data
        for segment in self._segments:
            start = address - segment.address
            if start >= 0 and start + payload.nbytes <= segment.values.nbytes:
                return SegmentAddress(segment.fd, start, payload.nbytes)
        return None

    def recycle(self) -> None:
        """Reuse all memory: no process may read or write arrays that were allocated before."""
        for segment in self._segments:
            segment.taken = False
        self.shortage = None

    def close(self) -> None:
        """Let no other process open the memory from now on; it remains while it is mapped, here or there."""
        for segment in self._segments:
            os.close(segment.fd)
        self._segments.clear()


def _make(size: int) -> _Segment:
    """Create a segment of `size` bytes and touch its pages now, not in the first round."""
    fd = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, size)
        with suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        values: Vector = np.frombuffer(mmap.mmap(fd, size, mmap.MAP_SHARED | mmap.MAP_POPULATE), np.float32)
    except OSError:
        os.close(fd)
        raise
    return _Segment(fd, values, values.ctypes.data)
