"""Messages over MPI: a header, then the payload straight from and into contiguous buffers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from mpi4py import MPI

from hpcps.layout import Vector
from hpcps.messages import Malformed, MalformedMessageError, Message, Peer, Received
from hpcps.transport.base import Traffic
from hpcps.transport.patience import Patience

# The tag says whether a payload follows, so that even after a header that cannot be read the stream stays in step.
_ALONE, _WITH_PAYLOAD, _PAYLOAD = 1, 2, 3


class MpiTransport:
    """Carries messages between the ranks of a communicator."""

    def __init__(self, communicator: MPI.Intracomm, ranks: Mapping[Peer, int]) -> None:
        self._communicator = communicator
        self._ranks = dict(ranks)
        self._peers = {rank: peer for peer, rank in ranks.items()}
        self._pending: list[tuple[MPI.Request, object]] = []
        self._status = MPI.Status()
        self._sent_to = np.zeros(communicator.Get_size(), np.int64)
        self._received_from = np.zeros(communicator.Get_size(), np.int64)
        self.traffic = Traffic()

    def send(self, to: Peer, message: Message) -> None:
        """See `Transport.send`."""
        header = message.header()
        rank = self._ranks[to]
        payload = message.payload if message.payload is not None and message.payload.size else None
        tag = _ALONE if payload is None else _WITH_PAYLOAD
        self._pending.append((self._communicator.Isend([header, MPI.BYTE], rank, tag), header))
        if payload is not None:
            self._pending.append((self._communicator.Isend([payload, MPI.FLOAT], rank, _PAYLOAD), payload))
        self._sent_to[rank] += 1
        self.traffic.sent += len(header) + message.payload_bytes

    def receive(self) -> Received | Malformed | None:
        """See `Transport.receive`."""
        self._progress()
        # One probe for both tags: what one sender sent alone must not overtake what it sent with a payload. A payload
        # is taken right after its header, so what comes first of a sender is a header.
        waiting = self._communicator.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, self._status)
        return None if waiting is None else self._take(waiting, self._status.Get_tag())

    def settle(self) -> None:
        """Wait until every rank is here and every message has arrived; those that nobody took are dropped.

        A run may end with messages still under way (a repeated one, or an asynchronous worker's last update). They must
        not meet the next run.
        """
        expected = np.zeros_like(self._sent_to)
        request = self._communicator.Ialltoall(self._sent_to, expected)
        patience = Patience()
        while not request.Test() or self._pending or (self._received_from < expected).any():
            if self.receive() is None:
                patience.wait()

    def barrier(self) -> None:
        """Wait until every rank is here, without spinning."""
        request = self._communicator.Ibarrier()
        patience = Patience()
        while not request.Test():
            patience.wait()

    def _progress(self) -> None:
        self._pending = [(request, kept) for request, kept in self._pending if not request.Test()]

    def _take(self, waiting: MPI.Message, tag: int) -> Received | Malformed:
        rank = self._status.Get_source()
        header = bytearray(self._status.Get_count(MPI.BYTE))
        waiting.Recv([header, MPI.BYTE])
        source = self._peers[rank]
        self._received_from[rank] += 1
        payload, stray = self._take_payload(rank) if tag == _WITH_PAYLOAD else (None, 0)
        self.traffic.received += len(header) + (payload.nbytes if payload is not None else stray)
        if stray:
            return Malformed(source, f"its payload of {stray} bytes is not a number of float32")
        try:
            return Received(source, Message.decode(bytes(header), payload))
        except MalformedMessageError as error:
            return Malformed(source, str(error))

    def _take_payload(self, rank: int) -> tuple[Vector | None, int]:
        """Receive the payload that follows a header; one that is not whole floats is dropped, its size returned."""
        patience = Patience()
        while (waiting := self._communicator.Improbe(rank, _PAYLOAD, self._status)) is None:
            self._progress()
            patience.wait()
        size = self._status.Get_count(MPI.BYTE)
        if size % 4:
            waiting.Recv([bytearray(size), MPI.BYTE])
            return None, size
        payload: Vector = np.empty(size // 4, np.float32)
        waiting.Recv([payload, MPI.FLOAT])
        return payload, 0
