"""What a process may use of this machine: cores, NUMA nodes, memory, and open files."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hpcps.errors import LaunchError

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


def numa_nodes(root: Path = Path("/sys/devices/system/node")) -> list[Cores]:
    """Return the cores of each NUMA node that this process may use; not the nodes where it may use none.

    Args:
        root: where the kernel describes the nodes.

    Raises:
        LaunchError: this system does not describe them, or cannot bind a process.
    """
    own, nodes = set(own_cores()), []
    for folder in sorted(root.glob("node[0-9]*"), key=lambda folder: int(folder.name[4:])):
        spans = [span.partition("-") for span in _text(folder / "cpulist").strip().split(",") if span]
        cores = {core for first, _, last in spans for core in range(int(first), int(last or first) + 1)}
        nodes.append(tuple(sorted(cores & own)))
    found = [cores for cores in nodes if cores]
    if not found or not hasattr(os, "sched_setaffinity"):
        raise LaunchError(
            f"--bind numa: {socket.gethostname()} does not tell which cores a NUMA node has ({root}), or cannot bind a "
            "process to them: leave out --bind"
        )
    return found


def cgroup_quota(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Return the CPU time that the control groups of this process allow, in cores; None if there is no limit.

    Args:
        root: where the control groups are mounted, of version 1 or 2.
        own: the file that names the groups of this process.
    """
    limits = []
    for place in _groups("cpu", root, own):
        # The files of version 2, `quota period`, and of version 1.
        words = _text(place / "cpu.max").split()
        words = words or [*_text(place / "cpu.cfs_quota_us").split(), *_text(place / "cpu.cfs_period_us").split()]
        with suppress(ValueError):
            quota, period = map(int, words)
            limits += [quota / period] if quota > 0 and period > 0 else []
    return min(limits, default=None)


def memory_limit(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """Return the memory that the processes of this launch may use, in bytes: that of the machine or a control group.

    Args:
        root: where the control groups are mounted, of version 1 or 2.
        own: the file that names the groups of this process.
    """
    limits = [float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")]
    for place in _groups("memory", root, own):
        for name in ("memory.max", "memory.limit_in_bytes"):  # of version 2, and of version 1
            with suppress(ValueError):
                limits.append(float(int(_text(place / name))))
    return min(limits)


def _groups(controller: str, root: Path, own: Path) -> Iterator[Path]:
    """Yield the folders that may describe the control groups of this process for a controller, such as `cpu`."""
    for line in _text(own).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        bases = [root / controllers, root / controller, root] if controllers else [root, root / "unified"]
        group = Path(path.lstrip("/"))
        # In a container, the path is that of the host, and only the root is mounted.
        yield from {base / part for base in bases for part in (group, *group.parents)}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


ENOUGH = 65_536
"""Some programs close every possible file before they start others, which takes long with a higher limit."""


def raise_limit() -> None:
    """Raise the soft limit of this process and its children up to the hard limit.

    A process of an ordinary user may have 1,024 open files. A run in one process has a record for each role, and a
    process of a launch has the memory of each role on its host.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a system may refuse it; the run may need no more
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
