"""The cores of this machine, divided among launches that run at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from hpcps.cores import Cores
from hpcps.errors import LaunchError

if TYPE_CHECKING:
    from hpcps.spec.schema import Run


def divide(cores: Cores, jobs: int, runs: Sequence[Run]) -> tuple[Cores, ...]:
    """Give each of so many launches cores of its own, as equal in number as they can be.

    Processes that wait cost nothing, so a launch may have more processes than cores, as it may without others beside
    it; what it may not is compete with the others.

    Args:
        cores: those there are.
        jobs: how many launches run at a time.
        runs: what they play; a process needs as many cores as it has threads.

    Raises:
        LaunchError: there are too few cores; the message says how many launches they are enough for.
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
    """Say that runs would have more cores by themselves; empty if each process has one of its own anyway."""
    processes = max(size_of(run) for run in runs)
    fewest = min(map(len, shares))
    if len(shares) == 1 or processes <= fewest:
        return ""
    return f"{len(shares)} launches at a time: the {processes} processes of a run share {fewest} of the cores"


def size_of(run: Run) -> int:
    """Return how many processes a run computes with at the same time."""
    topology = run.topology
    alone = run.transport.kind == "inproc"
    return 1 if alone else topology.servers + topology.validators + topology.workers
