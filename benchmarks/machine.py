"""The description of the machine, and the load that other processes put on it, for reports."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
from collections.abc import Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path

from hpcps.records.provenance import gpus, machine

_PR_SET_CHILD_SUBREAPER = 36


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
    """Measures the cores that processes of other programs use during a measurement.

    This process and its descendants belong to the benchmark. If a launcher is killed, its ranks survive it and get
    another parent; from here on that is this process.
    """

    def __init__(self) -> None:
        """Start the measurement."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._busy, self._ours, self._began = busy(), ours(), os.times().elapsed

    def cores(self) -> float:
        """Return the number of cores that they have used on average."""
        wall = max(os.times().elapsed - self._began, 1e-9)
        return max(0.0, (busy() - self._busy - (ours() - self._ours)) / wall)


def busy() -> float:
    """Return the CPU seconds that all processes of this machine have used since it was started."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def ours() -> float:
    """Return the CPU seconds of this process and of all that it has started, with what those have started."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used) + sum(_descendants())


def _descendants() -> Iterator[float]:
    """Yield the CPU seconds of every descendant of this process that no process has waited for, running or ended.

    They include the CPU seconds of those of its children for which it has waited.
    """
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                # The process's name is in brackets, and may contain brackets.
                fields = (folder / "stat").read_text().rpartition(") ")[2].split()
                pid = int(folder.name)
                parents[pid] = int(fields[1])
                seconds[pid] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    me = os.getpid()
    for pid, used in seconds.items():
        ancestor = parents[pid]
        while ancestor in parents and ancestor != me:
            ancestor = parents[ancestor]
        if ancestor == me:
            yield used
