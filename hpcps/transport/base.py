"""The interface of a transport for the driver of a role."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hpcps.protocol.messages import Malformed, Message, Peer, Received


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


class MessageTransport(Protocol):
    """Sends and receives without blocking."""

    traffic: Traffic

    def send(self, to: Peer, message: Message) -> None:
        """Start sending; the payload must not change until its receiver has answered (if it never does, never).

        Messages from one sender to one receiver arrive in the order in which they were sent.
        """

    def receive(self) -> Received | Malformed | None:
        """Advance pending transfers and return a message that has arrived, or None.

        The payload of the message is valid until this process answers the sender; see `Message`.
        """
