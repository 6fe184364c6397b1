"""Who is in a run: roles and hosts, and whether each has something to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import get_args

from hpcps.attacks import NoAttack, attackers
from hpcps.rules import AnyAsyncRule, AnySyncRule
from hpcps.spec.checks.paths import MODE, SERVERS, VALIDATORS, WORKERS
from hpcps.spec.problems import Problem, quote
from hpcps.spec.schema import Run

RULES = {"sync": AnySyncRule, "async": AnyAsyncRule}


def _topology_is_whole(run: Run) -> Iterator[Problem]:
    """Training needs servers and workers, or neither and one validator."""
    topology = run.topology
    alone = "for one process that trains alone set servers = 0, validators = 1 and workers = 0"
    if topology.alone and topology.validators != 1:
        yield Problem(VALIDATORS, f"{alone}; this has {topology.validators} validators", (SERVERS, WORKERS))
    elif topology.servers == 0 and topology.workers:
        yield Problem(SERVERS, f"somebody has to keep the model for the workers: use 1 or more; {alone}", (WORKERS,))
    elif topology.workers == 0 and topology.servers:
        yield Problem(WORKERS, f"without workers there is no update to combine: use 1 or more; {alone}", (SERVERS,))


def _rule_is_for_the_mode(run: Run) -> Iterator[Problem]:
    rule, mode = run.validation.rule, run.train.mode
    if rule.mode != mode:
        able = ", ".join(kind.model_fields["kind"].default for kind in get_args(RULES[mode]))
        yield Problem(
            ("validation", "rule"),
            f"{rule.kind} is for train.mode = {quote(rule.mode)}, and this is {quote(mode)}: take one of {able}",
            (MODE,),
        )


def _asynchronous_keys_act(run: Run) -> Iterator[Problem]:
    if run.train.mode == "sync" and "asynchronous" in run.model_fields_set:
        yield Problem(("asynchronous",), 'acts only with train.mode = "async": set that, or leave it out', (MODE,))


def _rule_needs_validator(run: Run) -> Iterator[Problem]:
    rule = run.validation.rule
    if rule.scores and run.topology.validators == 0:
        yield Problem(
            ("validation", "rule"),
            f"{rule.kind} compares updates with a validator's own, and topology.validators = 0: "
            "have a validator, or take a rule that needs none",
            (VALIDATORS,),
        )


def _validators_have_workers(run: Run) -> Iterator[Problem]:
    validators, workers = run.topology.validators, run.topology.workers
    if validators > workers > 0:
        yield Problem(
            VALIDATORS,
            f"{validators} validators share {workers} workers: some would have none; use at most {workers}",
            (WORKERS,),
        )


def _validators_have_server_hosts(run: Run) -> Iterator[Problem]:
    topology = run.topology
    if topology.colocate_validators and topology.validators > topology.servers > 0:
        yield Problem(
            ("topology", "colocate_validators"),
            f"validator i goes to server i's host, but there are {topology.validators} validators and only "
            f"{topology.servers} server{'s' * (topology.servers > 1)}: use as many servers, or false",
            (VALIDATORS, SERVERS),
        )


def _attackers_exist(run: Run) -> Iterator[Problem]:
    attack, workers = run.attack, run.topology.workers
    if isinstance(attack, NoAttack) or attack.scope != "worker" or attack.rate == 0 or workers == 0:
        return
    if not attackers(attack, workers, run.seed):
        yield Problem(
            ("attack", "rate"),
            f"{attack.rate} of {workers} workers is less than one attacker: use {1 / workers:.3g} or more, or "
            'scope = "block"',
            (WORKERS, ("attack", "scope")),
        )


CHECKS: tuple[Callable[[Run], Iterator[Problem]], ...] = (
    _topology_is_whole,
    _rule_is_for_the_mode,
    _asynchronous_keys_act,
    _rule_needs_validator,
    _validators_have_workers,
    _validators_have_server_hosts,
    _attackers_exist,
)
