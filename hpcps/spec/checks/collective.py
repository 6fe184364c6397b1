"""Checks of the exchanges without servers: a ring of the workers, and Allreduce."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hpcps.attacks import Infinite, Nan
from hpcps.registry import active
from hpcps.rules.coordinate_wise import Average, Mean
from hpcps.spec.checks.paths import EXCHANGE, MODE, SERVERS, VALIDATORS, WORKERS
from hpcps.spec.problems import Problem, quote
from hpcps.spec.schema import Run
from hpcps.spec.simulation import Measured, Modelled


def _only_workers(run: Run) -> Iterator[Problem]:
    """The workers do what servers and validators do otherwise."""
    topology = run.topology
    if not run.collective:
        return
    exchange = f"train.exchange = {quote(run.train.exchange)}"
    for path, count in ((SERVERS, topology.servers), (VALIDATORS, topology.validators)):
        if count:
            yield Problem(path, f"with {exchange} the workers average their updates themselves: use 0", (EXCHANGE,))
    if topology.workers == 0:
        yield Problem(WORKERS, f"{exchange} averages the updates of workers: use 1 or more", (EXCHANGE,))
    if topology.colocate_validators:
        path = ("topology", "colocate_validators")
        yield Problem(path, f"with {exchange} there are no validators: leave it out", (EXCHANGE,))


def _only_the_mean(run: Run) -> Iterator[Problem]:
    """Nobody has the updates of all workers, so no rule can look at them."""
    rule, train = run.validation.rule, run.train
    if not run.collective:
        return
    if train.mode != "sync":
        message = f'{quote(train.exchange)} is for train.mode = "sync": use that, or exchange = "servers"'
        yield Problem(EXCHANGE, message, (MODE,))
        return
    path, mean = ("validation", "rule"), f"train.exchange = {quote(train.exchange)} computes a mean"
    if not isinstance(rule, Average) or type(rule) not in (Average, Mean):
        yield Problem(path, f'{mean}, not {rule.kind}: use average, or exchange = "servers"', (EXCHANGE,))
    elif rule.before:
        yield Problem((*path, "before"), f"{mean} of the updates as they are: leave it out", (EXCHANGE,))
    elif rule.skipped != "zero":
        message = f'{mean}, in which a skipped block is zero: use skipped = "zero"'
        yield Problem((*path, "skipped"), message, (EXCHANGE,))


def _attack_reaches_the_mean(run: Run) -> Iterator[Problem]:
    attack, path = run.attack, ("attack", "kind")
    if not run.collective:
        return
    how = f"with train.exchange = {quote(run.train.exchange)}"
    if attack.omniscient:
        message = f"{how} no process sees the updates that {attack.kind} needs: use another attack"
        yield Problem(path, message, (EXCHANGE,))
    elif isinstance(attack, (Nan, Infinite)):
        message = f"{how} each worker screens its own update, so {attack.kind} would do nothing: use another attack"
        yield Problem(path, message, (EXCHANGE,))


def _transport_can_reduce(run: Run) -> Iterator[Problem]:
    transport, involved = run.transport, (EXCHANGE,)
    if run.train.exchange != "allreduce":
        return
    if "allreduce" not in transport.offers:
        able = [name for name, other in active().of("transports").usable().items() if "allreduce" in other.offers]
        message = f'has no Allreduce: use kind = {" or ".join(map(quote, able))}, or train.exchange = "ring"'
        yield Problem(("transport", "kind"), message, involved)
    if transport.partition != "auto":
        yield Problem(("transport", "partition"), "Allreduce divides the vector itself: leave it out", involved)
    if "shared_memory" in transport.offers and not transport.reads_in_place:
        yield Problem(("transport", "shared_memory"), "MPI decides how Allreduce sends: leave it out", involved)
    if isinstance(run.simulation, (Modelled, Measured)):
        message = 'has no model of the time of Allreduce: leave it out, or use train.exchange = "ring"'
        yield Problem(("simulation",), message, involved)


def _rounds_are_alike(run: Run) -> Iterator[Problem]:
    """Server 0 answers the queries of a policy, and servers apply the factor."""
    if not run.collective:
        return
    how = f"with train.exchange = {quote(run.train.exchange)}"
    if run.train.policy:
        yield Problem(("train", "local_steps"), f"{how} no server decides on steps: use a number", (EXCHANGE,))
    if run.train.global_lr != 1:
        yield Problem(("train", "global_lr"), f"{how} the mean is added as it is: leave it out", (EXCHANGE,))


def _costs_are_known(run: Run) -> Iterator[Problem]:
    if run.train.exchange == "ring" and isinstance(run.simulation, Measured):
        message = 'fits the costs of servers, not of train.exchange = "ring": use "modelled"'
        yield Problem(("simulation", "kind"), message, (EXCHANGE,))


CHECKS: tuple[Callable[[Run], Iterator[Problem]], ...] = (
    _only_workers,
    _only_the_mean,
    _attack_reaches_the_mean,
    _transport_can_reduce,
    _costs_are_known,
    _rounds_are_alike,
)
