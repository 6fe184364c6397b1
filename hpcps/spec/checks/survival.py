"""What `[survive]` and simulated failures need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcps.compression import Compressor
from hpcps.registry import active
from hpcps.rules.coordinate_wise import Average
from hpcps.spec.checks.need import BATCHNORM, QUORUM, RULE, Need
from hpcps.spec.problems import SERVERS, VALIDATORS, WORKERS, quote
from hpcps.spec.schema import Run
from hpcps.spec.simulation import NoSimulation


def survival_needs(run: Run) -> Iterator[Need]:
    """Yield the needs of both tables."""
    failures = () if isinstance(run.simulation, NoSimulation) else run.simulation.failures
    for number, failure in enumerate(failures):
        path = ("simulation", "failures", number)
        message = "a lost worker ends the run: set survive.workers = true, or leave it out"
        yield Need(path, "survivors", message)
        if not failure.at and failure.every is None:
            yield Need(path, "", "has no times: set at, or every", (path,))
        role, _, index = failure.process.partition("-")
        workers, validators, servers = run.topology.workers, run.topology.validators, run.topology.servers
        evaluators = run.topology.evaluators, ("topology", "evaluators")
        counts = {"worker": (workers, WORKERS), "validator": (validators, VALIDATORS), "evaluator": evaluators}
        count, key = counts.get(role, (servers, SERVERS))
        if role in ("server", "standby"):
            message = "a lost server ends the run: set survive.servers = true, or leave it out"
            yield Need((*path, "process"), "surviving servers", message)
        elif role == "validator" or (role == "evaluator" and validators):
            message = f"a lost {role} ends the run: set survive.validators = true, or leave it out"
            yield Need((*path, "process"), "surviving validators", message)
            yield Need((*path, "process"), "validators", "there is no validator: use one, or leave it out")
        if role == "evaluator" and not count:
            yield Need((*path, "process"), "", "there is no evaluator: use one, or leave it out", (key,))
        if index and int(index) >= count > 0:
            message = f"there is no {failure.process}: use {role}-0 to {role}-{count - 1}"
            yield Need((*path, "process"), "", message, (key,))
    yield from _survive_validators(run)
    if run.survive.servers:
        yield Need(("survive", "servers"), "survivors", "needs workers = true, too: set that, or leave it out")
    least = run.survive.min_workers
    if not run.survive.workers:
        if least is not None:
            message = "has an effect only with workers = true: set that, or leave it out"
            yield Need(("survive", "min_workers"), "survivors", message)
        for name in sorted(run.survive.model_fields_set & {"after", "spares", "residual", "batch", "wait"}):
            message = "has an effect only with workers = true: set that, or leave it out"
            yield Need(("survive", name), "survivors", message)
        return
    if least is not None:
        message = "in an asynchronous run nobody waits for a number of workers: leave it out"
        yield Need(("survive", "min_workers"), "rounds", message)
    if (wait := run.survive.wait) is not None:
        message = "in an asynchronous run nobody waits for a number of workers: leave it out"
        yield Need(("survive", "wait"), "rounds", message)
        message = "only `hpcps run` over processes stops a run that waits: leave it out"
        yield Need(("survive", "wait"), "processes", message)
        longest = run.transport.timeout / 2
        if wait > longest:
            message = f"processes that wait for longer than transport.timeout fail: use at most {longest:g}, half of it"
            yield Need(("survive", "wait"), "", message, (("transport", "timeout"),))
    if least is not None and run.shares and least > min(run.shares):
        message = f"a combiner has {min(run.shares)} workers: use at most that many"
        yield Need(("survive", "min_workers"), "", message, (WORKERS, VALIDATORS))
    survivor, compressor = ("survive", "workers"), run.communication.compression
    able = [name for name, other in active().of("transports").usable().items() if "replacements" in other.offers]
    message = f"over it a run does not survive the loss of a worker: use one of {', '.join(able)}, or leave it out"
    yield Need(survivor, "replacements", message)
    if "after" in run.survive.model_fields_set:
        message = "a process is silent only where roles are processes: leave it out; simulation.failures has noticed"
        yield Need(("survive", "after"), "processes", message)
    yield from _spares(run.survive.spares)
    if run.survive.residual == "checkpoint" and not (run.checkpoint.every or run.checkpoint.rounds):
        message = "no checkpoint is written while the run goes on: set checkpoint.every or checkpoint.rounds, or leave "
        keys = ("checkpoint", "every"), ("checkpoint", "rounds")
        yield Need(("survive", "residual"), "", f"{message}it out", keys)
    yield from _shared_batches(run)
    if "replacements" in run.transport.offers and not run.transport.replaces:
        message = "acknowledgements are for connections that break, and a lost process has none: leave out one of both"
        yield Need(survivor, "", message, (("transport", "resend"),))
    yield Need(survivor, "workers", "the single-process baseline has none: leave it out")
    if run.train.mode == "async":
        message = "a lost worker may have sent its update to some servers only: use a validator, or one server"
        yield Need(survivor, "whole updates", message)
    message = f"with train.exchange = {quote(run.train.exchange)} every update passes through every worker"
    yield Need(survivor, "servers", f'{message}: leave it out, or use exchange = "servers"')
    message = "decides on the local steps of all workers together: use a number of local steps"
    yield Need(survivor, "rounds of fixed steps", f"{run.train.policy.kind if run.train.policy else ''} {message}")
    yield Need(survivor, "own attacks", f"{run.attack.kind} needs the updates of all workers: use another attack")
    if run.validation.batchnorm == "averaged":
        message = 'the statistics of all workers are averaged: use validation.batchnorm = "reestimated"'
        yield Need(survivor, "", message, (BATCHNORM,))
    if run.validation.batchnorm == "validator" and run.survives_coordinator:
        message = 'the replacement of who evaluates has no such statistics: use validation.batchnorm = "reestimated"'
        yield Need(survivor, "", message, (BATCHNORM,))
    if isinstance(compressor, Compressor) and compressor.memory == "ef21":
        message = "combiners keep an estimate of each worker, which its replacement does not know: use another memory"
        yield Need(survivor, "", message, (("communication", "compression", "memory"),))


def _spares(spares: Sequence[str]) -> Iterator[Need]:
    path = ("survive", "spares")
    if spares:
        yield Need(path, "processes", "only processes have hosts, which may be gone: leave it out")
    if "localhost" in spares:
        yield Need(path, "", "localhost is this machine, which runs hpcps: name other hosts", (path,))
    if twice := sorted({host for host in spares if spares.count(host) > 1}):
        yield Need(path, "", f"has {twice[0]} twice: name each host once", (path,))


def _shared_batches(run: Run) -> Iterator[Need]:
    """The samples of a round are counted, so it must be known who is in, and each sample must count alike."""
    if not run.shares_batches:
        return
    path, rule = ("survive", "batch"), run.validation.rule
    message = 'in an asynchronous run there are no rounds whose samples others could take: use batch = "own"'
    yield Need(path, "rounds", message)
    if run.has_quorum:
        message = 'with a quorum late workers are in no round either, and their samples come later: use batch = "own"'
        yield Need(path, "", message, (QUORUM,))
    if run.train.mode == "sync" and not isinstance(rule, Average):
        message = f'{rule.kind} is no mean, in which the samples of a round would count alike: use batch = "own", or '
        yield Need(path, "", f"{message}the rule average", (RULE,))
    if run.validation.weights == "steps":
        message = 'combiners do not count the samples that a worker takes for others: use batch = "own", or leave out '
        yield Need(path, "", f'{message}weights = "steps"', (("validation", "weights"),))


def _survive_validators(run: Run) -> Iterator[Need]:
    if not run.survive.validators:
        return
    path = ("survive", "validators")
    yield Need(path, "survivors", "needs workers = true, too: set that, or leave it out")
    yield Need(path, "validators", "there are none: use a validator, or leave it out")
