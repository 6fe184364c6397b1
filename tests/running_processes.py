"""Processes of this machine, which tests look for and wait for."""

import itertools
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

TOPOLOGY = "/tmp/hydra_hwloc_xmlfile_"
"""The beginning of the paths of the files in which MPICH describes a host to its ranks."""


_PORTS = 200
"""The ports of a process of pytest; one that a connection has used is not free for a minute."""


def _own_ports() -> Iterator[int]:
    first = 20_000 + _PORTS * (os.getpid() % 60)
    # In turn, because a port is free again until its process binds it. At random, as another run may have had the same.
    return itertools.cycle(random.sample(range(first, first + _PORTS), _PORTS))


_ports = _own_ports()


def free_port() -> int:
    """Return a port that nothing uses, and that no connection or other process of pytest gets at the same time."""
    for port in itertools.islice(_ports, _PORTS):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("none of the ports of this process is free")


def within(seconds: float, found: Callable[[], Any], what: str | Callable[[], Any]) -> Any:
    """Poll until something is found, and return it; the failure names `what`, a text or a function that returns one."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, f"{what() if callable(what) else what}: not within {seconds:g} s"
        time.sleep(0.01)
    return value


def processes(mark: str) -> dict[int, str]:
    """Return the command lines, by id, of the other processes with a text in their environment or command line."""
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
    """Return whether a process runs; one that has ended stays as a zombie until its parent asks for its status."""
    try:
        return status(pid)[0] != "Z"
    except OSError:
        return False


def topology_files(proxy: int) -> list[str]:
    """Return the paths of the files that a proxy of MPICH has open to describe the host to its ranks."""
    links = [os.readlink(entry) for entry in Path(f"/proc/{proxy}/fd").iterdir()]
    return [link.removesuffix(" (deleted)") for link in links if link.startswith(TOPOLOGY)]
