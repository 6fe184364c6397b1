"""The address that a node binds, and its sockets."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any

import zmq

from hpcps.errors import LaunchError
from hpcps.transport.pslite.encoding import Admission
from hpcps.transport.pslite.incoming import Incoming

ALL = "all"
"""As `DMLC_INTERFACE`: bind every interface."""

_GET_ADDRESS = 0x8915  # SIOCGIFADDR


def resolve(host: str) -> str:
    """Return the IPv4 address of a host name; an address stays as it is.

    Raises:
        LaunchError: the name has no IPv4 address.
    """
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        where = "DMLC_NODE_HOST, DMLC_PS_ROOT_URI or a host file names it"
        raise LaunchError(f"{host!r} has no IPv4 address: {error}; {where}") from None
    return str(found[0][4][0])


def interface_address(name: str) -> str:
    """Return the IPv4 address of a network interface.

    Raises:
        LaunchError: there is no such interface, or it has no IPv4 address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, struct.pack("256s", name.encode()[:15]))
        except OSError as error:
            there = ", ".join(interface for _, interface in socket.if_nameindex())
            raise LaunchError(
                f"the interface {name!r} (DMLC_INTERFACE) has no IPv4 address: {error.strerror}; this host has {there}"
            ) from None
    return socket.inet_ntoa(answer[20:24])


def own_address(host: str, interface: str, root: str) -> tuple[str, str]:
    """Choose the address to announce and the address to bind.

    Args:
        host: a name or address of this host to announce (`DMLC_NODE_HOST`); "" for none.
        interface: the interface to use (`DMLC_INTERFACE`); "" for none.
        root: the host of the scheduler. Without the two above, the address is the source address of packets to that
            host: on one machine the loopback address, on a cluster the address in the network of the scheduler.

    Raises:
        LaunchError: there is no such address.
    """
    if interface and interface != ALL:
        own = interface_address(interface)
    elif host:
        own = resolve(host)
    else:
        target = resolve(root)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((target, 9))  # chooses a route and sends nothing
            except OSError as error:
                raise LaunchError(f"there is no route from this host to {root}: {error.strerror}") from None
            own = str(probe.getsockname()[0])
    return host or own, "0.0.0.0" if interface == ALL else own


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
        for outgoing, _ in self._outgoing.values():
            outgoing.close(linger=int(linger * 1000))
        self._outgoing.clear()
        self._context.term()
