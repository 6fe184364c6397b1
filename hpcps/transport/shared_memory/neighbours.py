"""The neighbours of a process: the processes that share memory with it."""

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

from hpcps.numerics.layout import Vector
from hpcps.protocol.envelope import MalformedMessageError
from hpcps.transport.shared_memory.arena import NAME, Arena, SegmentAddress
from hpcps.transport.shared_memory.mailbox import Mailbox, MailboxWriter

_CARD = struct.Struct("<QQQ16s")
CARD_BYTES = _CARD.size


class Neighbours:
    """The neighbours of this process.

    Two processes test whether they can read each other's memory; host names are no evidence. Each stores a random token
    in its memory, and the other reads the token through `/proc`. The test fails between hosts, containers and users.

    Attributes:
        arena: memory of this process that its neighbours can read.
    """

    def __init__(self) -> None:
        self.arena = Arena()
        self._token = secrets.token_bytes(16)
        self._token_arena = Arena()
        token = self._token_arena.allocate(4)
        token.view(np.uint8)[:] = np.frombuffer(self._token, np.uint8)
        self._token_address = self._token_arena.locate(token) or SegmentAddress(0, 0, 0)
        self._mailbox = Mailbox()
        self._pids: dict[int, int] = {}
        self._writers: dict[int, MailboxWriter] = {}
        self._mapped: dict[tuple[int, int], NDArray[np.uint8]] = {}

    def card(self) -> bytes:
        """Return the addresses of this process for the others, `CARD_BYTES` long."""
        return _CARD.pack(os.getpid(), self._token_address.segment, self._mailbox.opening, self._token)

    def reach(self, cards: Sequence[bytes], me: int) -> list[bool]:
        """Test which processes this one can reach by their cards; return the results by rank."""
        return [rank != me and self._try(rank, card, me) for rank, card in enumerate(cards)]

    def keep(self, mutual: Sequence[bool]) -> None:
        """Keep only the neighbours that are reachable in both directions."""
        for rank, both in enumerate(mutual):
            if not both:
                self._pids.pop(rank, None)
                writer = self._writers.pop(rank, None)
                if writer is not None:
                    writer.close()

    def __contains__(self, rank: int) -> bool:
        return rank in self._pids

    def __len__(self) -> int:
        return len(self._pids)

    def view(self, rank: int, address: SegmentAddress) -> Vector:
        """Return a read-only view of a payload in the memory of a neighbour.

        Raises:
            MalformedMessageError: there is no payload at that address.
        """
        if rank not in self._pids:
            raise MalformedMessageError("it refers to the memory of a process that cannot be reached")
        key = rank, address.segment
        if key not in self._mapped:
            try:
                self._mapped[key] = _map(self._pids[rank], address.segment)
            except (OSError, ValueError) as error:
                raise MalformedMessageError(f"the memory that it refers to cannot be read: {error}") from None
        segment = self._mapped[key]
        start, stop = address.start, address.start + address.size
        if start % 4 or address.size % 4 or stop > segment.nbytes:
            raise MalformedMessageError(f"it refers to bytes {start} to {stop} of {segment.nbytes}")
        view: Vector = segment[start:stop].view(np.float32)
        return view

    def send(self, rank: int, message: bytes) -> None:
        """Write a message to a neighbour, which wakes it; call `flush` until it returns True."""
        self._writers[rank].put(message)

    def flush(self, rank: int) -> bool:
        """Write what did not fit into the pipe of a neighbour; return whether everything is written."""
        return self._writers[rank].push()

    def receive(self) -> list[tuple[int, bytes]]:
        """Return the messages that have arrived, in the order of each sender, with the ranks of the senders."""
        if not self._pids:
            return []
        return [(rank, message) for rank, message in self._mailbox.take() if rank in self._pids]

    def ended(self) -> list[int]:
        """Return the neighbours whose processes have ended."""
        return [rank for rank, pid in self._pids.items() if not _lives(pid)]

    def wait(self, seconds: float) -> bool:
        """Sleep for `seconds`, or until a neighbour writes; return whether one did."""
        if self._pids:
            return self._mailbox.wait(seconds)
        time.sleep(seconds)
        return False

    def close(self) -> None:
        """Close what this process shares, and what it has opened of its neighbours; views remain valid."""
        self.keep([False] * (max(self._pids, default=-1) + 1))
        self._mapped.clear()
        for own in (self.arena, self._token_arena, self._mailbox):
            own.close()

    def _try(self, rank: int, card: bytes, me: int) -> bool:
        pid, segment, opening, token = _CARD.unpack(card)
        try:
            if _map(pid, segment)[:16].tobytes() != token:
                return False
            self._writers[rank] = MailboxWriter(pid, opening, me)
        except (OSError, ValueError):
            return False
        self._pids[rank] = pid
        return True


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The state follows the name, which may contain any character.
            return file.read().rpartition(b") ")[2][:1] not in b"ZX"
    except OSError:
        return False


def _map(pid: int, fd: int) -> NDArray[np.uint8]:
    """Map a segment of another process, read-only, with all its pages.

    Raises:
        OSError: there is no such segment, or this process may not open it.
        ValueError: it is not a segment of an arena: it could shrink while others read it.
    """
    path = f"/proc/{pid}/fd/{fd}"
    # If the other process is on another host, the path belongs to an unrelated process here: do not open its devices.
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
