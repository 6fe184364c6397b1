"""The sockets of a node: one for incoming connections, and a ZeroMQ socket to each other node."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

import zmq

from hpcps.errors import LaunchError
from hpcps.transport.pslite.incoming import Admission, Incoming


class Sockets:
    """Binds, connects, sends and receives frames. Any thread may send; one thread receives."""

    def __init__(
        self, admission: Callable[[int | None], Admission], refuse: Callable[[str], None], expected: int
    ) -> None:
        self.incoming = Incoming(admission, refuse, expected)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._outgoing: dict[int, tuple[zmq.Socket[bytes], Lock]] = {}

    def bind(self, address: str, port: int) -> int:
        """Listen at an IPv4 address and a port, 0 for a free one; return the port.

        Raises:
            LaunchError: another process listens there, or the address does not belong to this host.
        """
        try:
            return self.incoming.bind(address, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                advice = "the port is in use; set another, or leave it unset (transport.port; DMLC_PS_ROOT_PORT, PORT)"
            else:
                why = os.strerror(error.errno or 0)
                advice = f"{why}; check that DMLC_NODE_HOST or DMLC_PS_ROOT_URI is an address of this host"
            raise LaunchError(f"cannot listen at {address}:{port}: {advice}") from None

    def connect(self, to: int, host: str, port: int, own_id: int | None) -> None:
        """Open the socket to a node; it replaces the socket to a predecessor of the node."""
        socket = self._context.socket(zmq.DEALER)
        if own_id is not None:
            socket.setsockopt(zmq.IDENTITY, b"ps%d" % own_id)
        # Sending must never block, because the receiving thread sends too. The open requests bound the queue.
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.connect(f"tcp://{host}:{port}")
        old = self._outgoing.get(to)
        self._outgoing[to] = (socket, Lock())
        if old is not None:
            with old[1]:
                old[0].close(linger=0)

    def reaches(self, to: int) -> bool:
        """Whether there is a socket to a node."""
        return to in self._outgoing

    def send(self, to: int, frames: Sequence[Any]) -> zmq.MessageTracker | None:
        """Start sending frames, large ones without a copy; the tracker tells when their memory is free again.

        Returns:
            None if the socket is closed because the other node died.
        """
        socket, lock = self._outgoing[to]
        # `send_multipart` returns the tracker of the last frame only.
        with lock, suppress(zmq.ZMQError):
            *first, last = frames
            trackers = [socket.send(frame, zmq.SNDMORE, copy=False, track=True) for frame in first]
            return zmq.MessageTracker(*trackers, socket.send(last, copy=False, track=True))
        return None

    def answer(self, to: int) -> bytes | None:
        """Return what a node has sent back on the socket to it, or None; nodes of MXNet send nothing back."""
        socket, lock = self._outgoing[to]
        with lock:
            return socket.recv() if socket.poll(0) else None

    def close(self, linger: float) -> None:
        """Close all sockets; pending messages have `linger` seconds left."""
        self.incoming.close()
        for socket, _ in self._outgoing.values():
            socket.close(linger=int(linger * 1000))
        self._outgoing.clear()
        self._context.term()
