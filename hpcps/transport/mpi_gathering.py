"""The ranks of an `mpirun`, where they do something together."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping

import numpy as np
from mpi4py import MPI

from hpcps.layout import Vector
from hpcps.messages import Peer
from hpcps.transport.leftovers import take_away
from hpcps.transport.memory import Neighbours
from hpcps.transport.memory.neighbours import CARD_BYTES
from hpcps.transport.mpi import MpiTransport, await_request
from hpcps.transport.patience import Patience

_TEXT_BYTES = 4096


class MpiGathering:
    """A rank among those of a communicator; see `Gathering`."""

    kind = "mpi"

    def __init__(self, communicator: MPI.Intracomm, ranks: Mapping[Peer, int]) -> None:
        self._communicator = communicator
        self.rank, self.size = communicator.Get_rank(), communicator.Get_size()
        self.transport = MpiTransport(communicator, ranks, self._meet_neighbours())

    def _meet_neighbours(self) -> Neighbours:
        """Find out which ranks share memory with this one."""
        neighbours = Neighbours()
        cards = np.empty((self.size, CARD_BYTES), np.uint8)
        await_request(self._communicator.Iallgather(np.frombuffer(neighbours.card(), np.uint8), cards))
        reached = np.array(neighbours.reach([row.tobytes() for row in cards], self.rank))
        reaching = np.empty_like(reached)
        await_request(self._communicator.Ialltoall(reached, reaching))
        neighbours.keep((reached & reaching).tolist())
        # Each rank has heard from every other: all of them have what MPI gave them by name.
        take_away()
        return neighbours

    def facts(self) -> dict[str, object]:
        """Return which MPI this is."""
        return {"mpi": MPI.Get_library_version().strip("\0\n "), "mpi_standard": MPI.Get_version()}

    def collect(self, text: str) -> list[str]:
        """See `Gathering.collect`."""
        mine = np.zeros(_TEXT_BYTES, np.uint8)
        encoded = text.encode()[:_TEXT_BYTES]
        mine[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        everyone = np.empty((self.size, _TEXT_BYTES), np.uint8)
        await_request(self._communicator.Iallgather(mine, everyone))
        return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in everyone]

    def share(self, number: int) -> int:
        """See `Gathering.share`."""
        shared = np.array([number], np.int64)
        await_request(self._communicator.Ibcast(shared))
        return int(shared[0])

    def patience(self) -> Patience:
        """See `Gathering.patience`."""
        return self.transport.patience()

    def allocate(self, size: int) -> Vector:
        """See `Gathering.allocate`."""
        arena = self.transport.neighbours.arena
        before = arena.shortage
        values = arena.allocate(size)
        if arena.shortage and not before and self.transport.neighbouring:
            sys.stderr.write(
                f"hpcps: rank {self.rank} on {socket.gethostname()} got no shared memory ({arena.shortage}); what it "
                "sends from there goes by MPI, which takes longer\n"
            )
        return values

    def in_memory(self) -> list[Peer]:
        """See `Gathering.in_memory`."""
        return [] if self.transport.neighbours.arena.shortage else self.transport.neighbouring

    def barrier(self) -> None:
        """See `Gathering.barrier`."""
        self.transport.barrier()

    def settle(self) -> None:
        """See `Gathering.settle`."""
        self.transport.settle()

    def leave(self) -> None:
        """See `Gathering.leave`; MPI does so at the end of the process."""

    def abandon(self) -> None:
        """See `Gathering.abandon`; a launcher that sees the process fail ends the others."""
