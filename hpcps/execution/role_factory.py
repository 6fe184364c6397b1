"""Create the roles of a run."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hpcps.data.shards import shard_of, shard_size, sizes_of_shards
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import ADVERSARY, EVALUATOR, Roster
from hpcps.roles.asynchronous.adversary import AsyncAdversary
from hpcps.roles.asynchronous.server import AsyncServer
from hpcps.roles.asynchronous.validator import AsyncValidator
from hpcps.roles.asynchronous.worker import AsyncWorker
from hpcps.roles.collective.worker import CollectiveWorker
from hpcps.roles.evaluation_job import TrainerEvaluations
from hpcps.roles.evaluator import EvaluatorRole
from hpcps.roles.events import Role
from hpcps.roles.replacement import Replacement
from hpcps.roles.resources import ALONE, Replicas, Resources
from hpcps.roles.single_process import SingleProcess
from hpcps.roles.sync.adversary import SyncAdversary
from hpcps.roles.sync.server import SyncServer
from hpcps.roles.sync.validator import SyncValidator
from hpcps.roles.sync.worker import SyncWorker
from hpcps.roles.weights import ALIKE, UpdateWeights
from hpcps.spec.members import described
from hpcps.spec.schema import Run
from hpcps.training.schedule import beginning
from hpcps.training.trainer import Trainer

PARTITION = 3 << 17
"""Default size of a partition in bytes for a run on several hosts."""


def spread(run: Run, hosts: int) -> Run:
    """Return the run with the partition size that its rule and number of hosts imply.

    All processes get the same result, and their records state it.
    """
    size = run.transport.partition
    if run.validation.rule.scope == "vector":
        size = "auto"  # updates are whole
    elif size == "auto" and hosts > 1:
        size = PARTITION
    return run.model_copy(update={"transport": run.transport.model_copy(update={"partition": size})})


def arrival_decides(run: Run) -> bool:
    """Return whether the result depends on the order in which messages arrive, which the records then state."""
    return run.train.mode == "async" or run.misses_rounds


def make_role(run: Run, peer: Peer, resources: Resources = ALONE, incarnation: int = 0) -> Role:
    """Return a role that is ready to start; workers, validators and the evaluator have loaded their model and data.

    Args:
        run: the run.
        peer: the role to create.
        resources: the resources of the machine that the role may use.
        incarnation: the number of the replacement that it is; 0 if it is none.

    Raises:
        DataError: the data are missing or damaged.
    """
    if peer.role == "server":
        if run.train.mode == "async":
            return AsyncServer(peer, run, resources, update_weights(run))
        return SyncServer(peer, run, resources, update_weights(run))
    if peer == ADVERSARY and run.train.mode == "async":
        return AsyncAdversary(peer, run, resources)
    if peer == ADVERSARY:
        return SyncAdversary(peer, run, resources, update_weights(run))
    if peer == EVALUATOR and resources.evaluations is not None:
        return EvaluatorRole(peer, run, resources.evaluations)
    # Imported here, because it imports the framework, which a server does not need.
    from hpcps.training.build import build_trainer

    # The evaluator has the shard of the coordinator, for BatchNorm statistics.
    trains = Roster.of(run).coordinator if peer == EVALUATOR else peer
    trainer = build_trainer(run, trains.role, trains.index)
    if len(run.members) > 1 and trains == peer:
        trainer.go_to(beginning(run, peer.role, peer.index))
    if run.audits and resources.replicas is None:
        resources = replace(resources, replicas=replicas_of(run))
    if incarnation and peer != EVALUATOR:
        role = make_training_role(run, peer, trainer, resources)
        able = (SyncWorker, AsyncWorker, SyncValidator, AsyncValidator)
        assert isinstance(role, able), "a run survives the loss of no other roles"
        return Replacement(role, run, Roster.of(run).deciders_of(run, peer), incarnation)
    return make_training_role(run, peer, trainer, resources)


def replicas_of(run: Run) -> Replicas | None:
    """Return what the roles of a process share for audits; None for a run without them."""
    if not run.audits:
        return None
    from hpcps.training.build import build_trainer  # here, because it imports the framework

    return Replicas(partial(build_trainer, run))


def role_facts(run: Run, role: Role) -> dict[str, object]:
    """Return what the first line of a role's record states in every run.

    It has `memory_format`, that of the images and kernels, if hpcps chooses it; `class`, if the worker has one; and
    `residual_from`, if a replacement begins with what a checkpoint has; `members`, if the run was resized.
    """
    peer, device = role.peer, role.device
    facts: dict[str, object] = {"transport": run.transport.kind, "threads": run.train.threads, "device": device}
    if peer.role not in ("server", "adversary") and run.model.backend == "torch":
        facts["memory_format"] = run.model.memory_format(device)
    if isinstance(role, Replacement) and role.residual_from is not None:
        facts["residual_from"] = role.residual_from
    if len(run.members) > 1:
        facts["members"] = described(run.members)
    own = run.heterogeneity.class_of(peer.role, peer.index)
    return facts if own is None else facts | {"class": own.name}


def make_training_role(run: Run, peer: Peer, trainer: Trainer, resources: Resources = ALONE) -> Role:
    """Return a worker or validator that trains with this trainer, or the evaluator, which only evaluates with it."""
    if peer == EVALUATOR:
        reestimate = run.validation.batchnorm == "reestimated"
        return EvaluatorRole(peer, run, TrainerEvaluations(trainer, reestimate=reestimate))
    if run.topology.alone:
        return SingleProcess(peer, run, trainer)
    if run.collective:
        return CollectiveWorker(peer, run, trainer, resources)
    if peer.role == "worker":
        return (SyncWorker if run.train.mode == "sync" else AsyncWorker)(peer, run, trainer, resources)
    validator = SyncValidator if run.train.mode == "sync" else AsyncValidator
    return validator(peer, run, trainer, resources, update_weights(run))


def update_weights(run: Run) -> UpdateWeights:
    """Return how much the updates of the workers of a run count.

    Raises:
        DataError: the weights are the sizes of shards, which depend on labels that are missing or damaged.
    """
    weights, workers, data = run.validation.weights, range(run.topology.workers), run.data
    match weights:
        case "equal":
            return ALIKE
        case "samples":
            size = shard_size(data, run.largest_batch)
            sizes = sizes_of_shards(data, size, run.seed, held_out=run.holds_out, least=run.largest_batch)
            found = tuple(float(sizes[shard_of(data, "worker", k)]) for k in workers)
        case "steps":
            steps = 1 if run.train.policy else run.train.steps_per_round
            found = tuple(float(steps * run.batch_size("worker", k)) for k in workers)
        case _:
            found = weights
    return UpdateWeights(found, Roster.of(run))
