"""The process group of processes of one host, without MPI: headers go through pipes, payloads stay in shared memory."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np

from hpcps.errors import LaunchError
from hpcps.numerics.layout import Vector
from hpcps.protocol.envelope import Delivered, Envelope, MalformedMessageError
from hpcps.protocol.messages import Peer
from hpcps.protocol.received import Malformed
from hpcps.transport.backoff import Backoff
from hpcps.transport.base import MessageTransport, Traffic
from hpcps.transport.process_group import ProcessGroup
from hpcps.transport.shared_memory.arena import ADDRESS_BYTES, SegmentAddress
from hpcps.transport.shared_memory.neighbours import Neighbours

_ALONE, _PLACED, _INLINE = 1, 2, 3
_HEADER_SIZE = struct.Struct("<I")
_LONGEST = 0.1
"""Seconds between two polls; every message wakes its receiver."""
_BLOCKED = 5e-4
"""The same while the pipe of a neighbour is full."""


class SharedMemoryTransport(MessageTransport):
    """Transports messages between neighbours. A payload outside of shared memory goes through the pipe."""

    def __init__(self, neighbours: Neighbours, ranks: Mapping[Peer, int]) -> None:
        """Take the neighbours, and the rank of each peer."""
        self.neighbours = neighbours
        self._ranks = dict(ranks)
        self._peers = {rank: peer for peer, rank in ranks.items()}
        self._blocked: set[int] = set()
        self._arrived: deque[tuple[int, bytes]] = deque()
        self.traffic = Traffic()

    def send(self, to: Peer, envelope: Envelope) -> None:
        header, rank = envelope.header, self._ranks[to]
        payload = envelope.payload if envelope.payload is not None and envelope.payload.size else None
        address = None if payload is None else self.neighbours.arena.locate(payload)
        if payload is None:
            packet = bytes([_ALONE]) + header
        elif address is not None:
            packet = bytes([_PLACED]) + address.pack() + header
        else:
            packet = bytes([_INLINE]) + _HEADER_SIZE.pack(len(header)) + header + payload.tobytes()
        self.neighbours.send(rank, packet)
        if not self.neighbours.flush(rank):
            self._blocked.add(rank)
        self.traffic.sent += len(header) + envelope.payload_bytes

    def receive(self) -> Delivered | Malformed | None:
        if self._blocked:
            self._blocked = {rank for rank in self._blocked if not self.neighbours.flush(rank)}
        if not self._arrived:
            self._arrived.extend(self.neighbours.receive())
        if not self._arrived:
            return None
        rank, packet = self._arrived.popleft()
        try:
            header, payload = self._open(rank, packet)
            self.traffic.received += len(header) + (0 if payload is None else payload.nbytes)
            return Delivered(self._peers[rank], Envelope.decode(header, payload))
        except MalformedMessageError as error:
            return Malformed(self._peers[rank], str(error))

    def _open(self, rank: int, packet: bytes) -> tuple[bytes, Vector | None]:
        tag, body = packet[:1], packet[1:]
        if tag == bytes([_ALONE]):
            return body, None
        if tag == bytes([_PLACED]):
            return body[ADDRESS_BYTES:], self.neighbours.view(rank, SegmentAddress.unpack(body[:ADDRESS_BYTES]))
        if tag != bytes([_INLINE]) or len(body) < _HEADER_SIZE.size:
            raise MalformedMessageError("it is no message of a neighbour")
        stop = _HEADER_SIZE.size + _HEADER_SIZE.unpack_from(body)[0]
        if (len(body) - stop) % 4:
            raise MalformedMessageError(f"its payload of {len(body) - stop} bytes is not a number of float32")
        return body[_HEADER_SIZE.size : stop], np.frombuffer(body, np.float32, offset=stop)

    def rest(self, seconds: float) -> bool:
        """Sleep until a neighbour writes (return whether one did), or until a full pipe needs a try."""
        return self.neighbours.wait(min(seconds, _BLOCKED) if self._blocked else seconds)


class SharedMemoryProcessGroup(ProcessGroup):
    """Processes of one host that find each other by other means than MPI."""

    def __init__(
        self, rank: int, peers: Mapping[Peer, int], allgather: Callable[[bytes], list[bytes]], elsewhere: str
    ) -> None:
        """Join the group; all processes do so at the same time.

        Args:
            rank: the number of this process.
            peers: the rank of each peer.
            allgather: exchanges bytes; returns those of all processes, by rank.
            elsewhere: what to do if the processes are on several hosts, for the message.

        Raises:
            LaunchError: some processes share no memory.
        """
        self.rank, self.size = rank, len(peers)
        self._allgather = allgather
        neighbours = Neighbours()
        reached = neighbours.reach(allgather(neighbours.card()), rank)
        table = [list(row) for row in allgather(bytes(reached))]
        alone = [
            other for other in range(self.size) if other != rank and not (table[rank][other] and table[other][rank])
        ]
        if alone:
            names = ", ".join(map(str, alone))
            neighbours.close()
            raise LaunchError(f"rank {rank} shares no memory with rank {names}: {elsewhere}")
        self._transport = SharedMemoryTransport(neighbours, peers)
        self._peers = {number: peer for peer, number in peers.items()}

    @property
    def transport(self) -> SharedMemoryTransport:
        return self._transport

    def collect(self, text: str) -> list[str]:
        return [each.decode() for each in self._allgather(text.encode())]

    def backoff(self) -> Backoff:
        return Backoff(polls=0, first=_LONGEST, longest=_LONGEST, sleep=self._transport.rest)

    def allocate(self, size: int) -> Vector:
        return self._transport.neighbours.arena.allocate(size)

    def in_memory(self) -> list[Peer]:
        arena = self._transport.neighbours.arena
        return [] if arena.shortage else [peer for rank, peer in self._peers.items() if rank != self.rank]

    def ended(self) -> list[Peer]:
        return [self._peers[rank] for rank in self._transport.neighbours.ended()]

    def settle(self) -> None:
        self.barrier()

    def leave(self) -> None:
        """Close what this process shares; the others must not need it any more."""
        self._transport.neighbours.close()
