"""All processes of a launch, where they do something together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hpcps.errors import RunError
from hpcps.layout import Vector
from hpcps.messages import Peer
from hpcps.transport.base import Transport
from hpcps.transport.patience import Patience


class LostError(RunError):
    """Another process is gone.

    Attributes:
        peer: which.
        host: where it was.
        why: what makes us think so.
    """

    def __init__(self, peer: Peer, host: str, why: str) -> None:
        super().__init__(f"{peer} on {host} is lost: {why}")
        self.peer, self.host, self.why = peer, host, why


class Gathering(Protocol):
    """One process's place among all of them; what it offers here, all of them do together, in the same order.

    Processes come at very different times (some import a framework): waiting for the last one does not spin.

    Attributes:
        rank: the number of this process.
        size: how many there are.
        kind: what carries the messages, as `transport.kind` calls it.
        transport: its end of that.
    """

    rank: int
    size: int
    kind: str

    @property
    def transport(self) -> Transport:
        """Its end of what carries the messages between roles."""

    def facts(self) -> Mapping[str, object]:
        """Return what is to be known later of the library beneath."""

    def collect(self, text: str) -> list[str]:
        """Tell all processes a text, of a few thousand bytes at most; return everyone's, by rank."""

    def share(self, number: int) -> int:
        """Return rank 0's number to all processes."""

    def patience(self) -> Patience:
        """Return how to wait for a message."""

    def allocate(self, size: int) -> Vector:
        """Return an array of so many float32 to send from, contents unspecified; it is valid until all settle.

        Where processes share memory, what lies there is read in place.
        """

    def in_memory(self) -> list[Peer]:
        """Return who reads in place all that is sent from there; nobody if some of it is ordinary memory."""

    def barrier(self) -> None:
        """Wait until every process is here."""

    def settle(self) -> None:
        """Wait until every process is here and every message has arrived; those that nobody took are dropped.

        A run may end with messages still under way (a repeated one, or an asynchronous worker's last update). They must
        not meet the next run.
        """

    def leave(self) -> None:
        """Wait until every process is here to leave, and do so."""

    def abandon(self) -> None:
        """Leave at once, without the others; nothing if it has left."""
