"""Mistakes that no single key shows: values that do not go together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import get_args

from hpcps.attacks import NoAttack, attackers
from hpcps.heterogeneity import UniformDelay
from hpcps.rules import AnyAsyncRule, AnySyncRule
from hpcps.simulation.config import Measured, Modelled, NoSimulation
from hpcps.spec.presets import PRESETS
from hpcps.spec.problems import Problem, quote
from hpcps.spec.schema import Run
from hpcps.training.catalogue import BACKENDS, DATA_SETS, FOR_COLOUR, WITH_BATCHNORM

SERVERS, WORKERS, VALIDATORS = ("topology", "servers"), ("topology", "workers"), ("topology", "validators")
DATA, MODE = ("data", "name"), ("train", "mode")
RULES = {"sync": AnySyncRule, "async": AnyAsyncRule}


def contradictions(run: Run) -> list[Problem]:
    """Return what is wrong with a run whose keys are all valid by themselves."""
    return [problem for check in _CHECKS for problem in check(run)]


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


def _partitions_are_of_rounds(run: Run) -> Iterator[Problem]:
    if run.transport.partition == "auto":
        return
    path = ("transport", "partition")
    if run.train.mode == "async":
        yield Problem(path, "only the rounds of synchronous training are cut into partitions: leave it out", (MODE,))
    elif run.topology.alone:
        yield Problem(path, "one process that trains alone sends nothing: leave it out", (SERVERS, WORKERS))


def _statistics_can_be_averaged(run: Run) -> Iterator[Problem]:
    if run.train.mode == "async" and run.validation.batchnorm == "averaged":
        yield Problem(
            ("validation", "batchnorm"),
            'asynchronous workers have no common moment at which to average: take "reestimated" or "validator"',
            (MODE,),
        )


def _slow_workers_exist(run: Run) -> Iterator[Problem]:
    slow, workers = run.heterogeneity.slow, run.topology.workers
    if workers == 0:
        return
    if strangers := [index for index in slow.workers if index >= workers]:
        yield Problem(
            ("heterogeneity", "slow", "workers"),
            f"{quote(strangers)} are not among the {workers} workers: use indices from 0 to {workers - 1}",
            (WORKERS,),
        )
    if bool(slow.workers) != (slow.factor > 1):
        yield Problem(
            ("heterogeneity", "slow", "workers" if slow.workers else "factor"),
            "acts only with both workers and a factor above 1: set the other one too, or leave both out",
            (("heterogeneity", "slow", "factor" if slow.workers else "workers"),),
        )
    if slow.workers and run.transport.kind == "inproc" and isinstance(run.simulation, NoSimulation):
        yield Problem(
            ("heterogeneity", "slow"),
            "in one process computing takes no time that could be stretched: add a [simulation], use transport.kind = "
            '"mpi", or a delay',
            (("transport", "kind"), ("simulation",)),
        )


def _transport_keys_act(run: Run) -> Iterator[Problem]:
    if run.transport.kind != "mpi" and run.transport.shared_memory != "auto":
        message = 'acts only with transport.kind = "mpi": set that, or leave it out'
        yield Problem(("transport", "shared_memory"), message, (("transport", "kind"),))
    if run.transport.kind != "pslite":
        for key in ("interface", "port", "heartbeat_timeout", "resend"):
            if key in run.transport.model_fields_set and getattr(run.transport, key) is not None:
                message = 'acts only with transport.kind = "pslite": set that, or leave it out'
                yield Problem(("transport", key), message, (("transport", "kind"),))


def _delays_have_a_range(run: Run) -> Iterator[Problem]:
    delays = {("heterogeneity", "delay"): run.heterogeneity.delay}
    if isinstance(run.simulation, Modelled):
        delays["simulation", "step"] = run.simulation.step
    for path, delay in delays.items():
        if isinstance(delay, UniformDelay) and delay.high < delay.low:
            yield Problem((*path, "high"), f"{delay.high} s is below low = {delay.low} s")


def _simulation_is_in_process(run: Run) -> Iterator[Problem]:
    if not isinstance(run.simulation, NoSimulation) and run.transport.kind != "inproc":
        yield Problem(
            ("simulation",),
            'acts only with transport.kind = "inproc", as over MPI time is real: set that, or leave it out',
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
            f"lists roles for {len(machine.placement)} hosts, and simulation.hosts = {machine.hosts}: make them equal",
            (("simulation", "hosts"),),
        )
    topology = run.topology
    counts = {"worker": topology.workers, "validator": topology.validators, "server": topology.servers}
    roles = [f"{role}-{index}" for role, count in counts.items() for index in range(count)]
    placed = [name for names in machine.placement for name in names]
    wrong = {
        "no host": [role for role in roles if role not in placed],
        "several places": [role for role in dict.fromkeys(placed) if placed.count(role) > 1],
        "a host, but no part in this run": [role for role in dict.fromkeys(placed) if role not in roles],
    }
    for what, names in wrong.items():
        if names:
            yield Problem(path, f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} {what}", (("topology",),))


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


def _decays_in_order(run: Run) -> Iterator[Problem]:
    lists = {
        ("train", "lr_decay", "epochs"): run.train.lr_decay.epochs,
        ("train", "lr_decay", "validator_epochs"): run.train.lr_decay.validator_epochs or (),
        ("asynchronous", "alpha_decay", "epochs"): run.asynchronous.alpha_decay.epochs,
    }
    for path, epochs in lists.items():
        if any(later <= earlier for earlier, later in pairwise(epochs)):
            yield Problem(path, f"{quote(epochs)} must rise: each epoch once, in order")


def _shards_for_all(run: Run) -> Iterator[Problem]:
    workers, shards = run.topology.workers, run.data.shards
    held_out = 1 if run.topology.validators else 0
    if shards is None and not run.topology.alone:
        return
    if shards is None:
        message = "how many shards? Without workers it does not follow from their number; the last one is trained on"
        yield Problem(("data", "shards"), message, (WORKERS,))
    elif shards < workers + held_out:
        whom = f"{workers} workers and the validators' own" if held_out else f"{workers} workers"
        yield Problem(
            ("data", "shards"),
            f"{shards} shards are too few for {whom}: use {workers + held_out} or more, or leave it out",
            (WORKERS, VALIDATORS),
        )


def _shards_fill_a_batch(run: Run) -> Iterator[Problem]:
    available, shards, batch = DATA_SETS[run.data.name].train, run.data.shards, run.train.batch_size
    if shards is None:
        return
    samples = min(available, run.data.limit or available)
    if samples // shards < batch:
        yield Problem(
            ("data", "limit") if run.data.limit else ("train", "batch_size"),
            f"{samples} training samples in {shards} shards leave {samples // shards} in each, fewer than a batch of "
            f"{batch}: use smaller batches, fewer shards or more samples",
            (("data", "limit"), ("train", "batch_size"), ("data", "shards"), WORKERS, DATA),
        )


def _limits_are_limits(run: Run) -> Iterator[Problem]:
    facts = DATA_SETS[run.data.name]
    for key, limit, size in (("limit", run.data.limit, facts.train), ("test_limit", run.data.test_limit, facts.test)):
        if limit is not None and limit > size:
            part = "test" if key == "test_limit" else "training"
            message = f"{run.data.name} has {size} {part} samples, fewer than {limit}: leave it out to use all"
            yield Problem(("data", key), message, (DATA,))


def _statistics_exist(run: Run) -> Iterator[Problem]:
    """Without BatchNorm all choices are the same run; what the preset sets anyway is none."""
    path = ("validation", "batchnorm")
    usual = PRESETS[run.fidelity][path]
    if run.validation.batchnorm != usual and run.model.name not in WITH_BATCHNORM:
        message = f"{run.model.name} has no BatchNorm, so this has no effect: leave it out"
        yield Problem(path, message, (("model", "name"),))


def _backend_has_the_model(run: Run) -> Iterator[Problem]:
    model, backend = run.model.name, run.model.backend
    if model not in BACKENDS[backend]:
        able = " or ".join(f"backend = {quote(name)}" for name, models in BACKENDS.items() if model in models)
        message = f"{model} is not among the models of {quote(backend)} ({', '.join(BACKENDS[backend])}): take {able}"
        yield Problem(("model", "name"), message, (("model", "backend"),))


def _model_takes_data(run: Run) -> Iterator[Problem]:
    model, data = run.model.name, run.data.name
    if model in FOR_COLOUR and DATA_SETS[data].shape[0] != 3:
        able = ", ".join(name for name, facts in DATA_SETS.items() if facts.shape[0] == 3)
        yield Problem(
            ("model", "name"),
            f"{model} is for colour images ({able}), and those of {data} are grey: take cnn or mlp",
            (DATA,),
        )


def _data_can_be_augmented(run: Run) -> Iterator[Problem]:
    if run.data.augment and not DATA_SETS[run.data.name].augment:
        able = ", ".join(name for name, facts in DATA_SETS.items() if facts.augment)
        yield Problem(("data", "augment"), f"only for {able}, not {run.data.name}: leave it out", (DATA,))


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


def _averaged_statistics_have_a_model(run: Run) -> Iterator[Problem]:
    validation = run.validation
    if validation.batchnorm == "averaged" and validation.evaluate == "validator_model":
        yield Problem(
            ("validation", "batchnorm"),
            "the workers' statistics belong to the global model, and validation.evaluate = validator_model tests "
            'another one: set evaluate = "global_model", or batchnorm = "validator" or "reestimated"',
            (("validation", "evaluate"),),
        )


def _statistics_have_workers(run: Run) -> Iterator[Problem]:
    if run.validation.batchnorm == "averaged" and run.topology.workers == 0:
        message = 'there are no workers whose statistics could be averaged: take "validator" or "reestimated"'
        yield Problem(("validation", "batchnorm"), message, (WORKERS,))


def _keys_have_an_effect(run: Run) -> Iterator[Problem]:
    """What is set must matter: else two files that differ in nothing would be two runs."""
    optimizer, data = run.train.optimizer, run.data
    for key, users in (("momentum", ("sgd", "nag")), ("betas", ("adam",))):
        if key in optimizer.model_fields_set and optimizer.name not in users:
            yield Problem(
                ("train", "optimizer", key),
                f"{optimizer.name} has no {key}, only {' and '.join(users)}: leave it out",
                (("train", "optimizer", "name"),),
            )
    steps = (
        (("train", "lr_decay"), "factor", run.train.lr_decay),
        (("train", "warmup"), "start", run.train.warmup),
        (("asynchronous", "alpha_decay"), "factor", run.asynchronous.alpha_decay),
    )
    for path, key, table in steps:
        # Epochs that are said to be none are an answer, such as the first value of a sweep.
        if key in table.model_fields_set and not table.model_fields_set & {"epochs", "validator_epochs"}:
            yield Problem((*path, key), "acts only with epochs: give them, or leave it out", ((*path, "epochs"),))
    if "alpha" in data.model_fields_set and data.split != "dirichlet":
        yield Problem(("data", "alpha"), 'only split = "dirichlet" uses it: leave it out', (("data", "split"),))


_CHECKS: tuple[Callable[[Run], Iterator[Problem]], ...] = (
    _topology_is_whole,
    _rule_is_for_the_mode,
    _asynchronous_keys_act,
    _partitions_are_of_rounds,
    _statistics_can_be_averaged,
    _slow_workers_exist,
    _transport_keys_act,
    _delays_have_a_range,
    _simulation_is_in_process,
    _measured_costs_have_records,
    _simulated_roles_have_one_host_each,
    _rule_needs_validator,
    _validators_have_workers,
    _validators_have_server_hosts,
    _decays_in_order,
    _shards_for_all,
    _shards_fill_a_batch,
    _limits_are_limits,
    _statistics_exist,
    _backend_has_the_model,
    _model_takes_data,
    _data_can_be_augmented,
    _attackers_exist,
    _averaged_statistics_have_a_model,
    _statistics_have_workers,
    _keys_have_an_effect,
)
