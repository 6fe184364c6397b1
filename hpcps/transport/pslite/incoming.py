"""The receiving end of a node: incoming TCP connections with ZeroMQ's protocol (ZMTP 3.0).

A ZeroMQ socket reads a whole message of any size into memory before it returns its first frame. This module identifies
the sender by the handshake before it reads frames, so that a sender outside the cluster can use only bounded memory.
"""

from __future__ import annotations

import errno
import re
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from hpcps.transport.pslite.encoding import MOST_BYTES, Admission, RefusedError

Frame = npt.NDArray[np.uint8]

_IDENTITY = re.compile(rb"ps([0-9]{1,9})")
_MORE, _LONG, _COMMAND = 1, 2, 4
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value


_READY = b"\x05READY" + _property(b"Socket-Type", b"ROUTER") + _property(b"Identity", b"")
_HELLO = _GREETING + bytes([_COMMAND, len(_READY)]) + _READY

_MOST_FRAMES = 512
_LARGEST = 1 << 31
"""Maximum bytes of a frame of a member: a length is a signed number of 32 bits."""
_STRANGERS_BYTES = 1 << 14
"""Maximum bytes of a message of an unknown sender, which may only register."""
_STRANGERS = 256
"""Maximum number of connections of unknown senders, in addition to one per expected node."""
_CHUNK = 1 << 16
_BATCH = 1 << 18


class Connection:
    """One connection of a peer.

    Attributes:
        channel: its socket.
        peer: the id that the peer claims; None if it has none.
        known: whether the handshake is complete.
        member: whether the peer may send messages of a member.
        ahead: bytes that were read but not parsed.
        complete: received messages; the caller removes them.
        kept: received messages that wait until the node knows the process that has sent them.
    """

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.peer: int | None = None
        self.known = self.member = False
        self.ahead = memoryview(b"")
        self.complete: list[list[Frame]] = []
        self.kept: list[list[Frame]] = []
        self._low = 1
        self._block: Frame
        self._room: memoryview
        self._parser = self._parse()
        self._make_room(next(self._parser))

    def advance(self) -> None:
        """Read and parse available bytes; stop after the handshake, when it completes.

        Raises:
            RefusedError: the bytes violate the protocol.
            OSError: the connection has ended.
        """
        if len(self._room) >= _CHUNK and not self.ahead:
            self._fill(_some(self.channel.recv_into(self._room)))
            self._wake_after(len(self._room))
            return
        self.ahead = self.ahead or memoryview(self.channel.recv(_CHUNK))
        _some(len(self.ahead))
        known = self.known
        while self.ahead and self.known == known:
            count = min(len(self.ahead), len(self._room))
            self._room[:count] = self.ahead[:count]
            self.ahead = self.ahead[count:]
            self._fill(count)

    def _wake_after(self, size: int) -> None:
        """Set the low-water mark of the socket, so that a large frame does not wake this process for each packet."""
        size = min(size, _BATCH) if size >= _CHUNK else 1
        if size != self._low:
            self._low = size
            self.channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def _fill(self, count: int) -> None:
        self._room = self._room[count:]
        if not self._room:
            self._make_room(self._parser.send(self._block))

    def _make_room(self, size: int) -> None:
        self._block = np.empty(size, np.uint8)
        self._room = self._block.data

    def _parse(self) -> Generator[int, Frame, None]:
        """Parse the stream: yield the number of bytes needed next, receive them, and append complete messages."""
        greeting = (yield len(_GREETING)).tobytes()
        if greeting[0] != 0xFF or greeting[9] != 0x7F or greeting[10] < 3 or greeting[12:32] != _GREETING[12:32]:
            raise RefusedError("it does not use ZeroMQ's protocol, version 3")
        flags, ready = yield from self._frame(512)
        if not flags & _COMMAND:
            raise RefusedError("it sends data before its handshake")
        match = _IDENTITY.fullmatch(_identity(ready.tobytes()))
        self.peer, self.known = int(match[1]) if match else None, True
        while True:
            frames: list[Frame] = []
            flags, size = _MORE, 0
            while flags & _MORE:
                most = (_LARGEST if frames else MOST_BYTES) if self.member else _STRANGERS_BYTES - size
                flags, frame = yield from self._frame(most)
                if flags & _COMMAND:
                    flags = _MORE  # some commands of the protocol need no answer
                    continue
                frames.append(frame)
                size += frame.size
                if len(frames) > _MOST_FRAMES:
                    raise RefusedError(f"its message has more than {_MOST_FRAMES} frames")
            self.complete.append(frames)

    def _frame(self, most: int) -> Generator[int, Frame, tuple[int, Frame]]:
        flags = int((yield 1)[0])
        size = int.from_bytes((yield 8 if flags & _LONG else 1).tobytes(), "big")
        if flags & ~(_MORE | _LONG | _COMMAND):
            raise RefusedError(f"its frame has the unknown flags {flags}")
        if size > most:
            raise RefusedError(f"its frame of {size} bytes is larger than {most}")
        return flags, ((yield size) if size else np.empty(0, np.uint8))


