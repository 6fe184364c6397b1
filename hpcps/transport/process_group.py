"""The process group: collective operations of all processes of a launch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hpcps.errors import RunError
from hpcps.numerics.layout import Vector
from hpcps.protocol.messages import Peer
from hpcps.transport.backoff import Backoff
from hpcps.transport.base import MessageTransport
from hpcps.transport.device import DeviceLink


class LostError(RunError):
    """Another process of the group is lost.

    Attributes:
        peer: its role.
        host: its host.
        why: the evidence.
    """

    def __init__(self, peer: Peer, host: str, why: str) -> None:
        super().__init__(f"{peer} on {host} is lost: {why}")
        self.peer, self.host, self.why = peer, host, why


class ProcessGroup(Protocol):
    """A process group, as one process sees it; all processes call its collective operations in the same order.

    Processes arrive at very different times (some import a framework), so collective operations wait without spinning.

    Attributes:
        rank: the number of this process.
        size: the number of processes.
        kind: the kind of transport, as in `transport.kind`.
        transport: the transport of this process.
    """

    rank: int
    size: int
    kind: str

    @property
    def transport(self) -> MessageTransport:
        """The transport for messages between roles."""

    def facts(self) -> Mapping[str, object]:
        """Return facts about the communication library, for the provenance."""

    def collect(self, text: str) -> list[str]:
        """Exchange a text of at most a few thousand bytes; return the texts of all processes, by rank (allgather)."""

    def share(self, number: int) -> int:
        """Return the number of rank 0 on all processes (broadcast)."""

    def backoff(self) -> Backoff:
        """Return the backoff for waits for a message."""

    def allocate(self, size: int) -> Vector:
        """Return an array of `size` float32 values to send from, contents unspecified, valid until the next `settle`.

        Processes that share memory with this one read it in place.
        """

    def in_memory(self) -> list[Peer]:
        """Return the peers that read allocated arrays in place; empty if an array is in ordinary memory."""

    def exchange(self, link: DeviceLink | None) -> None:
        """Exchange device memory until the next `settle` as a link says; without one, payloads are on the host."""

    def barrier(self) -> None:
        """Wait until every process calls this."""

    def settle(self) -> None:
        """Wait until every process calls this and every message has arrived; drop messages that no role has received.

        A run may end with messages in transit (a repeated one, or the last update of an asynchronous worker). They must
        not reach the next run.
        """

    def leave(self) -> None:
        """Wait until every process calls this, then leave the group."""

    def abandon(self) -> None:
        """Leave the group immediately, without the others; no effect after leaving."""
