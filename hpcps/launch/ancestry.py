"""Which variables of a launcher a process inherits from its parent, and the task of an MPI launcher that it is."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcps.inputs import whole_number

JOINED = "HPCPS_JOINED"
"""The variable in which a process that has joined others leaves its process id to its children."""
_PID = os.getpid()
_TASKS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI, Cray MPICH, and srun --mpi=pmi2
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun; a job of Slurm without a step has no number of its tasks
    ("PALS_RANKID", ""),
    ("PMIX_RANK", ""),
)
"""The variables of the rank and of the number of tasks; the first pair that is set counts.

`mpirun` in a job of Slurm starts its own processes with `srun`, so the variables of MPI count before those of Slurm.
"""
_OF_ONE_PROCESS = re.compile(
    r"HPCPS_(PLAN|RANK|INCARNATION|JOINED)"
    r"|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+"
    r"|HYDI_CONTROL_FD|MPI_LOCALN?RANK(S|ID)|PALS_(LOCAL_)?RANKID"
    r"|PMI_(RANK|SIZE|FD|PORT|ID|JOBID|HOSTNAME|SPAWNED|UNIVERSE_SIZE|CONTROL_PORT|SHARED_SECRET|LOCAL_(RANK|SIZE))"
    r"|PMIX_(?!MCA_)\w+|PRTE_LAUNCHED"
    r"|OMPI_(COMM_WORLD|APP_CTX|WORLD|UNIVERSE)_\w+|OMPI_(ARGV|COMMAND|FILE_LOCATION|FIRST_RANKS|NUM_APP_CTX)"
)
"""The variables that launchers and torchrun set for one process. Those of a site, such as OMPI_MCA_*, have others."""
_MOST = 1 << 24


@dataclass(frozen=True)
class Task:
    """A task of a step of an MPI launcher.

    Attributes:
        rank: its number.
        size: the number of tasks; None if only MPI knows it.
        variable: the variable that says so, for messages.
    """

    rank: int
    size: int | None
    variable: str

    def __str__(self) -> str:
        number = f"task {self.rank}" if self.size is None else f"task {self.rank} of {self.size}"
        return f"{number} ({self.variable})"


def without_launch(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables of one process of a launch, for a new launch."""
    return {name: value for name, value in environment.items() if not _OF_ONE_PROCESS.fullmatch(name)}


def leave_launch(environment: MutableMapping[str, str] = os.environ) -> None:
    """Remove the variables of one process of a launch."""
    for name in environment.keys() - without_launch(environment).keys():
        del environment[name]


class Ancestry:
    """The variables of this process that a launcher has set for it, and not for a process that has started it.

    A child of a process of a launch inherits its variables. So does the program that a wrapper starts, such as
    `mpirun -n 4 sh train.sh`, but a wrapper has not joined anybody.

    Attributes:
        parent: the process that inherited variables belong to; None if this process inherits none.
        relation: what this process is to that one, for messages.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Find out whose child this process is."""
        self._environment = environment
        self.parent, self.relation = _parent(environment)
        self._of_parent = {} if self.parent is None else _environment_of(self.parent)

    def own(self, names: Sequence[str]) -> dict[str, str]:
        """Return those of some variables that are set; none of them if this process inherits all of them."""
        found = {name: self._environment[name] for name in names if self._environment.get(name)}
        inherited = self.parent is not None and all(
            self._of_parent.get(name, "") == self._environment.get(name, "") for name in names
        )
        return {} if inherited else found

    def task(self) -> Task | None:
        """Return the task of a launcher that this process is, if there may be others."""
        for rank, size in _TASKS:
            found = self.own([rank, size] if size else [rank])
            number = whole_number(found.get(rank, ""), 0, _MOST)
            count = whole_number(found.get(size, ""), 1, _MOST)
            if number is not None and (count is not None or not size):
                return None if count == 1 else Task(number, count, size or rank)
        return None


def _parent(environment: Mapping[str, str]) -> tuple[int | None, str]:
    if (parent := multiprocessing.parent_process()) is not None and parent.pid is not None:
        return parent.pid, "multiprocessing has started this process"
    if os.getpid() != _PID:
        return _PID, "os.fork() has started this process"
    joined = whole_number(environment.get(JOINED, ""), 1, 1 << 31)
    if joined is not None and joined != os.getpid():
        return joined, "this process is a child of one that has called init()"
    rank = next((rank for rank, _ in _TASKS if environment.get(rank)), "")
    ancestor = _parent_of(os.getpid()) if rank else 0
    while ancestor > 1 and _environment_of(ancestor).get(rank) == environment[rank]:
        if _uses_mpi(ancestor):
            return ancestor, "this process is a child of one that uses MPI"
        ancestor = _parent_of(ancestor)
    return None, ""


def _environment_of(pid: int) -> dict[str, str]:
    """Return the variables with which a process was started; none if they cannot be read."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return dict(os.fsdecode(word).split("=", 1) for word in words if b"=" in word)
    return {}


def _parent_of(pid: int) -> int:
    with suppress(OSError):
        # The name of the program, in parentheses, may contain blanks.
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return 0


def _uses_mpi(pid: int) -> bool:
    with suppress(OSError):
        return b"/libmpi" in Path(f"/proc/{pid}/maps").read_bytes()
    return False
