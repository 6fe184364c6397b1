"""Checks of the attack: its schedule, its attackers, and what it delays."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hpcps.attacks import Late, NoAttack, Omniscient, attacker_count
from hpcps.spec.problems import MODE, WORKERS, Problem
from hpcps.spec.schema import Run


def _schedule_is_of_the_run(run: Run) -> Iterator[Problem]:
    attack, epochs = run.attack, run.train.epochs
    if isinstance(attack, NoAttack):
        return
    if attack.on > attack.every:
        yield Problem(
            ("attack", "on"),
            f"the attack acts in {attack.on} rounds of each period of {attack.every}: use at most attack.every",
            (("attack", "every"),),
        )
    if attack.from_epoch >= epochs:
        yield Problem(
            ("attack", "from_epoch"),
            f"the run ends after {epochs} epoch{'s' * (epochs > 1)}, so the attack never acts: use at most "
            f"{epochs - 1}, or more epochs",
            (("train", "epochs"),),
        )


def _nobody_waits_too_long(run: Run) -> Iterator[Problem]:
    attack, timeout = run.attack, run.transport.timeout
    real = not run.transport.in_process
    if isinstance(attack, Late) and real and run.train.mode == "sync" and attack.seconds >= timeout:
        yield Problem(
            ("attack", "seconds"),
            f"{attack.seconds} s is not below transport.timeout = {timeout} s, after which the others give up: "
            "use less, or a longer timeout",
            (("transport", "timeout"), MODE),
        )


def _grace_is_short(run: Run) -> Iterator[Problem]:
    grace, timeout = run.train.grace, run.transport.timeout
    if not run.transport.in_process and grace >= timeout:
        yield Problem(
            ("train", "grace"),
            f"{grace:g} s is not below transport.timeout = {timeout} s, after which the others give up: use less, or a "
            "longer timeout",
            (("transport", "timeout"),),
        )


def _attackers_exist(run: Run) -> Iterator[Problem]:
    attack, workers = run.attack, run.topology.workers
    if isinstance(attack, NoAttack) or attack.scope != "worker" or attack.rate == 0 or workers == 0:
        return
    if attacker_count(attack, workers) == 0:
        yield Problem(
            ("attack", "rate"),
            f"{attack.rate} of {workers} workers is less than one attacker: use {1 / workers:.3g} or more"
            + ("" if attack.omniscient else ', or scope = "block"'),
            (WORKERS, ("attack", "scope")),
        )


def _attack_has_honest_workers(run: Run) -> Iterator[Problem]:
    attack, workers = run.attack, run.topology.workers
    if isinstance(attack, Omniscient) and workers and attacker_count(attack, workers) == workers:
        yield Problem(
            ("attack", "rate"),
            f"all {workers} workers are attackers, so {attack.kind} has no honest update that it could use: use less",
            (WORKERS,),
        )


CHECKS: tuple[Callable[[Run], Iterator[Problem]], ...] = (
    _schedule_is_of_the_run,
    _nobody_waits_too_long,
    _grace_is_short,
    _attackers_exist,
    _attack_has_honest_workers,
)
