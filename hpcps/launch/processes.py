"""The processes of this machine, as /proc shows them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from hpcps.launch.guard import NAME

_STOPPED = "tT"


def children() -> set[int]:
    """Find the children of this process, including zombies."""
    return {pid for pid, (_, parent) in _processes().items() if parent == os.getpid()}


def stopped(ancestor: int) -> list[int]:
    """Find the stopped processes among a process and its descendants."""
    table, found, size = _processes(), {ancestor}, 0
    while len(found) > size:
        size = len(found)
        found |= {pid for pid, (_, parent) in table.items() if parent in found}
    return sorted(pid for pid in found if pid in table and table[pid][0] in _STOPPED)


def name_of(pid: int) -> str:
    """Return a name for a process: the process that it guards, or the name of its program."""
    with suppress(OSError):
        for variable in Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0"):
            name, _, guarded = variable.partition("=")
            if name == NAME:
                return f"the guard of {guarded or 'a process'} (pid {pid})"
        return f"{Path(f'/proc/{pid}/comm').read_text().strip()} (pid {pid})"
    return f"pid {pid}"


def _processes() -> dict[int, tuple[str, int]]:
    """Return the state and the parent of every process."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = entry.read_text(errors="replace").rpartition(")")[2].split()[:2]
            found[int(entry.parent.name)] = state, int(parent)
    return found
