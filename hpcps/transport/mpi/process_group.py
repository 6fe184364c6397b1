"""The process group of the ranks of an MPI communicator.

MPICH creates a segment in `/dev/shm` through which the ranks of a host find each other, and removes it when they end.
It can be unlinked as soon as all ranks have mapped it: the memory remains until the last rank has ended. Intel MPI
unlinks its segments itself, and the launcher of Open MPI removes those of its ranks.
"""

from __future__ import annotations

import atexit
import os
import re
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from mpi4py import MPI

from hpcps.numerics.layout import Vector
from hpcps.protocol.messages import Peer
from hpcps.transport.backoff import Backoff
from hpcps.transport.device import DeviceLink
from hpcps.transport.mpi.transport import MpiTransport, await_request
from hpcps.transport.process_group import ProcessGroup, unwatched
from hpcps.transport.shared_memory import Neighbours
from hpcps.transport.shared_memory.neighbours import CARD_BYTES

_SEGMENT = re.compile(r"\s(/dev/shm/mpich_shm_\S+)$")


def unlink_segments() -> None:
    """Unlink the segments that this process has mapped; all ranks of its host must have mapped them before."""
    with suppress(OSError):
        lines = Path("/proc/self/maps").read_text().splitlines()
        for name in {found[1] for line in lines if (found := _SEGMENT.search(line))}:
            # Another rank of this host may have unlinked it already.
            with suppress(OSError):
                os.unlink(name)


def _outlive_quietly() -> None:
    """Let a process that a rank has forked fail without an abort of MPI, which `python -m mpi4py` requests."""
    vars(MPI)["_set_abort_status"] = lambda status: None


_TEXT_BYTES = 4096


class MpiProcessGroup(ProcessGroup):
    """The ranks of a communicator."""

    def __init__(
        self, communicator: MPI.Intracomm, ranks: Mapping[Peer, int], watch: Callable[[], None] = unwatched
    ) -> None:
        """Join the group; all ranks do so at the same time.

        Args:
            communicator: the processes.
            ranks: the rank of each peer.
            watch: see `LaunchedProcess`.
        """
        self._communicator, self._watch = communicator, watch
        self.rank, self.size = communicator.Get_rank(), communicator.Get_size()
        self._left = False
        # Not in `leave`, which the end of a script calls: too late to register a function.
        atexit.register(self._finalize, os.getpid())
        os.register_at_fork(after_in_child=_outlive_quietly)
        self._transport = MpiTransport(communicator, ranks, self._find_neighbours(), watch)

    @property
    def transport(self) -> MpiTransport:
        return self._transport

    def _find_neighbours(self) -> Neighbours:
        """Find the ranks that share memory with this one."""
        neighbours = Neighbours()
        cards = np.empty((self.size, CARD_BYTES), np.uint8)
        card = np.frombuffer(neighbours.card(), np.uint8)
        await_request(self._communicator.Iallgather(card, cards), self._watch)
        reached = np.array(neighbours.reach([row.tobytes() for row in cards], self.rank))
        reaching = np.empty_like(reached)
        await_request(self._communicator.Ialltoall(reached, reaching), self._watch)
        neighbours.keep((reached & reaching).tolist())
        # Each rank has received data from every other rank: all have mapped the segments of MPI.
        unlink_segments()
        return neighbours

    def facts(self) -> dict[str, object]:
        """Return the MPI library and its version of the standard."""
        return {"mpi": MPI.Get_library_version().strip("\0\n "), "mpi_standard": MPI.Get_version()}

    def collect(self, text: str) -> list[str]:
        mine = np.zeros(_TEXT_BYTES, np.uint8)
        encoded = text.encode()[:_TEXT_BYTES]
        mine[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        texts = np.empty((self.size, _TEXT_BYTES), np.uint8)
        await_request(self._communicator.Iallgather(mine, texts), self._watch)
        return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in texts]

    def share(self, number: int) -> int:
        shared = np.array([number], np.int64)
        await_request(self._communicator.Ibcast(shared), self._watch)
        return int(shared[0])

    def backoff(self) -> Backoff:
        return self.transport.backoff()

    def allocate(self, size: int) -> Vector:
        arena = self.transport.neighbours.arena
        before = arena.shortage
        values = arena.allocate(size)
        if arena.shortage and not before and self.transport.neighbouring:
            sys.stderr.write(
                f"hpcps: rank {self.rank} on {socket.gethostname()} got no shared memory ({arena.shortage}); its "
                "payloads go through MPI, which takes longer\n"
            )
        return values

    def in_memory(self) -> list[Peer]:
        return [] if self.transport.neighbours.arena.shortage else self.transport.neighbouring

    def ended(self) -> list[Peer]:
        return self.transport.ended

    def exchange(self, link: DeviceLink | None) -> None:
        self.transport.link = link

    def barrier(self) -> None:
        self.transport.barrier()

    def settle(self) -> None:
        self.transport.settle()

    def leave(self) -> None:
        """Let the end of this process finalise MPI, which waits for the others."""
        self._left = True

    def _finalize(self, process: int) -> None:
        # Not in a process that this one has forked, and not after a failure: the others may not come.
        if self._left and process == os.getpid() and not MPI.Is_finalized():
            MPI.Finalize()