class Incoming:
    """Listens, and reads messages from all connections; one thread receives.

    Args:
        admission: returns how the node treats a sender with this id.
        refuse: called with the reason for closing a connection.
        expected: the number of nodes.

    Attributes:
        closed: the time at which the last connection of a member closed, for members without a connection.
    """

    def __init__(
        self, admission: Callable[[int | None], Admission], refuse: Callable[[str], None], expected: int
    ) -> None:
        self.closed: dict[int, float] = {}
        self._admission, self._refuse = admission, refuse
        self._most_strangers = _STRANGERS + expected
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._wake_reader, self._wake_writer = socket.socketpair()
        for end in (self._wake_reader, self._wake_writer):
            end.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._members: dict[int, Connection] = {}
        self._held: dict[int, Connection] = {}
        self._outdated: set[int] = set()
        self._strangers: dict[Connection, None] = {}
        self._ready: deque[Connection] = deque()
        self._inbox: deque[tuple[Connection, list[Frame]]] = deque()
        self._last: Connection | None = None

    def bind(self, address: str, port: int) -> int:
        """Listen at an IPv4 address and a port, 0 for a free one; return the port.

        Raises:
            OSError: the address or the port cannot be bound.
        """
        self._listener = socket.create_server((address, port), backlog=1024)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        return int(self._listener.getsockname()[1])

    def receive(self, timeout: float | None) -> tuple[int | None, list[Frame]] | None:
        """Wait for a message, for `wake`, or for `timeout` seconds.

        Returns:
            The id of the sender (None if it has no id) and the frames; or None without a message.
        """
        if not self._inbox:
            self._read(timeout)
        if not self._inbox:
            return None
        self._last, frames = self._inbox.popleft()
        return self._last.peer, frames

    def answer(self, frame: bytes) -> None:
        """Send a frame back to the sender of the last received message; MXNet's nodes do not read it."""
        assert self._last is not None
        with suppress(OSError):  # the sender has closed the connection, or does not read
            self._last.channel.send(bytes([_LONG]) + len(frame).to_bytes(8, "big") + frame)

    def wake(self) -> None:
        """Make `receive` return, in any thread."""
        with suppress(OSError):  # a wake-up is pending already, or the sockets are closed
            self._wake_writer.send(b"w")

    def resume(self) -> None:
        """Admit held connections of members that the node knows now."""
        for peer in list(self._held):
            self._admit(peer)

    def replaced(self, peer: int) -> None:
        """Let the connection of a new process with this id, which may be held already, replace the old connection."""
        self.closed.pop(peer, None)
        self._outdated.add(peer)
        if peer in self._held:
            self._admit(peer)

    def suspend(self, peer: int) -> None:
        """Read nothing more of a dead node, until a new process has its id: the connection may be that one's already.

        A node may hear of the death only after the new process has connected.
        """
        connection = self._members.get(peer)
        if connection is None:
            return
        if peer in self._held:
            self._drop(connection)
            return
        del self._members[peer]
        self._held[peer] = connection
        self._selector.unregister(connection.channel)
        self._ready = deque(each for each in self._ready if each is not connection)
        connection.kept = [frames for each, frames in self._inbox if each is connection]
        self._inbox = deque(each for each in self._inbox if each[0] is not connection)

    def close(self) -> None:
        """Close all connections."""
        for connection in [*self._members.values(), *self._held.values(), *self._strangers]:
            connection.channel.close()
        for end in filter(None, (self._listener, self._wake_reader, self._wake_writer)):
            end.close()
        self._selector.close()

    def _read(self, timeout: float | None) -> None:
        if self._ready:
            self._advance(self._ready.popleft())
        else:
            for key, _ in self._selector.select(timeout):
                if key.fileobj is self._wake_reader:
                    self._wake_reader.recv(_CHUNK)
                elif key.fileobj is self._listener:
                    self._accept()
                elif key.data.channel.fileno() >= 0:  # an earlier event of this loop may have closed it
                    self._advance(key.data)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            channel, _ = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and self._strangers:
                self._drop(next(iter(self._strangers)))
            elif error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            return
        channel.setblocking(False)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, seconds in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, name):
                channel.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
        with suppress(OSError):
            channel.send(_HELLO)
        connection = Connection(channel)
        self._strangers[connection] = None
        self._selector.register(channel, selectors.EVENT_READ, connection)
        if len(self._strangers) > self._most_strangers:
            self._drop(next(iter(self._strangers)))

    def _advance(self, connection: Connection) -> None:
        known = connection.known
        try:
            connection.advance()
            if connection.known and not known:
                self._place(connection)
        except BlockingIOError:
            return
        except (OSError, RefusedError) as error:
            if isinstance(error, RefusedError):
                self._refuse(f"{_name(connection.peer)} is disconnected: {error}")
            self._drop(connection)
        self._inbox.extend((connection, frames) for frames in connection.complete)
        connection.complete.clear()

    def _place(self, connection: Connection) -> None:
        """Decide how to treat a connection after its handshake."""
        peer = connection.peer
        if peer is None or self._admission(peer) is Admission.STRANGER:
            self._ready.append(connection)
            return
        # While the connection of a member lives, a second connection with the same id is held and not read.
        del self._strangers[connection]
        self._selector.unregister(connection.channel)
        if peer in self._held:
            self._drop(self._held[peer])
        self._held[peer] = connection
        self._admit(peer)

    def _admit(self, peer: int) -> None:
        admission = self._admission(peer)
        if admission is Admission.STRANGER:
            self._drop(self._held[peer])
        elif peer in self._members and peer in self._outdated:
            self._outdated.discard(peer)
            self._drop(self._members[peer])  # this also admits the held connection
        if peer in self._members or peer not in self._held or admission is Admission.LATER:
            return
        connection = self._held.pop(peer)
        connection.member = True
        self._members[peer] = connection
        self.closed.pop(peer, None)
        self._selector.register(connection.channel, selectors.EVENT_READ, connection)
        self._ready.append(connection)
        self._inbox.extend((connection, frames) for frames in connection.kept)
        connection.kept.clear()

    def _drop(self, connection: Connection) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection.channel)
        connection.channel.close()
        self._strangers.pop(connection, None)
        peer = connection.peer
        if peer is None:
            return
        if self._held.get(peer) is connection:
            del self._held[peer]
        elif self._members.get(peer) is connection:
            del self._members[peer]
            self.closed[peer] = time.monotonic()
            if peer in self._held:
                self._admit(peer)


def _some(count: int) -> int:
    if not count:
        raise ConnectionResetError("it has closed the connection")
    return count


def _name(peer: int | None) -> str:
    return "a sender without an id" if peer is None else f"node {peer}"


def _identity(ready: bytes) -> bytes:
    """Return the identity in a READY command, b"" without one."""
    if not ready.startswith(b"\x05READY"):
        raise RefusedError("its handshake is not that of the mechanism NULL")
    at = 6
    while at < len(ready):
        name, at = ready[at + 1 : at + 1 + ready[at]], at + 1 + ready[at]
        size, at = int.from_bytes(ready[at : at + 4], "big"), at + 4
        if at + size > len(ready):
            raise RefusedError("its handshake goes beyond its end")
        value, at = ready[at : at + size], at + size
        if name.lower() == b"identity":
            return value
    return b""
