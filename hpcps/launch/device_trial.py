"""Finds out in child processes whether MPI takes device memory here: a wrong guess crashes a child, not the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hpcps.launch.detect import Mpi
from hpcps.launch.doctor.trial import start_pair, start_ranks
from hpcps.launch.launchers import Launch, Launcher
from hpcps.launch.plan import UNTRIED, Rank
from hpcps.spec.device_buffers import unsuitable
from hpcps.spec.schema import Run
from hpcps.transport.device import absence

DEADLINE = 60.0
"""Seconds; a loaded machine takes some seconds to start processes that load a driver."""

ACCEPTED = "accepted"
"""The result of a trial if MPI takes device memory."""


@dataclass
class DeviceTrials:
    """The trials of one `hpcps run`, which makes each of them once."""

    _through_mpi: dict[tuple[str, str], str] = field(default_factory=dict)

    def device_memory(self, runs: Sequence[Run], launch: Launch, launcher: Launcher) -> str:
        """Return the `Plan.device_memory` of a launch of some runs.

        Two ranks try what the ranks of the launch will do, started by its launcher on its hosts: on two of them, and on
        one where several processes exchange memory.

        Args:
            runs: the runs, which share the settings of their transport.
            launch: the launch.
            launcher: the launcher that has rendered it.
        """
        world = launch.job.plan.world
        devices = {run.train.device for run in runs if not unsuitable(run) and run.transport.buffers == "auto"}
        remote = not all(rank.host == "localhost" for rank in world)
        # A host without a device may start a launch on hosts with devices, which only train.device = "cuda" tells.
        if not devices or (absence() and not (remote and "cuda" in devices)):
            return UNTRIED
        counts = Counter(rank.host for rank in world if rank.role != "adversary")
        shared = [host for host, count in counts.items() if count > 1]
        hosts = list(counts)
        pairs = [(hosts[0], hosts[-1])] if len(hosts) > 1 else []
        pairs += [(host, host) for host in shared[:1]]
        for pair in pairs:
            if pair not in self._through_mpi:
                self._through_mpi[pair] = _try_pair(launch, launcher, pair, DEADLINE)
            if self._through_mpi[pair] != ACCEPTED:
                return self._through_mpi[pair]
        return ACCEPTED


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
