"""Finds out in child processes how device memory is exchanged here: a wrong guess crashes a child, not the run."""

from __future__ import annotations

import socket
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hpcps.launch.bounded import ask
from hpcps.launch.detect import Mpi
from hpcps.launch.doctor.trial import start_pair, start_ranks
from hpcps.launch.launchers import Launch, Launcher
from hpcps.launch.plan import UNTRIED, Rank
from hpcps.launch.verify import same_host
from hpcps.spec.device_buffers import unsuitable
from hpcps.spec.schema import Run
from hpcps.transport.device import absence
from hpcps.transport.device.trial import SEEN

DEADLINE = 60.0
"""Seconds; a loaded machine takes some seconds to start processes that load a driver."""

ACCEPTED = "accepted"
"""The result of a trial if MPI takes device memory."""

NOT_NEEDED = "through MPI: not tried, because in a trial another process of this host read device memory in place"


@dataclass
class DeviceTrials:
    """The trials of one `hpcps run`, which makes each of them once."""

    _in_place: str | None = None
    _through_mpi: dict[tuple[str, str], str] = field(default_factory=dict)

    def device_memory(self, runs: Sequence[Run], launch: Launch, launcher: Launcher) -> str:
        """Return the `Plan.device_memory` of a launch of some runs.

        Two ranks try what the ranks of the launch will do, started by its launcher on its hosts: on two of them, and,
        unless this host shows that memory can be read in place, on one where several processes exchange memory.

        Args:
            runs: the runs, which share the settings of their transport.
            launch: the launch.
            launcher: the launcher that has rendered it.
        """
        world = launch.job.plan.world
        devices = {run.train.device for run in runs if not unsuitable(run) and run.transport.device_buffers == "auto"}
        remote = not all(rank.host == "localhost" for rank in world)
        # A host without a device may start a launch on hosts with devices, which only train.device = "cuda" tells.
        if not devices or (absence() and not (remote and "cuda" in devices)):
            return UNTRIED
        counts = Counter(rank.host for rank in world if rank.role != "adversary")
        shared = [host for host, count in counts.items() if count > 1]
        if shared and all(run.transport.shared_memory == "auto" for run in runs) and self._seen_here(counts):
            shared = []
        hosts = list(counts)
        pairs = [(hosts[0], hosts[-1])] if len(hosts) > 1 else []
        pairs += [(host, host) for host in shared[:1]]
        for pair in pairs:
            if pair not in self._through_mpi:
                self._through_mpi[pair] = _try_pair(launch, launcher, pair, DEADLINE)
            if self._through_mpi[pair] != ACCEPTED:
                return self._through_mpi[pair]
        return ACCEPTED if pairs else NOT_NEEDED

    def _seen_here(self, hosts: Counter[str]) -> bool:
        """Return whether processes of this host, if it is one of these hosts, read each other's memory in place."""
        if absence() or not any(same_host(host, socket.gethostname()) for host in hosts):
            return False
        if self._in_place is None:
            self._in_place = try_in_place()
        return not self._in_place


def try_in_place(seconds: float = DEADLINE) -> str:
    """Return why processes of this host cannot read each other's device memory in place; empty if they can."""
    answer = ask([sys.executable, "-m", "hpcps.transport.device.trial"], seconds)
    last = (answer.output.strip().splitlines() or [""])[-1]
    if not answer.problem and last == SEEN:
        return ""
    return f"in place: {f'the trial {answer.problem}' if answer.problem else last or 'the trial said nothing'}"


def try_mpi(mpi: Mpi, seconds: float = DEADLINE) -> str:
    """Return `ACCEPTED` if two ranks of this host can exchange device memory through MPI; else why not."""
    if reason := absence():
        return f"through MPI: {reason}"
    return _result("", *start_ranks(mpi, seconds, "device"))


def _try_pair(launch: Launch, launcher: Launcher, hosts: tuple[str, str], seconds: float) -> str:
    """Return `ACCEPTED` if ranks of a launch can exchange device memory between two hosts, or on one; else why not."""
    plan = replace(launch.job.plan, world=tuple(Rank(rank, "worker", rank, host) for rank, host in enumerate(hosts)))
    where = " between {} and {}".format(*hosts) if hosts[0] != hosts[1] else ""
    # In a folder of the launch, which all of its hosts can read.
    folder = launch.job.plan_file.parent / f"trial-{'-'.join(dict.fromkeys(hosts))}"
    job = replace(launch.job, plan=replace(plan, runs=()))
    return _result(where, *start_pair(job, launcher, folder, seconds, "device"))


def _result(where: str, found: dict[str, object], problem: str) -> str:
    if problem:
        return f"through MPI{where}: {problem}"
    if found.get("device") is True:
        return ACCEPTED
    return f"through MPI{where}: {found.get('device') or 'the memory came back changed'}"
