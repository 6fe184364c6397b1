"""Memory of this process that others of its host can read.

It has no name in any file system (`memfd_create`): the system takes it back with the last process that has it open, so
that nothing is left behind whoever is killed. It can neither shrink nor grow: a reader never meets a missing page.
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

from hpcps.layout import Vector
from hpcps.messages import MalformedMessageError

_PAGE = mmap.PAGESIZE
NAME = "hpcps"
"""What the memory is called in lists of what a process has open; nothing can be found by it."""


class Place(NamedTuple):
    """Where a payload lies: in which segment (its owner's file descriptor), from which byte on, how many bytes."""

    segment: int
    start: int
    size: int

    def pack(self) -> bytes:
        """Return it as 24 bytes."""
        return _PLACE.pack(*self)

    @classmethod
    def unpack(cls, packed: bytes) -> Place:
        """Read what `pack` wrote.

        Raises:
            MalformedMessageError: it is shorter.
        """
        if len(packed) != PLACE_BYTES:
            raise MalformedMessageError(f"{len(packed)} bytes say no place in memory, {PLACE_BYTES} do")
        return cls(*_PLACE.unpack(packed))


_PLACE = struct.Struct("<QQQ")
PLACE_BYTES = _PLACE.size


@dataclass
class _Segment:
    """A piece of memory, and whether it is in use."""

    fd: int
    values: Vector
    address: int
    taken: bool = True


class Arena:
    """Gives out memory that can be found again by the address of what lies there.

    Attributes:
        shortage: why some of what it gave out since `recycle` is ordinary memory; None if nothing is.
    """

    def __init__(self) -> None:
        self._segments: list[_Segment] = []
        self.shortage: str | None = None

    def allocate(self, size: int) -> Vector:
        """Return an array of so many float32, contents unspecified; ordinary memory where the system has no other."""
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

    def locate(self, payload: Vector) -> Place | None:
        """Return where a payload lies; None if it is not in this arena."""
        if not payload.flags.c_contiguous:
            return None
        address = payload.ctypes.data
        for segment in self._segments:
            start = address - segment.address
            if start >= 0 and start + payload.nbytes <= segment.values.nbytes:
                return Place(segment.fd, start, payload.nbytes)
        return None

    def recycle(self) -> None:
        """Take everything back: nobody reads or writes any more what was allocated so far."""
        for segment in self._segments:
            segment.taken = False
        self.shortage = None


def _make(size: int) -> _Segment:
    """Make a segment of so many bytes, its pages in place: they are touched here, not in the first round."""
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
