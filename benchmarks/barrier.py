"""A barrier for the processes of a measurement, with one clock for all of them.

It needs only the standard library, because it runs in every peer's environment. The cost of a peer's own barrier
differs between peers; this barrier is the same for all. The last process to arrive opens a FIFO for the others, and the
measured time begins at that moment.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from pathlib import Path

# The number of arrivals so far, at all barriers. Then, for even and for odd turns: whether this is the last turn, and
# when the FIFO was opened. There are two sets, because a slow process may still read one when a fast process writes the
# next.
_COUNT = struct.Struct("q")
_OPENED = struct.Struct("qd")


class Barrier:
    """A folder with a barrier for `size` processes of one machine."""

    def __init__(self, folder: Path, size: int) -> None:
        """Join the barrier that `prepare` has created.

        Args:
            folder: its folder.
            size: the number of processes.
        """
        self.folder = folder
        self._size = size
        self._state = os.open(folder / "state", os.O_RDWR)
        self._gates = [os.open(folder / f"gate-{number}", os.O_RDWR) for number in range(2)]
        self._turn = 0

    @staticmethod
    def prepare(folder: Path) -> Path:
        """Create the folder, which must not exist, and the files of the barrier."""
        folder.mkdir(parents=True)
        (folder / "state").write_bytes(bytes(_COUNT.size + 2 * _OPENED.size))
        for number in range(2):
            os.mkfifo(folder / f"gate-{number}")
        return folder

    def wait(self, *, over: bool = False) -> tuple[float, bool]:
        """Wait until all processes have arrived.

        Args:
            over: whether this is the last turn; the value of the last process to arrive counts.

        Returns:
            The time of the last arrival on the monotonic clock, and whether this is the last turn.
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

    def close(self) -> None:
        """Close the files of the barrier."""
        for file in (self._state, *self._gates):
            os.close(file)
