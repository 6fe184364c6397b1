"""Measure the exchange of people's own scripts (`hpcps.torch`), beside DistributedDataParallel and the network.

    .venv/bin/python benchmarks/own_script.py [--quick] [--only small mlp] [--output benchmarks/results]

Four processes measure in turn, in one launch for each part:

- `small`: one tensor of 800 KB, and 200 of 4 KB;
- `mlp`, `resnet18`: a step of a model with 25 M parameters, and of `resnet18_v1` on images of 32 x 32: without an
  exchange, with DistributedOptimizer, with the hook, and with DistributedDataParallel, which averages its buckets by
  gloo (DDP) or by Iallreduce of mpi4py; none of them broadcasts buffers, such as running means;
- `hosts`: an exchange of 64 MB between hosts (network namespaces) with links of 1 Gbit/s, and how much of it computing
  hides that takes 1.3 times as long.

Time runs until the last process has the result. On a busy machine, compare the seconds of computing: the sum over all
processes. Without `--output` the report is only printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bars import Bar, write
from hosts import Network
from machine import Others, description
from own_script_rank import BATCH, LARGE
from processes import Command, MeasurementError, NotHereError, clean_up_on_sigterm, run_together

from hpcps.launch.detect import detect_mpi
from hpcps.launch.prepare import Site
from hpcps.launch.script import prepare_script, run_of
from hpcps.registry import active

PROCESSES = SERVERS = 4
LIMIT = 900.0
"""The seconds that the turns of one measurement may take."""
MANY = 1.5
"""The highest ratio of 200 tensors of 4 KB to one of 800 KB."""
OUTSIDE, IMAGES = {"DDP": 0.6, "mpi4py": 1.0}, 0.97
"""The highest ratios of the time outside of computing to that of each peer, and the lowest of images/s."""
GIGABITS, BOUND, HIDDEN = 1.0, 1.15, 0.8
"""The speed of links, the highest ratio of an exchange to its bound, and the least share that computing hides."""
PROGRAM = Path(__file__).with_name("own_script_rank.py")

Columns = dict[str, list[list[float]]]
"""The seconds of the turns, and those of computing, by name."""


def measure(
    what: str, turns: int, servers: int = 0, network: Network | None = None, program: Path = PROGRAM
) -> Columns:
    """Launch a program such as `own_script_rank.py`, which writes its results to a file; return them.

    Args:
        what: what it measures, its first argument.
        turns: how often, its second argument.
        servers: the number of servers.
        network: the hosts, one for each process; by default all are on this one.
        program: the program.

    Raises:
        MeasurementError: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="hpcps-bench-") as temporary:
        folder = Path(temporary)
        file = folder / "seconds.json"
        command = [sys.executable, str(program), what, str(turns), str(file)]
        transport = active().of("transports")["mpi"]()
        run = run_of(command, PROCESSES, servers, transport, folder / "results")
        mpi = detect_mpi(Path(sys.executable).parent / "mpirun")
        site = Site(launcher=mpi.launcher, mpirun=mpi.mpirun, hosts=network.hosts(1) if network else None)
        launch = prepare_script(command, PROCESSES, servers, transport, run, folder / "conf", site)
        words: Sequence[str] = launch.command
        if network:
            # UCX would detect that all hosts are one machine, and use shared memory.
            variables = {**launch.job.variables, "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
            variables["GLOO_SOCKET_IFNAME"] = "eth0"
            launch = mpi.launcher.launch_of(replace(launch.job, variables=variables, agent=network.agent))
            words = [*network.enter(network.names[0]), *launch.command]
        launch.job.plan_file.parent.mkdir(parents=True)
        launch.write()
        if problem := run_together([Command(words, launch.environment(), "mpirun")], folder / "logs", LIMIT):
            raise MeasurementError(problem)
        found: Columns = json.loads(file.read_text())
    return found


def small(turns: int) -> tuple[list[str], list[Bar]]:
    """Many small tensors beside a large one."""
    found = measure("small", turns)
    bars = []
    for kind in ("push_pull", "optimizer"):
        ratio = _median(found[f"{kind}, many"]) / _median(found[f"{kind}, one"])
        bars.append(Bar.at_most(f"200 tensors of 4 KB beside one of 800 KB, {kind}", ratio, MANY))
    return ["## Small tensors", "", *_table(found)], bars


def model(name: str, turns: int) -> tuple[list[str], list[Bar]]:
    """Steps of a model beside DistributedDataParallel."""
    found = measure(name, turns)
    bars, computing = [], _median(found["none"])
    for kind in ("optimizer", "hook"):
        own = _median(found[kind])
        for peer, limit in OUTSIDE.items():
            theirs = _median(found[peer])
            outside, what = (own - computing) / (theirs - computing), f"{peer}, {name}, {kind}"
            bars.append(Bar.at_most(f"time of a step outside of computing beside {what}", outside, limit))
            bars.append(Bar.at_least(f"images/s beside {what}", theirs / own, IMAGES))
    speeds = ", ".join(f"{kind} {PROCESSES * BATCH[name] / _median(columns):.1f}" for kind, columns in found.items())
    return [f"## A step of {name}", "", *_table(found), "", f"Images per second: {speeds}."], bars


def hosts(turns: int) -> tuple[list[str], list[Bar]]:
    """64 MB between hosts, with each process on a host of its own."""
    with Network(PROCESSES + SERVERS, GIGABITS) as network:
        found = measure("hosts", turns, SERVERS, network)
    bound = 4 * LARGE * max(1.0, PROCESSES / SERVERS) / (GIGABITS * 1e9 / 8)
    exchange, computing, both = (_median(found[name]) for name in ("exchange", "computing", "both"))
    hidden = 1 - (both - computing) / exchange
    where = f"64 MB, {PROCESSES} workers, {SERVERS} servers, {GIGABITS:g} Gbit/s"
    bars = [
        Bar.at_most(f"an exchange beside max(M/B, nM/(kB)), {where}", _median(found["one tensor"]) / bound, BOUND),
        Bar.at_least(f"share of the exchange hidden behind computing, {where}", hidden, HIDDEN),
    ]
    about = f"{SERVERS} servers; the bound is {1e3 * bound:.0f} ms."
    return ["## Between hosts", "", about, "", *_table(found)], bars


PARTS: dict[str, tuple[Callable[[int], tuple[list[str], list[Bar]]], int]] = {
    "small": (small, 200),
    "mlp": (lambda turns: model("mlp", turns), 15),
    "resnet18": (lambda turns: model("resnet18", turns), 10),
    "hosts": (hosts, 7),
}
"""The parts, and the number of turns of each."""


def _median(columns: list[list[float]]) -> float:
    return statistics.median(columns[0])


def _table(found: Columns) -> list[str]:
    lines = ["| | Time | Minimum | Computing | Minimum |", "|---|---|---|---|---|"]
    for name, columns in found.items():
        cells = [f"{1e3 * of(column):.2f}" for column in columns for of in (statistics.median, min)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few turns")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="these parts")
    parser.add_argument("--output", type=Path, help="the folder for own_script.md")
    args = parser.parse_args()
    clean_up_on_sigterm()
    others = Others()
    lines, bars, failed = list[str](), list[Bar](), False
    for name in args.only:
        part, turns = PARTS[name]
        try:
            text, found = part(max(2, turns // 10) if args.quick else turns)
        except MeasurementError as error:
            text, found = [f"{name}: {error}"], []
            failed |= not isinstance(error, NotHereError)
        verdicts = [f"- {bar.what}: {bar.measured} (wanted: {bar.wanted})" for bar in found]
        lines += ["", *text, "", *verdicts]
        bars += found
        print("\n".join(["", *text, "", *verdicts]), flush=True)
    about = f"{PROCESSES} processes; {description()}; other processes used {others.cores():.1f} cores."
    print(f"\n{about}")
    if args.output:
        times = "Medians and minima over the turns, in ms. Computing is the CPU time of all processes."
        args.output.mkdir(parents=True, exist_ok=True)
        text = ["# Own scripts", "", about, times, *lines]
        (args.output / "own_script.md").write_text("\n".join(text) + "\n", encoding="utf-8")
        write(args.output, "own_script", bars)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
