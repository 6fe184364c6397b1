"""Messages over MPI: a header, then the payload straight from and into contiguous buffers.

Between processes of one host headers go through a pipe, and a payload that lies in memory which both can read does not
travel at all: the header says where it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from hpcps.layout import Vector
from hpcps.messages import Malformed, MalformedMessageError, Message, Peer, Received
from hpcps.transport.base import Traffic
from hpcps.transport.memory import Neighbours, Place
from hpcps.transport.memory.arena import PLACE_BYTES
from hpcps.transport.patience import Patience
from hpcps.transport.pool import Pool

# The tag says what follows, so that even after a header that cannot be read the stream stays in step.
_ALONE, _WITH_PAYLOAD, _PAYLOAD, _PLACED = 1, 2, 3, 4

_LONGEST = 0.1
"""Seconds between two polls where every message wakes its receiver."""
_PROGRESS = 5e-4
"""Seconds between two polls at most as long as transfers are under way: they go on only while somebody polls."""


@dataclass
class _Arrival:
    """A message of which the header has come.

    Attributes:
        header: its bytes.
        tag: what follows it.
        payload: what the payload is received into, whole floats or not; None before that comes, or if none does.
        request: the receipt of the payload; None before it begins.
    """

    header: bytes
    tag: int
    payload: Vector | bytearray | None = None
    request: MPI.Request | None = None

    @property
    def whole(self) -> bool:
        """Whether everything is here."""
        return self.tag != _WITH_PAYLOAD or (self.request is not None and self.request.Test())


class MpiTransport:
    """Carries messages between the ranks of a communicator.

    Attributes:
        traffic: the bytes of all messages, of payloads that are read in place as well.
        neighbours: the processes that share memory with this one.
    """

    def __init__(
        self, communicator: MPI.Intracomm, ranks: Mapping[Peer, int], neighbours: Neighbours | None = None
    ) -> None:
        """Begin to carry.

        Args:
            communicator: the processes.
            ranks: who is which of them.
            neighbours: those that share memory with this one; by default none does.
        """
        self._communicator = communicator
        self._ranks = dict(ranks)
        self._peers = {rank: peer for peer, rank in ranks.items()}
        self.neighbours = Neighbours() if neighbours is None else neighbours
        self._pending: list[tuple[MPI.Request, object]] = []
        # Payloads for neighbours that must go by MPI, until what announces them is said.
        self._held: list[tuple[int, Vector]] = []
        # Neighbours with something to be said yet.
        self._hoarse: set[int] = set()
        # Announced payloads that have not begun to come.
        self._awaited = 0
        self._status = MPI.Status()
        self._pool = Pool()
        # What has come of each sender and was not taken yet, in the order of sending.
        self._arrivals: dict[int, deque[_Arrival]] = {}
        self._sent_to = np.zeros(communicator.Get_size(), np.int64)
        self._received_from = np.zeros(communicator.Get_size(), np.int64)
        self.traffic = Traffic()

    def send(self, to: Peer, message: Message) -> None:
        """See `Transport.send`."""
        header = message.header()
        rank = self._ranks[to]
        payload = message.payload if message.payload is not None and message.payload.size else None
        if rank in self.neighbours:
            self._say(rank, header, payload)
        else:
            request = self._communicator.Isend([header, MPI.BYTE], rank, _ALONE if payload is None else _WITH_PAYLOAD)
            self._pending.append((request, header))
            if payload is not None:
                self._post(rank, payload)
        self._sent_to[rank] += 1
        self.traffic.sent += len(header) + message.payload_bytes

    def receive(self) -> Received | Malformed | None:
        """See `Transport.receive`."""
        self._progress()
        self._listen()
        if self._awaited or not self._all_neighbours:
            # One probe for all tags: what one sender sent alone must not overtake what it sent with a payload.
            while (waiting := self._communicator.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, self._status)) is not None:
                self._begin(waiting, self._status.Get_source(), self._status.Get_tag())
        for rank, arrivals in self._arrivals.items():
            if arrivals[0].whole:
                arrival = arrivals.popleft()
                # Who was served goes to the end of the queue.
                del self._arrivals[rank]
                if arrivals:
                    self._arrivals[rank] = arrivals
                return self._finish(rank, arrival)
        return None

    @property
    def neighbouring(self) -> list[Peer]:
        """The peers that share memory with this process."""
        return [peer for peer, rank in self._ranks.items() if rank in self.neighbours]

    def patience(self) -> Patience:
        """Return how to wait for a message."""
        if self._all_neighbours:
            # To spin would take the core from who is to say something.
            return Patience(polls=0, first=_LONGEST, longest=_LONGEST, sleep=self._rest)
        # What is large takes its time: to look all the while whether it is here would take the core from the kernel,
        # which is at it, and from others that wait for it.
        return Patience(sleep=self._rest, hurry=lambda: not (self._busy or self._arrivals))

    def settle(self) -> None:
        """Wait until every rank is here and every message has arrived; those that nobody took are dropped.

        A run may end with messages still under way (a repeated one, or an asynchronous worker's last update). They must
        not meet the next run.
        """
        expected = np.zeros_like(self._sent_to)
        request = self._communicator.Ialltoall(self._sent_to, expected)
        patience = Patience(sleep=self.neighbours.wait)
        while not request.Test() or self._busy or (self._received_from < expected).any():
            if self.receive() is None:
                patience.wait()
        self.barrier()
        # Everyone has everything, and is done with it.
        self.neighbours.arena.recycle()

    def barrier(self) -> None:
        """Wait until every rank is here, without spinning."""
        await_request(self._communicator.Ibarrier())

    @property
    def _all_neighbours(self) -> bool:
        return len(self.neighbours) == self._communicator.Get_size() - 1

    @property
    def _busy(self) -> bool:
        """Whether there is something to push on."""
        return bool(self._pending or self._held or self._hoarse)

    def _rest(self, seconds: float) -> bool:
        """Sleep until something has come (say whether that is so), or there may be something to push on."""
        return self.neighbours.wait(min(seconds, _PROGRESS) if self._busy or self._arrivals else seconds)

    def _say(self, rank: int, header: bytes, payload: Vector | None) -> None:
        """Send to a neighbour."""
        place = None if payload is None else self.neighbours.arena.locate(payload)
        if place is not None:
            said = bytes([_PLACED]) + place.pack() + header
        else:
            said = bytes([_ALONE if payload is None else _WITH_PAYLOAD]) + header
        self.neighbours.say(rank, said)
        if not self.neighbours.said(rank):
            self._hoarse.add(rank)
        if payload is not None and place is None:
            self._held.append((rank, payload))
            self._progress()

    def _post(self, rank: int, payload: Vector) -> None:
        self._pending.append((self._communicator.Isend([payload, MPI.FLOAT], rank, _PAYLOAD), payload))

    def _progress(self) -> None:
        if self._pending:
            self._pending = [(request, kept) for request, kept in self._pending if not request.Test()]
        if self._hoarse:
            self._hoarse = {rank for rank in self._hoarse if not self.neighbours.said(rank)}
        if self._held:
            held, self._held = self._held, []
            for rank, payload in held:
                if rank in self._hoarse:
                    self._held.append((rank, payload))
                else:
                    self._post(rank, payload)

    def _listen(self) -> None:
        """Take what neighbours have said."""
        for rank, said in self.neighbours.heard():
            self._announce(rank, said[1:], said[0] if said else _ALONE)

    def _announce(self, rank: int, header: bytes, tag: int) -> None:
        self._arrivals.setdefault(rank, deque()).append(_Arrival(header, tag))
        self._awaited += tag == _WITH_PAYLOAD

    def _begin(self, waiting: MPI.Message, rank: int, tag: int) -> None:
        """Take a header, or begin to receive the payload that the last one announced."""
        size = self._status.Get_count(MPI.BYTE)
        if tag != _PAYLOAD:
            header = bytearray(size)
            waiting.Recv([header, MPI.BYTE])
            self._announce(rank, bytes(header), tag)
            return
        # What a neighbour sends by MPI it has said before.
        self._listen()
        # MPI keeps the order of one sender's messages: the first that lacks a payload is the one that this belongs to.
        announced = (a for a in self._arrivals.get(rank, ()) if a.tag == _WITH_PAYLOAD and a.request is None)
        arrival = next(announced, None)
        if arrival is None:  # of a stranger: nothing announced it
            waiting.Recv([bytearray(size), MPI.BYTE])
            return
        self._awaited -= 1
        if size % 4:
            arrival.payload = bytearray(size)
            arrival.request = waiting.Irecv([arrival.payload, MPI.BYTE])
        else:
            arrival.payload = self._pool.take(size // 4)
            arrival.request = waiting.Irecv([arrival.payload, MPI.FLOAT])

    def _finish(self, rank: int, arrival: _Arrival) -> Received | Malformed:
        """Return the message that has come."""
        self._received_from[rank] += 1
        source = self._peers[rank]
        header = arrival.header
        try:
            if arrival.tag == _PLACED:
                place, header = Place.unpack(header[:PLACE_BYTES]), header[PLACE_BYTES:]
                payload = self.neighbours.view(rank, place)
                self.traffic.received += len(header) + payload.nbytes
                return Received(source, Message.decode(header, payload))
            stray = arrival.payload if isinstance(arrival.payload, bytearray) else b""
            sent = None if isinstance(arrival.payload, bytearray) else arrival.payload
            self.traffic.received += len(header) + (sent.nbytes if sent is not None else len(stray))
            if stray:
                raise MalformedMessageError(f"its payload of {len(stray)} bytes is not a number of float32")
            return Received(source, Message.decode(header, sent))
        except MalformedMessageError as error:
            return Malformed(source, str(error))


def await_request(request: MPI.Request) -> None:
    """Wait until it is done; a blocking call would spin, beside processes that may have much to do until they come."""
    patience = Patience()
    while not request.Test():
        patience.wait()
