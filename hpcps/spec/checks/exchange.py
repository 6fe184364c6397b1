"""Checks of transport, delays and simulated timing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from hpcps.spec.checks.paths import MODE, SERVERS, WORKERS
from hpcps.spec.device_buffers import obstacle
from hpcps.spec.heterogeneity import UniformDelay
from hpcps.spec.problems import Problem, quote
from hpcps.spec.schema import Run
from hpcps.spec.simulation import Measured, Modelled, NoSimulation


def _partitions_are_of_rounds(run: Run) -> Iterator[Problem]:
    if run.transport.partition == "auto":
        return
    path = ("transport", "partition")
    if run.train.mode == "async":
        yield Problem(path, "only synchronous training uses partitions: leave it out", (MODE,))
    elif run.topology.alone:
        yield Problem(path, "the single-process baseline sends no messages: leave it out", (SERVERS, WORKERS))


def _slow_workers_exist(run: Run) -> Iterator[Problem]:
    slow, workers = run.heterogeneity.slow, run.topology.workers
    if workers == 0:
        return
    if unknown := [index for index in slow.workers if index >= workers]:
        yield Problem(
            ("heterogeneity", "slow", "workers"),
            f"{quote(unknown)} are not among the {workers} workers: use indices from 0 to {workers - 1}",
            (WORKERS,),
        )
    if bool(slow.workers) != (slow.factor > 1):
        yield Problem(
            ("heterogeneity", "slow", "workers" if slow.workers else "factor"),
            "has an effect only with both workers and a factor above 1: set the other key too, or leave both out",
            (("heterogeneity", "slow", "factor" if slow.workers else "workers"),),
        )
    if slow.workers and run.transport.in_process and isinstance(run.simulation, NoSimulation):
        yield Problem(
            ("heterogeneity", "slow"),
            "in one process computation takes no time, so it cannot be slowed down: add a [simulation], or use "
            'transport.kind = "mpi" or heterogeneity.delay',
            (("transport", "kind"), ("simulation",)),
        )


def _device_buffers_are_possible(run: Run) -> Iterator[Problem]:
    asked, path = run.transport.buffers, ("transport", "device_buffers")
    if asked == "auto" or "device_memory" not in run.transport.offers:
        return
    if found := obstacle(run):
        key, value = found
        message = "has an effect only on training with servers over MPI, with torch on a GPU"
        yield Problem(path, f"{message}, but {'.'.join(key)} = {value}: leave it out", (key,))


def _delays_have_a_range(run: Run) -> Iterator[Problem]:
    delays = {("heterogeneity", "delay"): run.heterogeneity.delay}
    if isinstance(run.simulation, Modelled):
        delays["simulation", "step"] = run.simulation.step
    for path, delay in delays.items():
        if isinstance(delay, UniformDelay) and delay.high < delay.low:
            yield Problem((*path, "high"), f"{delay.high} s is below low = {delay.low} s")


def _simulation_is_in_process(run: Run) -> Iterator[Problem]:
    if not isinstance(run.simulation, NoSimulation) and not run.transport.in_process:
        yield Problem(
            ("simulation",),
            'has an effect only with transport.kind = "inproc": set that, or leave it out',
            (("transport", "kind"),),
        )


def _measured_costs_have_records(run: Run) -> Iterator[Problem]:
    if isinstance(run.simulation, Measured) and not run.simulation.records:
        what = "missing: the folder of a finished run over MPI, such as results/quickstart/runs/1a2b3c4d5e"
        yield Problem(("simulation", "records"), what, missing=True)


def _simulated_roles_have_one_host_each(run: Run) -> Iterator[Problem]:
    machine, path = run.simulation, ("simulation", "placement")
    if isinstance(machine, NoSimulation) or not machine.placement:
        return
    if len(machine.placement) != machine.hosts:
        yield Problem(
            path,
            f"lists roles for {len(machine.placement)} hosts, but simulation.hosts = {machine.hosts}: make them equal",
            (("simulation", "hosts"),),
        )
    topology = run.topology
    counts = {"worker": topology.workers, "validator": topology.validators, "server": topology.servers}
    roles = [f"{role}-{index}" for role, count in counts.items() for index in range(count)]
    placed, known = Counter(name for names in machine.placement for name in names), set(roles)
    wrong = {
        "no host": [role for role in roles if role not in placed],
        "several entries": [role for role, times in placed.items() if times > 1],
        "a host, but is not in this run": [role for role in placed if role not in known],
    }
    for what, names in wrong.items():
        if names:
            more = f" and {len(names) - 20} more" if len(names) > 20 else ""
            verb = "has" if len(names) == 1 else "have"
            yield Problem(path, f"{', '.join(names[:20])}{more} {verb} {what}", (("topology",),))


CHECKS: tuple[Callable[[Run], Iterator[Problem]], ...] = (
    _partitions_are_of_rounds,
    _slow_workers_exist,
    _device_buffers_are_possible,
    _delays_have_a_range,
    _simulation_is_in_process,
    _measured_costs_have_records,
    _simulated_roles_have_one_host_each,
)
