"""What a transport offers to the driver of a role."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hpcps.messages import Malformed, Message, Peer, Received


@dataclass
class Traffic:
    """Bytes that crossed the transport, headers included."""

    sent: int = 0
    received: int = 0


class Transport(Protocol):
    """Sends and receives without blocking."""

    traffic: Traffic

    def send(self, to: Peer, message: Message) -> None:
        """Begin to send; the payload must stay unchanged until its receiver has answered, or for good.

        Messages from one sender to one receiver arrive in the order in which they were sent.
        """

    def receive(self) -> Received | Malformed | None:
        """Push pending transfers on and return what has come, if anything.

        The payload of what is returned is valid until its receiver answers the sender; see `Message`.
        """
