"""The interface of a transport for the driver of a role."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
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
