"""The ZeroMQ sockets of a node: one that all others send to, and one towards each of them."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

import zmq

from hpcps.errors import LaunchError

_IDENTITY = re.compile(rb"ps([0-9]{1,9})")
_WAKE = "inproc://wake"


class Sockets:
    """Binds, connects, sends and receives frames. Any thread may send; one thread receives."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._incoming = self._context.socket(zmq.ROUTER)
        # A node that died and came back takes over the name of its old connection, even if that still looks alive.
        self._incoming.setsockopt(zmq.ROUTER_HANDOVER, 1)
        # A length is a signed number of 32 bits: nobody means a larger frame.
        self._incoming.setsockopt(zmq.MAXMSGSIZE, 1 << 31)
        self._outgoing: dict[int, tuple[zmq.Socket[bytes], Lock]] = {}
        self._bell = self._context.socket(zmq.PAIR)
        self._bell.bind(_WAKE)
        self._cord = self._context.socket(zmq.PAIR)
        self._cord.connect(_WAKE)
        self._cord_lock = Lock()
        self._poller = zmq.Poller()
        self._poller.register(self._incoming, zmq.POLLIN)
        self._poller.register(self._bell, zmq.POLLIN)

    def bind(self, address: str, port: int) -> int:
        """Listen at an IPv4 address and a port, 0 for a free one; return the port.

        Raises:
            LaunchError: somebody else listens there, or it is no address of this host.
        """
        try:
            self._incoming.bind(f"tcp://{address}:{port or '*'}")
        except zmq.ZMQError as error:
            if error.errno == zmq.EADDRINUSE:
                advice = "the port is in use; take another, or leave it open (transport.port; DMLC_PS_ROOT_PORT, PORT)"
            else:
                why = os.strerror(error.errno or 0)
                advice = f"{why}; is what DMLC_NODE_HOST or DMLC_PS_ROOT_URI says of this host?"
            raise LaunchError(f"cannot listen at {address}:{port}: {advice}") from None
        return int(self._incoming.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    def connect(self, to: int, host: str, port: int, own_id: int | None) -> None:
        """Open the socket towards a node, in place of the one towards its predecessor if there is one."""
        socket = self._context.socket(zmq.DEALER)
        if own_id is not None:
            socket.setsockopt(zmq.IDENTITY, b"ps%d" % own_id)
        # Sending must never block: the thread that receives answers as well. What waits is bounded by open requests.
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.connect(f"tcp://{host}:{port}")
        old = self._outgoing.get(to)
        self._outgoing[to] = (socket, Lock())
        if old is not None:
            with old[1]:
                old[0].close(linger=0)

    def reaches(self, to: int) -> bool:
        """Whether there is a socket towards a node."""
        return to in self._outgoing

    def send(self, to: int, frames: Sequence[Any]) -> zmq.MessageTracker | None:
        """Begin to send frames, large ones without a copy; the tracker says when their memory is free again.

        None if the socket was closed meanwhile, as the node at its other end died.
        """
        socket, lock = self._outgoing[to]
        with lock, suppress(zmq.ZMQError):
            return socket.send_multipart(frames, copy=False, track=True)
        return None

    def receive(self, timeout: float | None) -> tuple[int | None, list[zmq.Frame]] | None:
        """Wait for a message, for a ring of the bell or for a number of seconds.

        Returns:
            The sender's id (None if it has not got one) and the frames; or None.
        """
        ready = dict(self._poller.poll(None if timeout is None else math.ceil(timeout * 1000)))
        if self._bell in ready:
            self._bell.recv()
        if self._incoming not in ready:
            return None
        identity, *frames = self._incoming.recv_multipart(copy=False)
        match = _IDENTITY.fullmatch(identity.bytes)
        return (int(match[1]) if match else None), frames

    def ring(self) -> None:
        """Have `receive` return, from whichever thread it is waiting in."""
        with self._cord_lock:
            self._cord.send(b"")

    def close(self, linger: float) -> None:
        """Close all; what is not yet sent has so many seconds left."""
        for socket in self._everything():
            socket.close(linger=int(linger * 1000))
        self._outgoing.clear()
        self._context.term()

    def _everything(self) -> Iterable[zmq.Socket[bytes]]:
        return [self._incoming, self._bell, self._cord, *(socket for socket, _ in self._outgoing.values())]
