"""Examines this machine: probes in a child process with a deadline, and a launch of two ranks."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import hpcps
from hpcps.errors import InputError, LaunchError
from hpcps.inputs import parse_json
from hpcps.launch.batch import Allocation, allocation
from hpcps.launch.bounded import ask
from hpcps.launch.detect import Mpi, detect_mpi
from hpcps.launch.dev_shm import explanation, space
from hpcps.launch.doctor.child import PROBES
from hpcps.launch.gpu_mpi import start_pair, try_device_memory
from hpcps.launch.limits import cgroup_quota, own_cores
from hpcps.launch.plan import ACCEPTED
from hpcps.transport.device import absence

DEADLINE = 60.0
"""Seconds for all probes, and for a trial launch; a loaded machine takes some seconds."""

VERSION_DEADLINE = 20.0
"""Seconds for the `--version` of a launcher."""

Facts = dict[str, Any]


@dataclass(frozen=True)
class MpiState:
    """The state of MPI.

    Attributes:
        library: its name and version; empty if mpi4py loads none.
        path: the file of the library.
        mpi4py: the version of mpi4py.
        launcher: the name of the launcher; empty if there is none.
        mpirun: its executable.
        works: whether two ranks start and exchange a message.
        problem: what is wrong; empty if it works.
        stated: what its library states about CUDA, by the function that states it.
        cuda_aware: whether it accepts device memory; None if that is not known.
        determined: how `cuda_aware` was determined.
        shm: the bytes of `/dev/shm` that each of two ranks takes; None if that is not known.
    """

    library: str = ""
    path: str = ""
    mpi4py: str = ""
    launcher: str = ""
    mpirun: str = ""
    works: bool = False
    problem: str = ""
    stated: Mapping[str, bool] = field(default_factory=dict)
    cuda_aware: bool | None = None
    determined: str = "not determined, because MPI does not work"
    shm: float | None = None


@dataclass(frozen=True)
class CoreCount:
    """The cores of this machine: all, those of the affinity mask, and the limit of the control group."""

    machine: int
    affinity: int
    cgroup: float | None

    @property
    def usable(self) -> float:
        """The cores that this process may use."""
        return min(float(self.affinity), self.cgroup or float(self.affinity))


@dataclass(frozen=True)
class Diagnosis:
    """The result of all probes; in the result of a probe that gave none, `problem` says why."""

    mpi: MpiState
    buffers: Facts
    gpus: Facts
    mps: Facts
    cores: CoreCount
    memory: Facts
    kernels: Facts
    software: Facts
    batch: Allocation

    def data(self) -> Facts:
        """Return it as JSON values."""
        return {
            "hpcps": hpcps.__version__,
            "python": platform.python_version(),
            "interpreter": sys.executable,
            "host": platform.node(),
            "mpi": asdict(self.mpi),
            "gpus": self.gpus,
            "mps": self.mps,
            "device_buffers": self.buffers,
            "cores": {**asdict(self.cores), "usable": self.cores.usable},
            "shared_memory": self.memory,
            "kernels": self.kernels,
            "software": self.software,
            "batch": self.batch.data(),
        }


def diagnose() -> Diagnosis:
    """Run all probes."""
    facts, job = probe(list(PROBES)), allocation(DEADLINE)
    cores = CoreCount(os.cpu_count() or 1, len(own_cores()), cgroup_quota())
    mpi = _mpi(facts.pop("mpi"), in_job=bool(job.system))
    direct = absence() or f"through MPI: {mpi.problem}"
    if mpi.works:
        direct = absence() or try_device_memory(detect_mpi(timeout=VERSION_DEADLINE))
        mpi = _with_cuda_awareness(mpi, direct)
    taken = direct == ACCEPTED
    buffers = {"direct": "" if taken else direct, "auto": "direct" if taken else "staged"}
    return Diagnosis(mpi=mpi, buffers=buffers, cores=cores, batch=job, **facts)


def probe(names: Sequence[str]) -> dict[str, Facts]:
    """Run probes in one child process; after a probe that ends the child, another child runs the remaining ones."""
    found: dict[str, Facts] = {}
    while left := [name for name in names if name not in found]:
        answer = ask([sys.executable, "-m", "hpcps.launch.doctor.child", *left], DEADLINE)
        for line in answer.output.splitlines():
            with suppress(InputError):  # the child was ended while it wrote
                found |= parse_json("", line)
        if unknown := [name for name in left if name not in found]:
            # The last line that a child printed may be the result of the probe before.
            why = answer.problem.removesuffix(f": {answer.output.strip().rpartition(chr(10))[2][:200]}")
            found[unknown[0]] = {"problem": f"the probe {why or 'printed no result'}"}
    return found


def _mpi(library: Facts, *, in_job: bool) -> MpiState:
    known: dict[str, Any] = {}
    problems = []
    if "library" in library:
        known = dict(library)
    else:
        problems.append(f"mpi4py loads no MPI library: {library['problem']}")
    mpi: Mpi | None = None
    try:
        mpi = detect_mpi(timeout=min(DEADLINE, VERSION_DEADLINE))
    except LaunchError as error:
        problems.append(str(error))
    else:
        known |= {"launcher": mpi.launcher.name, "mpirun": str(mpi.mpirun)}
        if mpi.launcher.job_variables and not in_job:
            problems.append(f"{mpi.mpirun.name} starts processes only in a job, and this is none")
    if problems or mpi is None:
        return MpiState(**known, problem="; ".join(problems))
    trial, problem = start_pair(mpi, DEADLINE)
    if problem:
        why = explanation(2, there) if (there := space()) else ""
        return MpiState(**known, problem="; ".join(filter(None, [problem, why])))
    return MpiState(**known, works=True, stated=trial.get("stated", {}), shm=trial.get("shm"))


def _with_cuda_awareness(mpi: MpiState, direct: str) -> MpiState:
    """Return the state with what the exchange of device memory has shown; `direct` is its result."""
    says = ", ".join(f"{name}() says {'yes' if aware else 'no'}" for name, aware in mpi.stated.items())
    if reason := absence():
        aware = any(mpi.stated.values()) if mpi.stated else None
        return replace(mpi, cuda_aware=aware, determined=f"{says or 'the library does not say'}; not tried: {reason}")
    aware = direct == ACCEPTED
    found = "device memory was sent and came back unchanged" if aware else direct
    return replace(mpi, cuda_aware=aware, determined="; ".join(filter(None, [found, says])))
