"""Checks of classes of workers, delays and simulated timing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

from hpcps.spec.heterogeneity import UniformDelay
from hpcps.spec.problems import WORKERS, Problem, quote
from hpcps.spec.schema import Run
from hpcps.spec.simulation import Measured, Modelled, NoSimulation

CLASSES = ("heterogeneity", "classes")


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


def _delays_have_a_range(run: Run) -> Iterator[Problem]:
    delays = {("heterogeneity", "delay"): run.heterogeneity.delay}
    if isinstance(run.simulation, Modelled):
        delays["simulation", "step"] = run.simulation.step
    for path, delay in delays.items():
        if isinstance(delay, UniformDelay) and delay.high < delay.low:
            yield Problem((*path, "high"), f"{delay.high} s is below low = {delay.low} s")


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
    counts |= {"evaluator": topology.evaluators}
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


def _names_differ(run: Run) -> Iterator[Problem]:
    names = [each.name for each in run.heterogeneity.classes]
    for number, name in enumerate(names):
        if name in names[:number]:
            yield Problem((*CLASSES, number, "name"), f"{quote(name)} is the name of another class: use another one")


def _members_are_workers(run: Run) -> Iterator[Problem]:
    """Every class has existing workers, and no worker is in two classes, or in one and in `slow`."""
    if run.topology.alone:
        return
    workers, seen = run.topology.workers, dict.fromkeys(run.heterogeneity.slow.workers, "heterogeneity.slow")
    counted = sum(len(members) for members in run.heterogeneity.members())
    for number, (each, members) in enumerate(zip(run.heterogeneity.classes, run.heterogeneity.members(), strict=True)):
        path = (*CLASSES, number, "workers")
        listed = not isinstance(each.workers, int)
        if not members:
            yield Problem(path, "an empty list: name at least one worker, or remove the class")
        elif unknown := [index for index in members if index >= workers]:
            if listed:
                what = f"{quote(unknown)} are not among the {workers} workers: use indices from 0 to {workers - 1}"
            else:
                what = f"the classes have {counted} workers in all, and there are {workers}: use fewer"
            yield Problem(path, what, (WORKERS,))
        if twice := [index for index, times in sorted(Counter(members).items()) if times > 1]:
            yield Problem(path, f"lists {quote(twice)} twice: list each worker once")
        for index in dict.fromkeys(members):
            if index in seen:
                yield Problem(path, f"worker {index} is in {seen[index]} too: a worker has one class")
                break
        seen |= dict.fromkeys(members, f"class {quote(each.name)}")


def _changes_in_order(run: Run) -> Iterator[Problem]:
    for number, each in enumerate(run.heterogeneity.classes):
        epochs = [change.epoch for change in each.then]
        if any(later <= earlier for earlier, later in pairwise(epochs)):
            yield Problem((*CLASSES, number, "then"), f"epochs {quote(epochs)} must increase: list each once, in order")


def _one_speed(run: Run) -> Iterator[Problem]:
    for number, each in enumerate(run.heterogeneity.classes):
        if each.seconds is not None and (each.factor > 1 or each.then):
            key = "factor" if each.factor > 1 else "then"
            what = f"{key} states the speed of this class too: leave one of them out"
            yield Problem((*CLASSES, number, "seconds"), what, ((*CLASSES, number, key),))


CHECKS: tuple[Callable[[Run], Iterator[Problem]], ...] = (
    _names_differ,
    _members_are_workers,
    _changes_in_order,
    _one_speed,
    _slow_workers_exist,
    _delays_have_a_range,
    _measured_costs_have_records,
    _simulated_roles_have_one_host_each,
)
