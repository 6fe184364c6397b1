"""Messages over MPI: a header, then the payload, sent from and received into contiguous buffers.

Between processes of one host, headers go through a pipe. A payload in shared memory is not sent: the header holds its
address. If the run has a `DeviceLink`, MPI gets the address of a payload on a device, or sends a copy of it.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from hpcps.numerics.layout import Vector
from hpcps.numerics.vectors import DeviceVector, as_vector
from hpcps.protocol.envelope import Delivered, Envelope, MalformedMessageError
from hpcps.protocol.messages import Peer
from hpcps.protocol.received import Malformed, Operation, Reduced
from hpcps.transport.backoff import Backoff
from hpcps.transport.base import CollectiveTransport, Traffic
from hpcps.transport.device import DeviceLink
from hpcps.transport.process_group import unwatched
from hpcps.transport.shared_memory import Neighbours, SegmentAddress
from hpcps.transport.shared_memory.arena import ADDRESS_BYTES


class BufferPool:
    """Allocates arrays; the memory of an array returns to the pool when the array and all its views are deleted.

    New memory of the size of a model costs as much as filling it twice, because the system allocates it page by page.
    """

    def __init__(self, spare: int = 1 << 26) -> None:
        """Keep unused buffers: at most `spare` bytes of them, but at least one."""
        self._free: list[Vector] = []
        self._spare = spare

    def take(self, size: int) -> Vector:
        """Return an array of `size` float32 values, contents unspecified."""
        fitting = [k for k, buffer in enumerate(self._free) if size <= buffer.size <= 2 * size]
        buffer = self._free.pop(fitting[-1]) if fitting else np.empty(size, np.float32)
        # Not a numpy view: a view of a view refers to the first array, and would not keep this array alive.
        values: Vector = np.frombuffer(buffer.data, np.float32, size)
        weakref.finalize(values, self._give_back, buffer).atexit = False
        return values

    def _give_back(self, buffer: Vector) -> None:
        self._free.append(buffer)
        while len(self._free) > 1 and sum(spare.nbytes for spare in self._free) > self._spare:
            del self._free[0]


# The tag tells what follows the header, so that sender and receiver stay in step even after an invalid header.
_ALONE, _WITH_PAYLOAD, _PAYLOAD, _PLACED, _TO_DEVICE = 1, 2, 3, 4, 5
_FOLLOWED = (_WITH_PAYLOAD, _TO_DEVICE)
"""The headers that a payload follows."""

_LONGEST = 0.1
"""Seconds between two polls if every message wakes its receiver."""
_PROGRESS = 5e-4
"""Maximum seconds between two polls during transfers: MPI advances a transfer only while a process polls."""
_SOON = 5e-5
"""The same during a reduction for which all processes are there: each poll advances it by one step of its algorithm."""
_PATIENT = 4e-3
"""The same while all processes wait for the last one, at the start or the end of a run. Polls every millisecond take a
thirtieth of a core in each process, which the last one may need."""


@dataclass
class _Arrival:
    """A message whose header has arrived.

    Attributes:
        header: its bytes.
        tag: the kind of the header: without a payload, with a payload, which is for the memory of a device or not, or
            with an address in shared memory.
        payload: the buffer of the payload, for floats or, if the size is invalid, for bytes; None without a payload.
        request: the MPI request of the payload; None before it starts.
    """

    header: bytes
    tag: int
    payload: Vector | bytearray | None = None
    request: MPI.Request | None = None

    @property
    def whole(self) -> bool:
        """Whether the whole message has arrived."""
        return self.tag not in _FOLLOWED or (self.request is not None and self.request.Test())


class MpiTransport(CollectiveTransport):
    """Transports messages between the ranks of a communicator.

    Attributes:
        traffic: the bytes of all messages, including payloads that are read in place.
        neighbours: the processes that share memory with this one.
        link: the exchange of device memory in the present run; None if there is none.
    """

    def __init__(
        self,
        communicator: MPI.Intracomm,
        ranks: Mapping[Peer, int],
        neighbours: Neighbours | None = None,
        watch: Callable[[], None] = unwatched,
    ) -> None:
        """Create the transport of one rank.

        Args:
            communicator: the processes.
            ranks: the rank of each peer.
            neighbours: the processes that share memory with this one; by default none.
            watch: see `LaunchedProcess`.
        """
        self._communicator, self._watch = communicator, watch
        self._ranks = dict(ranks)
        self._peers = {rank: peer for peer, rank in ranks.items()}
        self.neighbours = Neighbours() if neighbours is None else neighbours
        self._pending: list[tuple[MPI.Request, bytes | Vector]] = []
        # Payloads for neighbours that must go through MPI, until their headers are written.
        self._held: list[tuple[int, Vector]] = []
        # Neighbours whose pipe is full (backpressure).
        self._blocked: set[int] = set()
        # The number of announced payloads that have not started to arrive.
        self._awaited = 0
        self._status = MPI.Status()
        self._pool = BufferPool()
        # The communicators that were made for reductions, by their ranks; that of this run; the reduction under way.
        self._joined: dict[tuple[int, ...], MPI.Intracomm] = {}
        self._reducing = communicator
        self._reduction: tuple[MPI.Request, Reduced] | None = None
        self._interval = _PROGRESS
        # The arrived messages of each sender that no role has received yet, in the order of sending.
        self._arrivals: dict[int, deque[_Arrival]] = {}
        self._sent_to = np.zeros(communicator.Get_size(), np.int64)
        self._received_from = np.zeros(communicator.Get_size(), np.int64)
        self.traffic = Traffic()
        self.link: DeviceLink | None = None

    def send(self, to: Peer, envelope: Envelope) -> None:
        header = envelope.header
        rank = self._ranks[to]
        payload = envelope.payload if envelope.payload is not None and envelope.payload.size else None
        tag = _ALONE if payload is None else _WITH_PAYLOAD
        if self.link is not None:
            # MPI does not know the queue of the device: the payload must be complete.
            self.link.device.finish()
            if isinstance(envelope.payload, DeviceVector) and payload is not None:
                if rank in self.link.direct:
                    tag = _TO_DEVICE
                else:
                    payload = self.link.staged(envelope)
        if rank in self.neighbours:
            self._send_to_neighbour(rank, header, payload, tag)
        else:
            request = self._communicator.Isend([header, MPI.BYTE], rank, tag)
            self._pending.append((request, header))
            if payload is not None:
                self._post(rank, payload)
        self._sent_to[rank] += 1
        self.traffic.sent += len(header) + envelope.payload_bytes

    @property
    def unsent(self) -> int:
        self._progress()
        return sum(_bytes_of(kept) for _, kept in self._pending) + sum(values.nbytes for _, values in self._held)

    def join(self, peers: Sequence[Peer]) -> None:
        ranks = tuple(self._ranks[peer] for peer in peers)
        if ranks not in self._joined:
            self._joined[ranks] = self._communicator.Create_group(self._communicator.group.Incl(ranks))
        self._reducing = self._joined[ranks]

    def reduce(self, values: NDArray[Any], operation: Operation, *, soon: bool = False) -> None:
        combine = MPI.SUM if operation == "sum" else MPI.MAX
        self._reduction = self._reducing.Iallreduce(MPI.IN_PLACE, values, combine), Reduced(values)
        self._interval = _SOON if soon else _PROGRESS
        self.traffic.sent += values.nbytes

    def receive(self) -> Delivered | Malformed | Reduced | None:
        self._progress()
        self._read_mailbox()
        if self._awaited or not self._all_neighbours:
            # One probe for all tags: a message without a payload must not overtake one with a payload.
            while (waiting := self._communicator.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, self._status)) is not None:
                self._begin(waiting, self._status.Get_source(), self._status.Get_tag())
        for rank, arrivals in self._arrivals.items():
            if arrivals[0].whole:
                arrival = arrivals.popleft()
                # Round-robin: this sender goes to the end of the queue.
                del self._arrivals[rank]
                if arrivals:
                    self._arrivals[rank] = arrivals
                return self._finish(rank, arrival)
        if self._reduction is not None and self._reduction[0].Test():
            (_, reduced), self._reduction = self._reduction, None
            self._interval = _PROGRESS
            self.traffic.received += reduced.values.nbytes
            return reduced
        return None

    @property
    def neighbouring(self) -> list[Peer]:
        """The peers that share memory with this process."""
        return [peer for peer, rank in self._ranks.items() if rank in self.neighbours]

    @property
    def ended(self) -> list[Peer]:
        """The peers that shared memory with this process, and whose processes have ended."""
        return [self._peers[rank] for rank in self.neighbours.ended()]

    def backoff(self) -> Backoff:
        """Return the backoff for waits for a message."""
        if self._all_neighbours:
            # Spinning would take the core from the sender.
            return Backoff(polls=0, first=_LONGEST, longest=_LONGEST, sleep=self._rest)
        # During a large transfer, polling at full speed would take the core from the kernel, which copies the data, and
        # from other processes.
        return Backoff(sleep=self._rest, hurry=lambda: not (self._busy or self._arrivals))

    def settle(self) -> None:
        """Wait until every rank calls this and every message has arrived; drop messages that no role has received."""
        if self.link is not None:
            self.link.device.finish()
        expected = np.zeros_like(self._sent_to)
        request = self._communicator.Ialltoall(self._sent_to, expected)
        backoff = Backoff(longest=_PATIENT, sleep=self.neighbours.wait)
        while not request.Test() or self._busy or (self._received_from < expected).any():
            if self.receive() is None:
                self._watch()
                backoff.wait()
        self.barrier()
        # All ranks have received all messages and no longer use their payloads.
        self.neighbours.arena.recycle()
        if self.link is not None:
            self.link.device.recycle()
            self.link = None

    def barrier(self) -> None:
        """Wait without spinning until every rank calls this."""
        await_request(self._communicator.Ibarrier(), self._watch)

    @property
    def _all_neighbours(self) -> bool:
        return len(self.neighbours) == len(self._sent_to) - 1

    @property
    def _busy(self) -> bool:
        """Whether outgoing transfers or a reduction need polls to advance."""
        return bool(self._pending or self._held or self._blocked or self._reduction)

    def _rest(self, seconds: float) -> bool:
        """Sleep until a neighbour writes (return whether one did) or transfers need a poll."""
        return self.neighbours.wait(min(seconds, self._interval) if self._busy or self._arrivals else seconds)

    def _send_to_neighbour(self, rank: int, header: bytes, payload: Vector | None, tag: int) -> None:
        """Send a message to a neighbour."""
        address = b"" if payload is None or tag == _TO_DEVICE else self._address(payload)
        self.neighbours.send(rank, (address or bytes([tag])) + header)
        if not self.neighbours.flush(rank):
            self._blocked.add(rank)
        if payload is not None and not address:
            self._held.append((rank, payload))
            self._progress()

    def _address(self, payload: Vector) -> bytes:
        """Return the tag and the address of a payload that a neighbour reads in place; empty if it cannot."""
        address = self.neighbours.arena.locate(payload)
        return b"" if address is None else bytes([_PLACED]) + address.pack()

    def _post(self, rank: int, payload: Vector) -> None:
        self._pending.append((self._communicator.Isend([payload, MPI.FLOAT], rank, _PAYLOAD), payload))

    def _progress(self) -> None:
        if self._pending:
            self._pending = [(request, kept) for request, kept in self._pending if not request.Test()]
        if self._blocked:
            self._blocked = {rank for rank in self._blocked if not self.neighbours.flush(rank)}
        if self._held:
            held, self._held = self._held, []
            for rank, payload in held:
                if rank in self._blocked:
                    self._held.append((rank, payload))
                else:
                    self._post(rank, payload)

    def _read_mailbox(self) -> None:
        """Read the headers that neighbours have written."""
        for rank, packet in self.neighbours.receive():
            self._announce(rank, packet[1:], packet[0] if packet else _ALONE)

    def _announce(self, rank: int, header: bytes, tag: int) -> None:
        self._arrivals.setdefault(rank, deque()).append(_Arrival(header, tag))
        self._awaited += tag in _FOLLOWED

    def _begin(self, waiting: MPI.Message, rank: int, tag: int) -> None:
        """Receive a header, or start to receive the payload that a header announced."""
        size = self._status.Get_count(MPI.BYTE)
        if tag != _PAYLOAD:
            header = bytearray(size)
            waiting.Recv([header, MPI.BYTE])
            self._announce(rank, bytes(header), tag)
            return
        # A neighbour writes the header to the pipe before it sends the payload through MPI.
        self._read_mailbox()
        # MPI keeps the order of messages of one sender: this payload belongs to the first header without one.
        announced = (a for a in self._arrivals.get(rank, ()) if a.tag in _FOLLOWED and a.request is None)
        arrival = next(announced, None)
        if arrival is None:  # no header announced it: drop it
            waiting.Recv([bytearray(size), MPI.BYTE])
            return
        self._awaited -= 1
        if size % 4:
            arrival.payload = bytearray(size)
            arrival.request = waiting.Irecv([arrival.payload, MPI.BYTE])
        else:
            arrival.payload = self._buffer(arrival.tag, size // 4)
            arrival.request = waiting.Irecv([arrival.payload, MPI.FLOAT])

    def _buffer(self, tag: int, size: int) -> Vector:
        """Return the buffer of a payload, on the device if it comes from one and can go there."""
        if tag == _TO_DEVICE and self.link is not None:
            return as_vector(self.link.device.borrow(size))
        return self._pool.take(size)

    def _finish(self, rank: int, arrival: _Arrival) -> Delivered | Malformed:
        """Decode a message that has arrived."""
        self._received_from[rank] += 1
        source = self._peers[rank]
        header = arrival.header
        try:
            if arrival.tag == _PLACED:
                address, header = SegmentAddress.unpack(header[:ADDRESS_BYTES]), header[ADDRESS_BYTES:]
                payload = self.neighbours.view(rank, address)
                self.traffic.received += len(header) + payload.nbytes
                return Delivered(source, Envelope.decode(header, payload))
            invalid = arrival.payload if isinstance(arrival.payload, bytearray) else b""
            sent = None if isinstance(arrival.payload, bytearray) else arrival.payload
            self.traffic.received += len(header) + (sent.nbytes if sent is not None else len(invalid))
            if invalid:
                raise MalformedMessageError(f"its payload of {len(invalid)} bytes is not a number of float32")
            return Delivered(source, Envelope.decode(header, sent))
        except MalformedMessageError as error:
            return Malformed(source, str(error))


def _bytes_of(sent: bytes | Vector) -> int:
    return len(sent) if isinstance(sent, bytes) else sent.nbytes


def await_request(request: MPI.Request, watch: Callable[[], None]) -> None:
    """Wait until a request is done; a blocking call would spin and slow down processes that have not arrived yet.

    Raises:
        LostError: another process gives no sign of life, as `watch` says.
    """
    backoff = Backoff(longest=_PATIENT)
    while not request.Test():
        watch()
        backoff.wait()
