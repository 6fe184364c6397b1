"""Finds out in child processes how device memory is exchanged here: a wrong guess crashes a child, not the run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache

from hpcps.launch.bounded import ask
from hpcps.launch.detect import Mpi
from hpcps.launch.doctor.trial import start_ranks
from hpcps.launch.plan import UNTRIED
from hpcps.spec.device_buffers import unsuitable
from hpcps.spec.schema import Run
from hpcps.transport.device import absence
from hpcps.transport.device.trial import SEEN

DEADLINE = 60.0
"""Seconds; a loaded machine takes some seconds to start processes that load a driver."""

ACCEPTED = "accepted"
"""The result of `try_mpi` if MPI takes device memory."""


def device_memory(runs: Sequence[Run], mpi: Mpi) -> str:
    """Return the `Plan.device_memory` of a launch of some runs; a trial takes seconds, so only one is made."""
    needed = any(not unsuitable(run) and run.transport.device_buffers == "auto" for run in runs)
    return _tried(mpi) if needed and not absence() else UNTRIED


@cache
def _tried(mpi: Mpi) -> str:
    return try_mpi(mpi)


def try_in_place(seconds: float = DEADLINE) -> str:
    """Return why processes of this host cannot read each other's device memory in place; empty if they can."""
    answer = ask([sys.executable, "-m", "hpcps.transport.device.trial"], seconds)
    last = (answer.output.strip().splitlines() or [""])[-1]
    if not answer.problem and last == SEEN:
        return ""
    return f"in place: {f'the trial {answer.problem}' if answer.problem else last or 'the trial said nothing'}"


def try_mpi(mpi: Mpi, seconds: float = DEADLINE) -> str:
    """Return `ACCEPTED` if two ranks can exchange device memory through MPI; else why not."""
    if reason := absence():
        return f"through MPI: {reason}"
    found, problem = start_ranks(mpi, seconds, "device")
    if problem:
        return f"through MPI: {problem}"
    if found.get("device") is True:
        return ACCEPTED
    return f"through MPI: {found.get('device') or 'the memory came back changed'}"
