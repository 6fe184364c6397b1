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

_FULL = 2**20
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
    needs, each = ("may need", MOST) if each is None else ("needs", each)
    if there is None or processes * each <= there.free:
        return ""
    count = f"{processes} processes" if processes != 1 else "1 process"
    return (
        f"MPI {needs} {processes * each / 1e6:.1f} MB of /dev/shm for {count} on one host, and /dev/shm has {there}: "
        f"{REMEDY}"
    )


def explanation(processes: int, there: Space) -> str:
    """Return why a rank may have been ended by the signal 7 or 11 at its start; empty if `/dev/shm` is no reason.

    Args:
        processes: the number of ranks on its host.
        there: the space when it ended. The ranks that ended before have given theirs back.
    """
    if there.free >= _FULL and processes * MOST <= there.size:
        return ""
    return (
        f"/dev/shm has {there}, and an MPI may take {MOST / 1e6:.1f} MB for each of the {processes} processes of the "
        f"host: {REMEDY}"
    )
