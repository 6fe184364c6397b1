"""Where the processes of a measurement wait for one another, and one clock for all of them.

Needs the standard library only, as it runs in every peer's environment. What a peer's own barrier costs differs from
peer to peer; this one is the same for all: the last process to come opens a gate (a FIFO) for the others, and the
moment at which it does is where the measured time begins.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from pathlib import Path

# How many have come so far, in all meetings; then, for even and odd turns (a slow process still reads the last one's
# while a fast one comes to the next): whether it is over, and when the gate was opened.
_COUNT = struct.Struct("q")
_OPENED = struct.Struct("qd")


class Meeting:
    """A folder with a barrier for `size` processes of one machine."""

    def __init__(self, folder: Path, size: int) -> None:
        """Come to a meeting place that `prepare` has made.

        Args:
            folder: where.
            size: how many come each time.
        """
        self.folder = folder
        self._size = size
        self._state = os.open(folder / "state", os.O_RDWR)
        self._gates = [os.open(folder / f"gate-{number}", os.O_RDWR) for number in range(2)]
        self._turn = 0

    @staticmethod
    def prepare(folder: Path) -> Path:
        """Make the place, anew."""
        folder.mkdir(parents=True)
        (folder / "state").write_bytes(bytes(_COUNT.size + 2 * _OPENED.size))
        for number in range(2):
            os.mkfifo(folder / f"gate-{number}")
        return folder

    def meet(self, *, over: bool = False) -> tuple[float, bool]:
        """Wait until all are here.

        Args:
            over: whether it shall be over after this; the last one to come decides.

        Returns:
            When the last one came, on the monotonic clock, and whether it is over.
        """
        turn = self._turn % 2
        place = _COUNT.size + turn * _OPENED.size
        self._turn += 1
        fcntl.flock(self._state, fcntl.LOCK_EX)
        came = _COUNT.unpack(os.pread(self._state, _COUNT.size, 0))[0] + 1
        now = time.monotonic()
        os.pwrite(self._state, _COUNT.pack(came), 0)
        fcntl.flock(self._state, fcntl.LOCK_UN)
        if came == self._size * self._turn:
            os.pwrite(self._state, _OPENED.pack(over, now), place)
            os.write(self._gates[turn], b"." * (self._size - 1))
            return now, over
        os.read(self._gates[turn], 1)
        ended, opened = _OPENED.unpack(os.pread(self._state, _OPENED.size, place))
        return opened, bool(ended)
