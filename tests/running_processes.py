"""Processes of this machine, which tests look for and wait for."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOPOLOGY = "/tmp/hydra_hwloc_xmlfile_"
"""How the files begin that tell the ranks of MPICH of their host."""


def within(seconds: float, found: Callable[[], Any], what: str | Callable[[], Any]) -> Any:
    """Poll until something is found, and return it; `what` is awaited, or returns what the failure shows."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, f"{what() if callable(what) else what}: not within {seconds:g} s"
        time.sleep(0.01)
    return value


def processes(mark: str) -> dict[int, str]:
    """Find the processes that have a text in their environment or command line, but this one: command line by id."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            if mark.encode() in (entry / "environ").read_bytes() + command and int(entry.name) != os.getpid():
                found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
    return found


def status(pid: int | str) -> list[str]:
    """Return the fields of a process that follow its name: the state, the parent, the group, the session and others."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def parent(pid: int) -> int:
    """Return the process that started this one."""
    return int(status(pid)[1])


def alive(pid: int | str) -> bool:
    """Whether a process runs; one that has ended may wait for its parent."""
    try:
        return status(pid)[0] != "Z"
    except OSError:
        return False


def topology_files(proxy: int) -> list[str]:
    """Return what a proxy of MPICH has opened in /tmp to tell its ranks of the host."""
    links = [os.readlink(entry) for entry in Path(f"/proc/{proxy}/fd").iterdir()]
    return [link.removesuffix(" (deleted)") for link in links if link.startswith(TOPOLOGY)]
