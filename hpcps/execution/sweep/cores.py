"""Divide the cores of this machine among launches that run at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from hpcps.errors import LaunchError
from hpcps.launch.limits import Cores

if TYPE_CHECKING:
    from hpcps.spec.schema import Run


def divide(cores: Cores, jobs: int, runs: Sequence[Run]) -> tuple[Cores, ...]:
    """Give each of `jobs` launches its own cores; the numbers of cores differ by at most one.

    A launch may have more processes than cores, because waiting processes use no core. Launches must not compete for
    the same cores.

    Args:
        cores: the available cores.
        jobs: the number of launches at a time.
        runs: the runs; a process needs as many cores as it has threads.

    Raises:
        LaunchError: there are too few cores; the message gives the possible number of launches.
    """
    threads = max(run.train.threads for run in runs)
    most = max(1, len(cores) // threads)
    if jobs > most:
        each = f", and a process of these runs has {threads} threads" if threads > 1 else ""
        there = f"{len(cores)} core{'s' * (len(cores) > 1)}"
        raise LaunchError(f"--jobs {jobs}: there are {there} here for us{each}: use at most --jobs {most}")
    size, rest = divmod(len(cores), jobs)
    starts = [job * size + min(job, rest) for job in range(jobs + 1)]
    return tuple(cores[start:stop] for start, stop in pairwise(starts))


def crowding(shares: Sequence[Cores], runs: Sequence[Run]) -> str:
    """Return a note that the runs of each launch share cores; empty if each process has its own core."""
    processes = max(size_of(run) for run in runs)
    fewest = min(map(len, shares))
    if len(shares) == 1 or processes <= fewest:
        return ""
    return f"{len(shares)} launches at a time: the {processes} processes of a run share {fewest} of the cores"


def size_of(run: Run) -> int:
    """Return the number of processes of a run that compute at the same time."""
    return 1 if run.transport.in_process else run.processes
