"""What a report says of the machine that it was measured on."""

from __future__ import annotations

import os
import platform
import resource
from datetime import date
from pathlib import Path

from hpcps.records.provenance import gpus, machine


def description() -> str:
    """Return the machine in a line."""
    facts = machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu = ", ".join(gpus()) or "no GPU"
    return (
        f"{date.today().isoformat()}, {facts['cpu']}, {facts['usable_cores']} cores, {memory:.0f} GiB, {gpu}, "
        f"Linux {platform.release()}"
    )


class Others:
    """What processes that are not of this benchmark use meanwhile."""

    def __init__(self) -> None:
        """Begin."""
        self._busy, self._ours, self._began = _busy(), _ours(), os.times().elapsed

    def cores(self) -> float:
        """Return how many cores they have used on average; what we have started counts once it has ended."""
        wall = max(os.times().elapsed - self._began, 1e-9)
        return max(0.0, (_busy() - self._busy - (_ours() - self._ours)) / wall)


def _busy() -> float:
    """Return the CPU seconds that all processes of this machine have used since it was started."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _ours() -> float:
    """Return the CPU seconds of the processes that this one has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
