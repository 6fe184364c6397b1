"""The processes whose memory this one can read, and that can read its own."""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import struct
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hpcps.layout import Vector
from hpcps.messages import MalformedMessageError
from hpcps.transport.memory.arena import NAME, Arena, Place
from hpcps.transport.memory.mailbox import Mailbox, Slot

_CARD = struct.Struct("<QQQ16s")
CARD_BYTES = _CARD.size


class Neighbours:
    """This process among those of its host.

    Whether two processes can reach each other's memory is tried out, not guessed from names of hosts: each shows a
    random token there, and the other reads it through `/proc`. That fails, as it should, between hosts, containers
    and users.

    Attributes:
        arena: memory of this process that its neighbours can read.
    """

    def __init__(self) -> None:
        self.arena = Arena()
        self._token = secrets.token_bytes(16)
        entrance = Arena()
        self._shown = entrance.allocate(4)
        self._shown.view(np.uint8)[:] = np.frombuffer(self._token, np.uint8)
        self._entrance = entrance.locate(self._shown) or Place(0, 0, 0)
        self._mailbox = Mailbox()
        self._pids: dict[int, int] = {}
        self._slots: dict[int, Slot] = {}
        self._mapped: dict[tuple[int, int], NDArray[np.uint8]] = {}

    def card(self) -> bytes:
        """Return what the others need to find this process, `CARD_BYTES` long."""
        return _CARD.pack(os.getpid(), self._entrance.segment, self._mailbox.opening, self._token)

    def reach(self, cards: Sequence[bytes], me: int) -> list[bool]:
        """Try to reach every process by its card; say which ones could be reached, by rank."""
        return [rank != me and self._try(rank, card, me) for rank, card in enumerate(cards)]

    def keep(self, mutual: Sequence[bool]) -> None:
        """Forget those that cannot be reached both ways."""
        for rank, both in enumerate(mutual):
            if not both:
                self._pids.pop(rank, None)
                slot = self._slots.pop(rank, None)
                if slot is not None:
                    slot.close()

    def __contains__(self, rank: int) -> bool:
        return rank in self._pids

    def __len__(self) -> int:
        return len(self._pids)

    def view(self, rank: int, place: Place) -> Vector:
        """Return a payload of a neighbour, where it lies; it cannot be written to.

        Raises:
            MalformedMessageError: there is nothing of the kind in that place.
        """
        if rank not in self._pids:
            raise MalformedMessageError("it refers to the memory of a process that cannot be reached")
        key = rank, place.segment
        if key not in self._mapped:
            try:
                self._mapped[key] = _map(self._pids[rank], place.segment)
            except (OSError, ValueError) as error:
                raise MalformedMessageError(f"the memory that it refers to cannot be read: {error}") from None
        segment = self._mapped[key]
        if place.start % 4 or place.size % 4 or place.start + place.size > segment.nbytes:
            raise MalformedMessageError(
                f"it refers to bytes {place.start} to {place.start + place.size} of {segment.nbytes}"
            )
        view: Vector = segment[place.start : place.start + place.size].view(np.float32)
        return view

    def say(self, rank: int, message: bytes) -> None:
        """Say something to a neighbour, and wake it; `said` must be asked until it is."""
        self._slots[rank].put(message)

    def said(self, rank: int) -> bool:
        """Go on saying what its pipe had no room for; tell whether everything is said."""
        return self._slots[rank].push()

    def heard(self) -> list[tuple[int, bytes]]:
        """Return what neighbours have said since, each in its own order, with their ranks."""
        return [(rank, message) for rank, message in self._mailbox.take() if rank in self._pids]

    def wait(self, seconds: float) -> bool:
        """Sleep for so long, or until a neighbour says something; tell whether one did."""
        if self._pids:
            return self._mailbox.wait(seconds)
        time.sleep(seconds)
        return False

    def _try(self, rank: int, card: bytes, me: int) -> bool:
        pid, segment, opening, token = _CARD.unpack(card)
        try:
            if _map(pid, segment)[:16].tobytes() != token:
                return False
            self._slots[rank] = Slot(pid, opening, me)
        except (OSError, ValueError):
            return False
        self._pids[rank] = pid
        return True


def _map(pid: int, fd: int) -> NDArray[np.uint8]:
    """Map a segment of another process, read-only, with all its pages.

    Raises:
        OSError: there is none, or it is out of reach.
        ValueError: it is not memory of an arena's kind: it could shrink under its readers.
    """
    path = f"/proc/{pid}/fd/{fd}"
    # On another host that is some other process's, of the same number: a device or a pipe is not to be opened to see.
    if not os.readlink(path).startswith(f"/memfd:{NAME} "):
        raise ValueError("it is not memory")
    own = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not fcntl.fcntl(own, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise ValueError("it is not sealed")
        size = os.fstat(own).st_size
        mapped = mmap.mmap(own, size, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ)
    finally:
        os.close(own)
    return np.frombuffer(mapped, np.uint8)
