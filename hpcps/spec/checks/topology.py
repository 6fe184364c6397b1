"""Checks of roles, of the rule, and of the attack: its schedule, its attackers, and what it delays."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hpcps.attacks import Late, NoAttack, Omniscient, attacker_count
from hpcps.errors import SpecError
from hpcps.registry.failures import errors_of
from hpcps.rules import Rule
from hpcps.rules.context import DEFAULT
from hpcps.rules.coordinate_wise import EXCLUSIVE, Trimming
from hpcps.spec.problems import BUFFER, EXCHANGE, MODE, SERVERS, VALIDATORS, WORKERS, Problem
from hpcps.spec.schema import Run


def _topology_is_whole(run: Run) -> Iterator[Problem]:
    """Training needs servers and workers, or one validator without both."""
    topology = run.topology
    if run.collective:
        return
    alone = "for the single-process baseline set servers = 0, validators = 1 and workers = 0"
    if topology.alone and topology.validators != 1:
        yield Problem(VALIDATORS, f"{alone}; there are {topology.validators} validators", (SERVERS, WORKERS))
    elif topology.servers == 0 and topology.workers:
        what = f"the workers need a server that keeps the model: use 1 or more; {alone}"
        yield Problem(SERVERS, what, (WORKERS, EXCHANGE))
    elif topology.workers == 0 and topology.servers:
        yield Problem(WORKERS, f"without workers there is no update to combine: use 1 or more; {alone}", (SERVERS,))


def _keys_of_the_rule_agree(run: Run) -> Iterator[Problem]:
    rule = run.validation.rule
    if isinstance(rule, Rule) and (reason := rule.obstacle()):
        yield Problem(("validation", "rule"), f"{rule.kind} {reason}")
    if isinstance(rule, Rule) and (reason := rule.contradiction()):
        yield Problem(("validation", "rule", "skipped"), reason)
    if isinstance(rule, Trimming) and rule.f is not None and "trim" in rule.model_fields_set and rule.trim == DEFAULT:
        yield Problem(("validation", "rule", "f"), EXCLUSIVE)


def _rule_can_combine(run: Run) -> Iterator[Problem]:
    """Combiners differ by at most one worker; the rule must be able to combine the updates of all of them."""
    topology = run.topology
    combiners = max(topology.validators, 1)
    for members in run.combined_at_once:
        count = run.updates_needed(members)
        whose = f"of each of the {combiners} validators" if combiners > 1 else "of the combiner"
        if topology.workers % combiners:
            whose = f"of some of the {combiners} validators"
        try:
            with errors_of(run.validation.rule, f"its unable({count}) failed"):
                rule = run.validation.rule
                reason = rule.refusal(count) if isinstance(rule, Rule) else ""
        except SpecError as error:
            yield Problem(("validation", "rule"), str(error))
            return
        if reason and run.buffered:
            message = f"{reason}, which are those of the buffer: use a larger one, or another rule or f"
            yield Problem(("validation", "rule"), message, (("validation", "rule", "f"), BUFFER))
            return
        if reason:
            yield Problem(
                ("validation", "rule"),
                f"{reason}, which are the {'updates' if count == members else 'fewest updates'} {whose} in a round: "
                f"use more workers, or another rule or f{'' if count == members else ', or a higher train.quorum'}",
                (("validation", "rule", "f"), WORKERS, VALIDATORS, *([("train", "quorum")] if count < members else [])),
            )
            return


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
            f"places validator i on server i's host, but there are {topology.validators} validators and only "
            f"{topology.servers} server{'s' * (topology.servers > 1)}: use as many servers, or set it to false",
            (VALIDATORS, SERVERS),
        )


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
    _topology_is_whole,
    _keys_of_the_rule_agree,
    _rule_can_combine,
    _validators_have_workers,
    _validators_have_server_hosts,
    _schedule_is_of_the_run,
    _nobody_waits_too_long,
    _grace_is_short,
    _attackers_exist,
    _attack_has_honest_workers,
)
