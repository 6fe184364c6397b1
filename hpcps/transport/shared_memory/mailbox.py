"""A pipe for the messages of neighbours; a process sleeps on it until a message arrives.

A write takes a microsecond, wakes the receiver, and is complete at once. MPI may delay a message until both sides poll,
which can take long on busy cores.
"""

from __future__ import annotations

import os
import select
import struct
from collections import deque
from contextlib import suppress

_CHUNK = struct.Struct("<IHB")
"""The rank of the sender, the number of bytes that follow, and whether more chunks of the message follow."""
_BODY = select.PIPE_BUF - _CHUNK.size
"""Bytes of a chunk: writes of this size are atomic."""
_READ = 1 << 16
_SELECTABLE = 1024
"""`select` supports only file descriptors below this number; `poll` supports all, but only whole milliseconds."""


class Mailbox:
    """The receiving end of the pipe of this process.

    Attributes:
        opening: the file descriptor of the sending end, which neighbours open through `/proc`.
    """

    def __init__(self) -> None:
        self._end, self.opening = os.pipe()
        os.set_blocking(self._end, False)
        os.set_blocking(self.opening, False)
        self._unread = b""
        self._begun: dict[int, bytearray] = {}

    def take(self) -> list[tuple[int, bytes]]:
        """Return the messages that have arrived, in order, with the rank that each names as its sender."""
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
        """Sleep for `seconds`, or until a message arrives; return whether one did."""
        if self._end < _SELECTABLE:
            return bool(select.select([self._end], [], [], seconds)[0])
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        return bool(poll.poll(1000 * seconds))

    def close(self) -> None:
        """Close both ends."""
        os.close(self._end)
        os.close(self.opening)


class MailboxWriter:
    """The sending end of the mailbox of one neighbour."""

    def __init__(self, pid: int, opening: int, me: int) -> None:
        """Open the mailbox of a neighbour.

        Args:
            pid: the process of the neighbour.
            opening: see `Mailbox`.
            me: the rank of this process, to send with each message.

        Raises:
            OSError: this process cannot open it.
        """
        self._fd = os.open(f"/proc/{pid}/fd/{opening}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._me = me
        self._kept: deque[bytes] = deque()

    def put(self, message: bytes) -> None:
        """Write a message; if the pipe is full, call `push` until it returns True."""
        for start in range(0, len(message) or 1, _BODY):
            body = message[start : start + _BODY]
            self._kept.append(_CHUNK.pack(self._me, len(body), start + _BODY < len(message)) + body)
        self.push()

    def push(self) -> bool:
        """Write as much as fits into the pipe; return whether everything is written."""
        try:
            while self._kept:
                os.write(self._fd, self._kept[0])
                self._kept.popleft()
        except BlockingIOError:
            return False
        except BrokenPipeError:  # the neighbour has ended
            self._kept.clear()
        return True

    def close(self) -> None:
        """Close the pipe."""
        with suppress(OSError):
            os.close(self._fd)
