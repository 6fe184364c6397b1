"""Unlink the shared-memory files of MPICH early, so that a killed rank leaves none in `/dev/shm`.

MPICH creates a segment in `/dev/shm` through which the ranks of a host find each other, and removes it when they end.
It can be unlinked as soon as all ranks have mapped it: the memory remains until the last rank has ended. Intel MPI
unlinks its segments itself, and the launcher of Open MPI removes those of its ranks.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

_SEGMENT = re.compile(r"\s(/dev/shm/mpich_shm_\S+)$")


def unlink_segments() -> None:
    """Unlink the segments that this process has mapped; all ranks of its host must have mapped them before."""
    with suppress(OSError):
        lines = Path("/proc/self/maps").read_text().splitlines()
        for name in {found[1] for line in lines if (found := _SEGMENT.search(line))}:
            # Another rank of this host may have unlinked it already.
            with suppress(OSError):
                os.unlink(name)
