"""Checks of the classes of workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

from hpcps.spec.checks.paths import WORKERS
from hpcps.spec.problems import Problem, quote
from hpcps.spec.schema import Run
from hpcps.spec.simulation import NoSimulation

CLASSES = ("heterogeneity", "classes")


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


def _time_passes(run: Run) -> Iterator[Problem]:
    if run.topology.alone or not run.transport.in_process or not isinstance(run.simulation, NoSimulation):
        return
    for number, each in enumerate(run.heterogeneity.classes):
        key = "factor" if each.factor > 1 else "then"
        if each.factor > 1 or each.then:
            yield Problem(
                (*CLASSES, number, key),
                "in one process computation takes no time, so it cannot be slowed down: add a [simulation], or use "
                'transport.kind = "mpi" or heterogeneity.delay',
                (("transport", "kind"), ("simulation",)),
            )


CHECKS: tuple[Callable[[Run], Iterator[Problem]], ...] = (
    _names_differ,
    _members_are_workers,
    _changes_in_order,
    _one_speed,
    _time_passes,
)
