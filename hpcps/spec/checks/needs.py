"""The needs of keys and components, compared with what the run offers: the check of most combinations of keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hpcps.attacks import ClockAttack, Infinite, Nan
from hpcps.compression import Compressor
from hpcps.optimizers import NoOptimizer
from hpcps.registry import active
from hpcps.rules import AsyncRule, FoolsGold, Rule
from hpcps.rules.coordinate_wise import Average, Mean
from hpcps.spec.checks.need import ATTACK, BATCHNORM, GLOBAL_LR, KIND, OPTIMIZER, QUORUM, RULE, STEPS, Need
from hpcps.spec.checks.survival import survival_needs
from hpcps.spec.device_buffers import obstacle
from hpcps.spec.locate import Path
from hpcps.spec.problems import BUFFER, EXCHANGE, MODE, SERVERS, VALIDATORS, WORKERS, Problem, quote
from hpcps.spec.schema import Run
from hpcps.spec.simulation import Measured, Modelled, NoSimulation


def offers(run: Run) -> dict[str, tuple[bool, tuple[Path, ...]]]:
    """Return whether a run offers each thing that a key may need, and the keys that decide it."""
    topology, offered = run.topology, run.transport.offers
    hindrance = obstacle(run)
    in_process, simulated = run.transport.in_process, not isinstance(run.simulation, NoSimulation)
    return {
        "a clock": (not in_process or simulated, (KIND, ("simulation",))),
        "allreduce": ("allreduce" in offered, (EXCHANGE,)),
        "a CPU": (run.train.device == "cpu", (("train", "device"),)),
        "asynchrony": (run.train.mode == "async", (MODE,)),
        "buffers on devices": (hindrance is None, (hindrance[0],) if hindrance else ()),
        "GPUs": (run.train.device != "cpu", (("train", "device"),)),
        "messages": (not topology.alone, (SERVERS, WORKERS)),
        "late steps": (run.train.policy is not None or run.train.steps_per_round > 1, (STEPS,)),
        "late workers": (run.has_quorum, (QUORUM, WORKERS, VALIDATORS)),
        "one process": (in_process, (KIND,)),
        "own attacks": (not run.has_adversary, (ATTACK,)),
        "partitions": (run.train.exchange != "allreduce", (EXCHANGE,)),
        "policy": (run.train.policy is not None, (STEPS,)),
        "processes": (not in_process, (KIND,)),
        "replacements": ("replacements" in offered, (KIND,)),
        "rounds": (run.train.mode == "sync", (MODE,)),
        "rounds of fixed steps": (run.train.policy is None, (STEPS,)),
        "survivors": (run.survive.workers, (("survive", "workers"),)),
        "surviving servers": (run.survive.servers, (("survive", "servers"),)),
        "surviving validators": (run.survive.validators, (("survive", "validators"),)),
        "servers": (not run.collective, (EXCHANGE,)),
        "the global model": (run.validation.evaluate == "global_model", (("validation", "evaluate"),)),
        "validators": (topology.validators > 0, (VALIDATORS,)),
        "whole updates": (topology.validators > 0 or topology.servers <= 1, (VALIDATORS, SERVERS)),
        "workers": (topology.workers > 0, (WORKERS,)),
    }


def unmet(run: Run) -> Iterator[Problem]:
    """Yield the needs that the run does not meet; of several of one key, the first."""
    offered, seen = offers(run), set()
    for declare in (
        _exchange,
        _transport,
        _policy,
        _quorum,
        survival_needs,
        _buffer,
        _audit,
        _rule,
        _weights,
        _attack,
        _optimizer,
        _compression,
        _gradients,
        _evaluation,
        _simulation,
    ):
        for need in declare(run):
            there, keys = offered[need.what] if need.what else (False, ())
            if not there and need.path not in seen:
                seen.add(need.path)
                yield Problem(need.path, need.message, need.involves or keys)


def _exchange(run: Run) -> Iterator[Need]:
    """With `ring` and `allreduce` the workers do what servers and validators do otherwise, and combine by a mean."""
    train, topology, rule = run.train, run.topology, run.validation.rule
    exchange = f"train.exchange = {quote(train.exchange)}"
    for path, count in ((SERVERS, topology.servers), (VALIDATORS, topology.validators)):
        if count:
            yield Need(path, "servers", f"with {exchange} the workers average their updates themselves: use 0")
    if topology.colocate_validators:
        path = ("topology", "colocate_validators")
        yield Need(path, "servers", f"with {exchange} there are no validators: leave it out")
    if train.policy:
        yield Need(STEPS, "servers", f"with {exchange} no server decides on steps: use a number")
    if train.global_lr != 1:
        yield Need(GLOBAL_LR, "servers", f"with {exchange} the mean is added as it is: leave it out")
    if run.collective:
        yield Need(WORKERS, "workers", f"{exchange} averages the updates of workers: use 1 or more", (EXCHANGE,))
        message = f'{quote(train.exchange)} is for train.mode = "sync": use that, or exchange = "servers"'
        yield Need(EXCHANGE, "rounds", message)
    if train.mode == "async":
        return
    mean = f"{exchange} computes a mean"
    if not isinstance(rule, Average) or type(rule) not in (Average, Mean):
        yield Need(RULE, "servers", f'{mean}, not {rule.kind}: use average, or exchange = "servers"')
    elif rule.before:
        yield Need((*RULE, "before"), "servers", f"{mean} of the updates as they are: leave it out")
    elif rule.skipped != "zero":
        message = f'{mean}, in which a skipped block is zero: use skipped = "zero"'
        yield Need((*RULE, "skipped"), "servers", message)


def _transport(run: Run) -> Iterator[Need]:
    transport = run.transport
    if run.train.exchange == "allreduce":
        able = [name for name, other in active().of("transports").usable().items() if "allreduce" in other.offers]
        message = f'has no Allreduce: use kind = {" or ".join(map(quote, able))}, or train.exchange = "ring"'
        yield Need(KIND, "allreduce", message)
    if transport.partition != "auto":
        path = ("transport", "partition")
        yield Need(path, "partitions", "Allreduce divides the vector itself: leave it out")
        yield Need(path, "rounds", "only synchronous training uses partitions: leave it out")
        yield Need(path, "messages", "the single-process baseline sends no messages: leave it out")
    if "shared_memory" in transport.offers and not transport.reads_in_place:
        path = ("transport", "shared_memory")
        yield Need(path, "partitions", "MPI decides how Allreduce sends: leave it out")
    if "device_memory" in transport.offers and transport.buffers != "auto" and (found := obstacle(run)):
        message = "has an effect only on training with servers over MPI, with torch on a GPU"
        message = f"{message}, but {'.'.join(found[0])} = {found[1]}: leave it out"
        yield Need(("transport", "device_buffers"), "buffers on devices", message)
    if run.train.mps == "off":
        yield Need(("train", "mps"), "GPUs", "has no effect without a GPU: leave it out")
        yield Need(("train", "mps"), "processes", "has no effect in one process: leave it out")
    slowed = 'it cannot be slowed down: add a [simulation], or use transport.kind = "mpi" or heterogeneity.delay'
    message = f"in one process computation takes no time, so {slowed}"
    if run.heterogeneity.slow.workers and run.topology.workers:
        yield Need(("heterogeneity", "slow"), "a clock", message)
    for number, each in enumerate(run.heterogeneity.classes if not run.topology.alone else ()):
        if each.factor > 1 or each.then:
            key = "factor" if each.factor > 1 else "then"
            yield Need(("heterogeneity", "classes", number, key), "a clock", message)


def _policy(run: Run) -> Iterator[Need]:
    policy = run.train.policy
    if policy:
        message = "the single-process baseline has nobody to wait for: use a number of steps"
        yield Need(STEPS, "messages", message)
        message = f'{policy.kind} fits local steps into a round, and only train.mode = "sync" has rounds: use a number'
        yield Need(STEPS, "rounds", message)
        why = f"in one process computation takes no time, so {policy.kind} knows no speeds"
        yield Need(STEPS, "a clock", f'{why}: add a [simulation], or use transport.kind = "mpi"')
    if run.train.global_lr != 1:
        message = "the single-process baseline combines no updates: leave it out"
        yield Need(GLOBAL_LR, "messages", message)
        message = f"only synchronous training uses it: use asynchronous.alpha = {quote(run.train.global_lr)}"
        yield Need(GLOBAL_LR, "rounds", message)
    if "asynchronous" in run.model_fields_set:
        message = 'has an effect only with train.mode = "async": set that, or leave it out'
        yield Need(("asynchronous",), "asynchrony", message)


def _quorum(run: Run) -> Iterator[Need]:
    train, workers = run.train, run.topology.workers
    for key in ("grace", "late", "abandon", "abandoned") if train.quorum is None else ():
        if key in train.model_fields_set:
            message = "has an effect only with train.quorum: set that, or leave it out"
            yield Need(("train", key), "late workers", message)
    if train.quorum is None:
        return
    yield Need(QUORUM, "messages", "the single-process baseline waits for nobody: leave it out")
    yield Need(QUORUM, "rounds", 'with train.mode = "async" no worker waits for others anyway: leave it out')
    message = f"with train.exchange = {quote(train.exchange)} every update passes through every worker, so all are "
    yield Need(QUORUM, "servers", f'{message}waited for: leave it out, or use exchange = "servers"')
    message = "fits local steps into a round so that all workers end it together, so nobody is late: use a number of "
    yield Need(QUORUM, "rounds of fixed steps", f"{train.policy.kind if train.policy else ''} {message}local steps")
    message = f"{run.attack.kind} needs all honest updates of a round before its own, and a round with a quorum closes "
    yield Need(QUORUM, "own attacks", f"{message}without some of them: use another attack, or leave it out")
    if isinstance(train.quorum, int) and train.quorum > workers:
        yield Need(QUORUM, "", f"{train.quorum} of {workers} workers cannot answer: use at most {workers}", (WORKERS,))
    elif train.quorum != workers:
        each = " and ".join(f"{run.updates_needed(n)} of its {n}" for n in run.shares)
        message = f"a combiner rounds its part up and waits for {each} workers, so nobody is late: use less"
        yield Need(QUORUM, "late workers", message)
    if train.abandon:
        path, one = ("train", "abandon"), "a worker leaves between two local steps, and a round has one: "
        yield Need(path, "late steps", f"{one}use more local steps, or leave it out")
    elif "abandoned" in train.model_fields_set:
        message = "has an effect only with abandon = true: set that, or leave it out"
        yield Need(("train", "abandoned"), "", message, (("train", "abandon"),))


def _audit(run: Run) -> Iterator[Need]:
    """An audit repeats local steps bit by bit, so all that decides on them must be known to the validator."""
    if not run.audits:
        return
    path, repeated = ("validation", "audit", "share"), "an audit executes the local steps of a worker again"
    yield Need(path, "workers", "the single-process baseline has none: leave it out")
    message = (
        "an asynchronous worker's update depends on when messages come, and cannot be executed again: leave it out"
    )
    yield Need(path, "rounds", message)
    yield Need(path, "validators", f"{repeated}, which only a validator can do: use a validator, or leave it out")
    message = f'{repeated}, and GPUs do not repeat the bits: use train.device = "cpu", or leave it out'
    yield Need(path, "a CPU", message)
    if run.model.backend != "torch":
        message = f'{repeated}, which is known to repeat the bits with model.backend = "torch" only: leave it out'
        yield Need(path, "", message, (("model", "backend"),))
    if run.train.quorum is not None:
        message = "a late worker trains from a model that its validator has no longer: leave out train.quorum"
        yield Need(path, "", message, (QUORUM,))
    if run.survive.workers:
        message = "a replacement does not begin in the state that a lost worker committed to: leave out one of both"
        yield Need(path, "", message, (("survive", "workers"),))
    if run.train.stop_when_diverged:
        message = f"{repeated}, and with stop_when_diverged a worker may skip them: leave out one of both"
        yield Need(path, "", message, (("train", "stop_when_diverged"),))


def _rule(run: Run) -> Iterator[Need]:
    rule, mode, topology = run.validation.rule, run.train.mode, run.topology
    able = ", ".join(name for name, other in active().of("rules").usable().items() if other.mode == mode)
    if not run.buffered:
        message = f"{rule.kind} is for train.mode = {quote(rule.mode)}, but the mode is {quote(mode)}"
        yield Need(RULE, {"sync": "rounds", "async": "asynchrony"}[rule.mode], f"{message}: use one of {able}")
    reasons = {"reference": "compares updates with a validator's own", "loss": "measures losses on a validator's data"}
    if found := [reason for need, reason in reasons.items() if need in rule.requires]:
        message = f"{rule.kind} {' and '.join(found)}, but topology.validators = 0"
        yield Need(RULE, "validators", f"{message}: use a validator, or a rule that does not need one")
    if rule.scope == "vector":
        message = f"{rule.title} sees whole updates, but with topology.validators = 0 each of the {topology.servers} "
        message += "servers gets only a part of them: use a validator, or one server"
        yield Need(RULE, "whole updates", message)
    if isinstance(rule, FoolsGold) and rule.memory == "run":
        yield from _histories(run, rule)


def _histories(run: Run, rule: FoolsGold) -> Iterator[Need]:
    """The sums of foolsgold are those of workers only if the same workers are the same rows in each round."""
    mixed = any(stage.remaining(n) != n for stage in rule.before for n in run.combined_at_once)
    participation, survivor = ("communication", "participation"), ("survive", "workers")
    for there, why, key in (
        (run.has_quorum, "a round with a quorum lacks some", QUORUM),
        (run.survive.workers, "a round lacks those of lost workers", survivor),
        (run.communication.participation < 1, "workers do not take part in every round", participation),
        (run.buffered, "a buffer has those of any workers", BUFFER),
        (mixed, "the pre-aggregator before it makes other rows of them", (*RULE, "before")),
    ):
        if there:
            message = f'foolsgold adds up the updates of each worker, and {why}: use memory = "round"'
            yield Need((*RULE, "memory"), "", message, (key,))


def _buffer(run: Run) -> Iterator[Need]:
    rule, servers, settings = run.validation.rule, run.topology.servers, run.asynchronous
    if "staleness" in settings.model_fields_set and settings.buffer is None:
        message = "has an effect only with buffer: set that, or leave it out; fed_async has a key of the same name"
        yield Need(("asynchronous", "staleness"), "", message, (BUFFER,))
    if not run.buffered:
        return
    yield Need(BUFFER, "messages", "the single-process baseline combines no updates: leave it out")
    if rule.mode == "async":
        others = active().of("rules").usable().items()
        able = ", ".join(
            name for name, other in others if other.mode == "sync" and not {"reference", "loss"} & other.needs
        )
        message = f"{rule.kind} decides on one update, and asynchronous.buffer collects several: use one of {able}"
        yield Need(RULE, "", message, (BUFFER,))
    elif rule.requires & {"reference", "loss"}:
        message = f"with asynchronous.buffer the servers combine, and {rule.title} needs a validator's own data: use "
        yield Need(RULE, "", f"{message}another rule", (BUFFER,))
    elif rule.scope == "vector" and servers > 1:
        message = f"{rule.title} sees whole updates, but with asynchronous.buffer each of the {servers} servers "
        yield Need(RULE, "", f"{message}combines only a part of them: use one server", (BUFFER, SERVERS))


def _weights(run: Run) -> Iterator[Need]:
    path, weights, rule, topology = ("validation", "weights"), run.validation.weights, run.validation.rule, run.topology
    if weights == "equal":
        return
    yield Need(path, "workers", "the single-process baseline combines no updates: leave it out")
    message = f"with train.exchange = {quote(run.train.exchange)} the workers compute a plain mean: leave it out"
    yield Need(path, "servers", message)
    if reason := rule.refused_weights():
        before = isinstance(rule, Rule) and any(stage.refused_weights() for stage in rule.before)
        kind = "preaggregators" if before else "rules"
        others = [(name, other) for name, other in active().of(kind).usable().items() if other.weighted]
        able = ", ".join(name for name, other in others if getattr(other, "mode", run.rule_mode) == run.rule_mode)
        yield Need(path, "", f"{reason}: leave it out, or use one of {able}", (RULE,))
    if isinstance(weights, tuple) and len(weights) != topology.workers:
        message = f"has {len(weights)} numbers for {topology.workers} workers: use one for each worker"
        yield Need(path, "", message, (WORKERS,))
    elif isinstance(weights, tuple) and len(set(weights)) == 1:
        yield Need(path, "", "all numbers are the same, so all updates count alike: leave it out")
    elif weights == "samples" and run.data.split.equal:
        message = f"the shards of the split {run.data.split.kind} have the same size, so all updates count alike"
        yield Need(path, "", f"{message}: leave it out", (("data", "split"),))
    elif weights == "steps" and run.train.policy is None:
        if len({run.batch_size("worker", k) for k in range(topology.workers)}) == 1:
            message = "all workers take as many samples in a round, so all updates count alike: leave it out"
            yield Need(path, "", message, (STEPS, ("heterogeneity", "classes")))
    elif weights == "steps" and (topology.validators or topology.servers > 1):
        message = f"server 0 counts the steps that {run.train.policy.kind if run.train.policy else ''} allows, and no "
        message += "other process that combines updates knows them: use validators = 0 and servers = 1"
        yield Need(path, "", message, (STEPS, VALIDATORS, SERVERS))
    if run.survive.validators and run.train.mode == "sync":
        message = "a validator counts as much as its workers, and who serves a worker changes when one is lost: "
        yield Need(path, "", f"{message}leave it out", (("survive", "validators"),))
    if run.train.policy and weights == "steps" and "rule" in run.attack.needs:
        message = f"{run.attack.kind} tries the rule, and does not know the steps of the round: use another attack"
        yield Need(path, "", message, (ATTACK, STEPS))


def _attack(run: Run) -> Iterator[Need]:
    attack, rule = run.attack, run.validation.rule
    how = f"with train.exchange = {quote(run.train.exchange)}"
    if attack.omniscient:
        message = f"{how} no process sees the updates that {attack.kind} needs: use another attack"
        yield Need(ATTACK, "servers", message)
    elif isinstance(attack, (Nan, Infinite)):
        message = f"{how} each worker screens its own update, so {attack.kind} would do nothing: use another attack"
        yield Need(ATTACK, "servers", message)
    if isinstance(attack, ClockAttack) and run.train.policy is None:
        message = f"{attack.kind} reports wrong durations, but only a policy of local steps asks for durations: "
        yield Need(ATTACK, "", f'{message}use local_steps = {{ kind = "esync" }}, or another attack', (STEPS,))
    if "rule" not in attack.needs or rule.mode != run.rule_mode:
        return
    message = "tries the rule on the updates of a round, but asynchronous updates come one at a time"
    message = f'{attack.kind} {message}: use train.mode = "sync", or another attack'
    yield Need(ATTACK, "rounds", message, (RULE, MODE))
    secret = {"reference": "a validator's own update", "loss": "losses on a validator's data"}
    if found := [what for need, what in secret.items() if need in rule.requires]:
        message = f"{attack.kind} tries the rule, but {rule.title} needs {' and '.join(found)}"
        yield Need(ATTACK, "", f"{message}, which an attacker cannot know: use another attack or rule", (RULE, MODE))
    if isinstance(rule, Rule) and rule.skipped == "left_out":
        message = f"{attack.kind} tries the rule on whole updates, so blocks cannot be left out"
        yield Need(ATTACK, "", f'{message}: use skipped = "zero", or another attack', ((*RULE, "skipped"),))


def _optimizer(run: Run) -> Iterator[Need]:
    optimizer, mode = run.server.optimizer, run.train.mode
    if isinstance(optimizer, NoOptimizer):
        return
    message = f"with train.exchange = {quote(run.train.exchange)} no server keeps its state: leave it out"
    yield Need(OPTIMIZER, "servers", message)
    yield Need(OPTIMIZER, "messages", "the single-process baseline combines no updates: leave it out")
    if mode not in optimizer.modes:
        able = ", ".join(name for name, other in active().of("optimizers").usable().items() if mode in other.modes)
        message = f"{optimizer.kind} is not for train.mode = {quote(mode)}: use one of {able}"
        yield Need(OPTIMIZER, "", message, (MODE,))
    if run.train.global_lr != 1:
        message = f"the server optimizer {optimizer.kind} has a learning rate of its own: leave it out"
        yield Need(GLOBAL_LR, "", message, (OPTIMIZER,))


def _compression(run: Run) -> Iterator[Need]:
    compressor, path, acts_on = run.communication.compression, ("communication", "compression"), ("attack", "acts_on")
    memory = (*path, "memory")
    if run.attack.after_encoding and not (isinstance(compressor, Compressor) and compressor.encodes("update")):
        yield Need(acts_on, "", 'no update is encoded: set communication.compression, or acts_on = "update"', (path,))
    if not isinstance(compressor, Compressor):
        return
    if reason := compressor.obstacle():
        yield Need(path, "", f"{compressor.kind} {reason}")
    message = f"with train.exchange = {quote(run.train.exchange)} sums of updates travel, which no worker can encode "
    yield Need(path, "servers", f'{message}without a new error at each step: leave it out, or use exchange = "servers"')
    yield Need(path, "messages", "the single-process baseline sends no updates: leave it out")
    if run.attack.after_encoding and compressor.memory == "ef21":
        yield Need(acts_on, "", 'ef21 encodes differences: use another memory, or acts_on = "update"', (memory,))
    if run.attack.after_encoding and getattr(run.attack, "remains", False):
        message = f"{run.attack.kind} is an attack by the residual, which then is that of an honest worker"
        yield Need(acts_on, "", f'{message}: use acts_on = "update"', (("attack", "kind"),))
    if compressor.direction == "model" and compressor.memory in ("ef21", "nesterov"):
        message = f'{compressor.memory} is a memory of updates, and direction = "model" encodes none: use "residual"'
        yield Need(memory, "", message, ((*path, "direction"),))
    if run.train.mode == "async" and compressor.encodes("model") and compressor.memory == "none":
        message = "each worker has a model of its own version, and without a memory it would drift from the server's: "
        yield Need(memory, "", f'{message}use memory = "residual", or direction = "update"', (MODE,))


def _gradients(run: Run) -> Iterator[Need]:
    """A rule that compensates delays takes an update as one gradient, multiplied by the learning rate of its step."""
    rule, train = run.validation.rule, run.train
    if not isinstance(rule, AsyncRule) or rule.compares_with is None or train.mode != "async":
        return
    optimizer, steps, absent = train.optimizer, train.local_steps, run.asynchronous.absent
    earlier = f"not the sum of momentum = {quote(optimizer.momentum)} over earlier steps: set it to 0"
    reasons: list[tuple[Path, bool, str]] = [
        (STEPS, train.policy is None and steps != 1, f"not {steps} local steps: use 1"),
        (
            ("train", "optimizer", "name"),
            optimizer.adaptive,
            f'{optimizer.name} changes it by more than a factor: use "sgd" with momentum = 0',
        ),
        (("train", "optimizer", "momentum"), not optimizer.adaptive and optimizer.momentum > 0, earlier),
        (
            ("asynchronous", "proximal", "worker"),
            run.asynchronous.proximal.worker > 0,
            "the proximal step changes it: set it to 0",
        ),
        (
            ("asynchronous", "absent"),
            run.communication.participation < 1 and absent == "accumulate",
            'with participation below 1, "accumulate" adds up several: use "reset"',
        ),
    ]
    for path, wrong, why in reasons:
        if wrong:
            message = f"{rule.title} needs updates that are one gradient times the learning rate; {why}"
            yield Need(path, "", message, (RULE, MODE))


def _evaluation(run: Run) -> Iterator[Need]:
    if run.topology.evaluators:
        message = "the single-process baseline sends no models to another process, and evaluates them itself: use 0"
        yield Need(("topology", "evaluators"), "messages", message)
    if run.validation.evaluate == "validator_model":
        yield Need(
            ("validation", "evaluate"),
            "rounds of fixed steps",
            "validator_model tests the coordinator's own network at the end of its epoch, but with a policy of local "
            'steps the steps of all workers count, and an epoch ends with a round: set evaluate = "global_model"',
        )
    if run.validation.batchnorm != "averaged":
        return
    message = 'asynchronous workers have no common round in which to average: use "reestimated" or "validator"'
    yield Need(BATCHNORM, "rounds", message)
    message = 'there are no workers whose statistics could be averaged: use "validator" or "reestimated"'
    yield Need(BATCHNORM, "workers", message)
    message = "the workers' statistics belong to the global model, but validation.evaluate = validator_model tests "
    message += 'another model: set evaluate = "global_model", or batchnorm = "validator" or "reestimated"'
    yield Need(BATCHNORM, "the global model", message)


def _simulation(run: Run) -> Iterator[Need]:
    simulation = run.simulation
    if isinstance(simulation, NoSimulation):
        return
    message = 'has an effect only with transport.kind = "inproc": set that, or leave it out'
    yield Need(("simulation",), "one process", message)
    message = 'has no model of the time of Allreduce: leave it out, or use train.exchange = "ring"'
    yield Need(("simulation",), "partitions", message)
    if isinstance(simulation, Measured) and run.train.exchange == "ring":
        message = 'fits the costs of servers, not of train.exchange = "ring": use "modelled"'
        yield Need(("simulation", "kind"), "servers", message)
    if isinstance(simulation, Modelled) and simulation.query:
        message = "without a policy of local steps there are no queries: leave it out"
        yield Need(("simulation", "query"), "policy", message)


CHECKS: tuple[Callable[[Run], Iterator[Problem]], ...] = (unmet,)
