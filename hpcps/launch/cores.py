"""The cores of this machine that a process may use."""

from __future__ import annotations

import os

Cores = tuple[int, ...]


def own_cores() -> Cores:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def bind(cores: Cores) -> None:
    """Restrict this process, and the processes that it starts later, to these cores, if the system supports it."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
