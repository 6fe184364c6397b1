"""The exchange of device memory between a process and its peers in one run."""

from __future__ import annotations

from hpcps.numerics.layout import Vector
from hpcps.numerics.vectors import Device, on_host
from hpcps.protocol.messages import Message


class DeviceLink:
    """How vectors of this process's device reach its peers.

    Attributes:
        device: the device.
        direct: the ranks to which MPI sends its memory, and from which MPI receives into it; the others get copies on
            the host.
    """

    def __init__(self, device: Device, direct: frozenset[int]) -> None:
        self.device = device
        self.direct = direct
        self._fetched: tuple[Message, Vector] | None = None

    def staged(self, message: Message) -> Vector:
        """Return a copy of a message's payload on the host; one copy serves all receivers of the message."""
        if self._fetched is None or self._fetched[0] is not message:
            self._fetched = message, on_host(message.values)
        return self._fetched[1]
