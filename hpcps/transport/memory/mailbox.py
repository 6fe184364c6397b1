"""A pipe that carries what neighbours say, and at which a process sleeps until one of them does.

To write into it takes a microsecond, wakes whoever sleeps, and needs nobody's progress: MPI may hold a message back
until both sides poll, which on busy cores is a while.
"""

from __future__ import annotations

import os
import select
import struct
from collections import deque
from contextlib import suppress

_CHUNK = struct.Struct("<IHB")
"""The sender's rank, how many bytes follow, whether more of the same message do."""
_BODY = select.PIPE_BUF - _CHUNK.size
"""Bytes of a chunk: so much at once is not mixed up with what others write."""
_READ = 1 << 16
_SELECTABLE = 1024
"""Files from this number on are nothing for `select`; `poll` takes them, but knows whole milliseconds only."""


class Mailbox:
    """Where this process gets what neighbours say.

    Attributes:
        opening: the file descriptor that they write to, if they open it through `/proc`.
    """

    def __init__(self) -> None:
        self._end, self.opening = os.pipe()
        os.set_blocking(self._end, False)
        os.set_blocking(self.opening, False)
        self._unread = b""
        self._begun: dict[int, bytearray] = {}

    def take(self) -> list[tuple[int, bytes]]:
        """Return the messages that have come, in order, with the rank that each says it is of."""
        messages: list[tuple[int, bytes]] = []
        while True:
            try:
                came = os.read(self._end, _READ)
            except BlockingIOError:
                return messages
            unread, at = self._unread + came, 0
            while len(unread) - at >= _CHUNK.size:
                rank, size, more = _CHUNK.unpack_from(unread, at)
                stop = at + _CHUNK.size + size
                if stop > len(unread):
                    break
                body, at = unread[at + _CHUNK.size : stop], stop
                if more or rank in self._begun:
                    self._begun.setdefault(rank, bytearray()).extend(body)
                    if more:
                        continue
                    body = bytes(self._begun.pop(rank))
                messages.append((rank, body))
            self._unread = unread[at:]
            if len(came) < _READ:
                return messages

    def wait(self, seconds: float) -> bool:
        """Sleep for so long, or until something comes; say whether something did."""
        if self._end < _SELECTABLE:
            return bool(select.select([self._end], [], [], seconds)[0])
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        return bool(poll.poll(1000 * seconds))


class Slot:
    """Where this process puts what is for one neighbour."""

    def __init__(self, pid: int, opening: int, me: int) -> None:
        """Find the neighbour's mailbox.

        Args:
            pid: its process.
            opening: see `Mailbox`.
            me: this process's rank, for the neighbour to know.

        Raises:
            OSError: it is out of reach.
        """
        self._fd = os.open(f"/proc/{pid}/fd/{opening}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._me = me
        self._kept: deque[bytes] = deque()

    def put(self, message: bytes) -> None:
        """Say something; if the pipe is full, `push` must be called until it is said."""
        for start in range(0, len(message) or 1, _BODY):
            body = message[start : start + _BODY]
            self._kept.append(_CHUNK.pack(self._me, len(body), start + _BODY < len(message)) + body)
        self.push()

    def push(self) -> bool:
        """Write what the pipe has room for; say whether that is everything."""
        try:
            while self._kept:
                os.write(self._fd, self._kept[0])
                self._kept.popleft()
        except BlockingIOError:
            return False
        except BrokenPipeError:  # nobody is there any more
            self._kept.clear()
        return True

    def close(self) -> None:
        """Say nothing any more."""
        with suppress(OSError):
            os.close(self._fd)
