"""The exchange of device memory between a process and its peers in one run."""

from __future__ import annotations

from collections.abc import Mapping

from hpcps.numerics.layout import Vector
from hpcps.numerics.vectors import Device, DeviceError, DeviceVector, on_host
from hpcps.protocol.messages import MalformedMessageError, Message


class DeviceLink:
    """How vectors of this process's device reach its peers, by rank.

    Attributes:
        device: the device.
        mapped: the process ids of the ranks that read its memory in place, and whose memory it reads.
        direct: the ranks to which MPI sends its memory, and from which MPI receives into it.
    """

    def __init__(self, device: Device, mapped: Mapping[int, int], direct: frozenset[int]) -> None:
        self.device = device
        self.mapped = dict(mapped)
        self.direct = direct
        self._fetched: tuple[Message, Vector] | None = None

    def address(self, payload: DeviceVector) -> bytes:
        """Return the address of a payload, for a message."""
        address = self.device.export(payload)
        return bytes([len(address)]) + address

    def view(self, rank: int, packet: bytes) -> tuple[DeviceVector, bytes]:
        """Return the payload that a message of a rank refers to, and the rest of the message.

        Raises:
            MalformedMessageError: there is no such payload.
        """
        stop = 1 + packet[0] if packet else 1
        if rank not in self.mapped or len(packet) < stop:
            raise MalformedMessageError("it refers to the memory of a device that cannot be reached")
        try:
            return self.device.map(self.mapped[rank], packet[1:stop]), packet[stop:]
        except DeviceError as error:
            raise MalformedMessageError(f"the device memory that it refers to cannot be read: {error}") from None

    def staged(self, message: Message) -> Vector:
        """Return a copy of a message's payload on the host; one copy serves all receivers of the message."""
        if self._fetched is None or self._fetched[0] is not message:
            self._fetched = message, on_host(message.values)
        return self._fetched[1]
