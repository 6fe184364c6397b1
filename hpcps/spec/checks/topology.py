"""Checks of roles, of the rule and of the attack."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hpcps.attacks import NoAttack, Omniscient, attacker_count
from hpcps.errors import SpecError
from hpcps.registry import active
from hpcps.registry.failures import errors_of
from hpcps.rules import Rule
from hpcps.rules.coordinate_wise import EXCLUSIVE, Trimming
from hpcps.rules.share import DEFAULT
from hpcps.spec.checks.paths import EXCHANGE, MODE, SERVERS, VALIDATORS, WORKERS
from hpcps.spec.problems import Problem, quote
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


def _rule_is_for_the_mode(run: Run) -> Iterator[Problem]:
    rule, mode = run.validation.rule, run.train.mode
    if rule.mode != mode:
        able = ", ".join(name for name, other in active().of("rules").usable().items() if other.mode == mode)
        yield Problem(
            ("validation", "rule"),
            f"{rule.kind} is for train.mode = {quote(rule.mode)}, but the mode is {quote(mode)}: use one of {able}",
            (MODE,),
        )


def _asynchronous_keys_act(run: Run) -> Iterator[Problem]:
    if run.train.mode == "sync" and "asynchronous" in run.model_fields_set:
        message = 'has an effect only with train.mode = "async": set that, or leave it out'
        yield Problem(("asynchronous",), message, (MODE,))


def _rule_needs_validator(run: Run) -> Iterator[Problem]:
    rule = run.validation.rule
    reasons = {"reference": "compares updates with a validator's own", "loss": "measures losses on a validator's data"}
    found = [reason for need, reason in reasons.items() if need in rule.requires]
    if found and run.topology.validators == 0:
        yield Problem(
            ("validation", "rule"),
            f"{rule.kind} {' and '.join(found)}, but topology.validators = 0: "
            "use a validator, or a rule that does not need one",
            (VALIDATORS,),
        )


def _rule_sees_enough(run: Run) -> Iterator[Problem]:
    rule, topology = run.validation.rule, run.topology
    if rule.scope == "vector" and topology.validators == 0 and topology.servers > 1:
        yield Problem(
            ("validation", "rule"),
            f"{rule.title} sees whole updates, but with topology.validators = 0 each of the {topology.servers} "
            "servers gets only a part of them: use a validator, or one server",
            (VALIDATORS, SERVERS),
        )


def _keys_of_the_rule_agree(run: Run) -> Iterator[Problem]:
    rule = run.validation.rule
    if isinstance(rule, Rule) and (reason := rule.contradiction()):
        yield Problem(("validation", "rule", "skipped"), reason)
    if isinstance(rule, Trimming) and rule.f is not None and "trim" in rule.model_fields_set and rule.trim == DEFAULT:
        yield Problem(("validation", "rule", "f"), EXCLUSIVE)


def _rule_can_combine(run: Run) -> Iterator[Problem]:
    """Combiners differ by at most one worker; the rule must be able to combine the updates of all of them."""
    topology = run.topology
    combiners = max(topology.validators, 1)
    for count in sorted({topology.workers // combiners, -(-topology.workers // combiners)} - {0}):
        whose = f"of each of the {combiners} validators" if combiners > 1 else "of the combiner"
        if topology.workers % combiners:
            whose = f"of some of the {combiners} validators"
        try:
            with errors_of(run.validation.rule, f"its unable({count}) failed"):
                reason = run.validation.rule.reason_against(count)
        except SpecError as error:
            yield Problem(("validation", "rule"), str(error))
            return
        if reason:
            yield Problem(
                ("validation", "rule"),
                f"{reason}, which are the updates {whose} in a round: use more workers, or another rule or f",
                (("validation", "rule", "f"), WORKERS, VALIDATORS),
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


def _attack_can_apply_the_rule(run: Run) -> Iterator[Problem]:
    attack, rule = run.attack, run.validation.rule
    if "rule" not in attack.needs or rule.mode != run.train.mode:
        return
    secret = {"reference": "a validator's own update", "loss": "losses on a validator's data"}
    found = [what for need, what in secret.items() if need in rule.requires]
    path, involved = ("attack", "kind"), (("validation", "rule"), MODE)
    if run.train.mode == "async":
        message = "tries the rule on several updates, but an asynchronous rule decides on one at a time"
        yield Problem(path, f'{attack.kind} {message}: use train.mode = "sync", or another attack', involved)
    elif found:
        message = f"{attack.kind} tries the rule, but {rule.title} needs {' and '.join(found)}"
        yield Problem(path, f"{message}, which an attacker cannot know: use another attack or rule", involved)
    elif isinstance(rule, Rule) and rule.skipped == "left_out":
        message = f"{attack.kind} tries the rule on whole updates, so blocks cannot be left out"
        yield Problem(path, f'{message}: use skipped = "zero", or another attack', (("validation", "rule", "skipped"),))


CHECKS: tuple[Callable[[Run], Iterator[Problem]], ...] = (
    _topology_is_whole,
    _rule_is_for_the_mode,
    _asynchronous_keys_act,
    _rule_needs_validator,
    _rule_sees_enough,
    _keys_of_the_rule_agree,
    _rule_can_combine,
    _validators_have_workers,
    _validators_have_server_hosts,
    _attackers_exist,
    _attack_has_honest_workers,
    _attack_can_apply_the_rule,
)
