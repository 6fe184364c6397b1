"""`/dev/shm`, through which MPI sends messages within a host: its space, and what the ranks of a launch need.

It is small in containers (64 MB by default). An MPI that finds no page there is ended by the signal 7 or 11, without a
message. The memory of hpcps itself is not in `/dev/shm`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path("/dev/shm")

MOST = 5.4e6
"""Bytes that a rank takes at its start: those of MPICH 5.0 from PyPI, which were the most.

Measured with 2 to 12 ranks: MPICH 5.0.2 5.39 MB (1.06 MB of its own, the rest of UCX), MPICH 4.2 1.06 MB, Intel MPI
0.7 MB, Open MPI 5.0 0.07 MB.
"""

SPARE = 12e6
"""Bytes that must be free beyond that while ranks whose MPI uses UCX start.

Measured with MPICH 5.0.2 and 2, 5 and 8 ranks: some starts ended by SIGSEGV with 10.2, 9.7 and 9.3 MB beyond the bytes
that the ranks had at the end, none with more.
"""

_WITHOUT_UCX = 2e6
"""A rank that takes at most so many bytes has no memory of UCX there. UCX itself goes without it if there is little."""

REMEDY = (
    "enlarge it (`docker run --shm-size=1g`, or as root `mount -o remount,size=1g /dev/shm`), start fewer processes on "
    "a host, or set UCX_TLS=^posix, with which the MPICH of PyPI takes 1.1 MB for each process"
)


@dataclass(frozen=True)
class Space:
    """The size of `/dev/shm`, and its free space, in bytes."""

    size: float
    free: float

    def __str__(self) -> str:
        return f"{_text(self.size)}, {_text(self.free)} free"


def _text(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def space(folder: Path = FOLDER) -> Space | None:
    """Return the space of `/dev/shm`; None if there is none."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return Space(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def shortage(processes: int, there: Space | None, each: float | None = None) -> str:
    """Return a message if so many ranks of a host need more of `/dev/shm` than is free; empty if it is enough.

    Args:
        processes: the number of ranks.
        there: the space; None if there is no `/dev/shm`, which is the concern of the MPI.
        each: the bytes that a rank takes at its start; None if nobody has measured it here.
    """
    needs, need = "may need" if each is None else "needs", _need(processes, each)
    if there is None or need <= there.free:
        return ""
    count = f"{processes} processes" if processes != 1 else "1 process"
    return f"MPI {needs} {need / 1e6:.1f} MB of /dev/shm for {count} on one host, and /dev/shm has {there}: {REMEDY}"


def _need(processes: int, each: float | None = None) -> float:
    """Return the bytes that must be free for so many ranks; see `shortage`."""
    if each is not None and each <= _WITHOUT_UCX:
        return processes * each
    # A measured number between is a mean of ranks with memory of UCX and ranks without: others may have it.
    return processes * max(each or 0.0, MOST) + SPARE


def explanation(processes: int, there: Space) -> str:
    """Return why a rank may have been ended by the signal 7 or 11 at its start; empty if `/dev/shm` is no reason.

    Args:
        processes: the number of ranks on its host.
        there: the space when it ended. The ranks that ended before have given theirs back.
    """
    if there.free >= SPARE and _need(processes) <= there.size:
        return ""
    return (
        f"/dev/shm has {there}, and an MPI may need {MOST / 1e6:.1f} MB for each of the {processes} processes of the "
        f"host and {SPARE / 1e6:.0f} MB more: {REMEDY}"
    )
