"""The interface of a transport for the driver of a role."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hpcps.protocol.envelope import Delivered, Envelope
from hpcps.protocol.messages import Peer
from hpcps.protocol.received import Lost, Malformed, Operation, Reduced, Replaced

Arrived = Delivered | Malformed | Reduced | Lost | Replaced
"""What a transport has for its role."""


@dataclass
class Traffic:
    """Bytes that crossed the transport, headers included.

    Attributes:
        sent: bytes sent.
        received: bytes received.
        scale: a factor on the bytes of payloads, to simulate a larger model.
    """

    sent: int = 0
    received: int = 0
    scale: float = 1.0

    def size(self, header: bytes, payload: int) -> int:
        """Return the bytes that count for a message, from its header and the bytes of its payload."""
        return len(header) + (payload if self.scale == 1.0 else round(self.scale * payload))


class MessageTransport(ABC):
    """Sends and receives without blocking."""

    traffic: Traffic

    @property
    def unsent(self) -> int:
        """The bytes of messages that it has got and not handed to the network; 0 if it sends each at once."""
        return 0

    def confirm(self) -> None:  # noqa: B027 - only transports over which processes are replaced need it
        """Wait until this process would know if the others went on without it, if it has been stopped.

        Raises:
            DeclaredLostError: they do.
        """

    @abstractmethod
    def send(self, to: Peer, envelope: Envelope) -> None:
        """Start sending; the payload must not change until its receiver has answered (if it never does, never).

        Messages from one sender to one receiver arrive in the order in which they were sent.
        """

    @abstractmethod
    def receive(self) -> Arrived | None:
        """Advance pending transfers and return a message or an event that has arrived, or None.

        The payload of the message is valid until this process answers the sender; see `Message`.
        """


KeptMessage = tuple[int, Envelope]
"""A message of a server that its standby keeps, after how many others to the same role."""


class StandbyTransport(MessageTransport):
    """The transport of the standby of a server, which gets the messages to the server, too.

    What it sends before it takes the place of the server goes to the server alone.
    """

    @abstractmethod
    def begin(
        self, sent: Mapping[Peer, int], kept: Mapping[Peer, Sequence[KeptMessage]], known: Mapping[Peer, int]
    ) -> None:
        """Begin in the middle of a run.

        Args:
            sent: the number of messages of the server to each role.
            kept: those of them that have not been sent to their receivers.
            known: the number of the process of each role that the server knows, if it is a replacement.
        """

    @property
    @abstractmethod
    def kept(self) -> Mapping[Peer, Sequence[KeptMessage]] | None:
        """What is kept for each role; None while messages that are not kept are on their way to other processes."""

    @abstractmethod
    def keep(self, to: Peer, envelope: Envelope) -> None:
        """Keep a message that the server sends, as the next one to its receiver, until the receiver has got it."""

    @abstractmethod
    def forget(self, to: Peer) -> None:
        """Forget what was kept for a receiver that is lost: the server has heard of its replacement.

        What has been kept since the transport knows the replacement is for it.
        """

    @abstractmethod
    def take_over(self) -> None:
        """Take the place of the server: send what was kept and has not been received; then send in its name."""


class CollectiveTransport(MessageTransport):
    """A transport that can also reduce arrays, without blocking."""

    @abstractmethod
    def join(self, peers: Sequence[Peer]) -> None:
        """Prepare the reductions of these peers; all of them call this at the same time."""

    @abstractmethod
    def reduce(self, values: NDArray[Any], operation: Operation, *, soon: bool = False) -> None:
        """Start to reduce `values` with those of the other peers, in place; `receive` returns `Reduced` at the end.

        All peers reduce arrays of the same size and type in the same order. The array counts as sent and received.
        `soon`: see `Reduce`.
        """
