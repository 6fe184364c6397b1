"""What MPI leaves in `/dev/shm` if a process of it is killed, taken away while nobody needs it by name any more.

MPICH makes a segment there by which the ranks of a host find each other, and removes it as they end. To remove it once
all have found each other changes nothing for them: the memory stays until the last of them is gone, however it goes.
Intel MPI does so itself, and the launcher of Open MPI tidies up behind its ranks.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

_SEGMENT = re.compile(r"\s(/dev/shm/mpich_shm_\S+)$")


def take_away() -> None:
    """Remove the names of what this process has mapped; all ranks of its host must have done so, too."""
    with suppress(OSError):
        lines = Path("/proc/self/maps").read_text().splitlines()
        for name in {found[1] for line in lines if (found := _SEGMENT.search(line))}:
            # Another rank of this host may have been first.
            with suppress(OSError):
                os.unlink(name)
