"""The keys of one run: an experiment file after the expansion of its sweep and its preset."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil
from typing import Annotated, Any, Literal, cast

from pydantic import Field, PositiveInt, PrivateAttr, model_validator

from hpcps.attacks import ByzantineAttack, NoAttack
from hpcps.callbacks import Callback
from hpcps.compression import BaseCompressor, NoCompression
from hpcps.data.base import Data
from hpcps.models import Model
from hpcps.optimizers import ServerOptimizer, ServerSgd
from hpcps.policies import Policy
from hpcps.registry import Config, OneOf
from hpcps.registry.config import LARGEST_RATE, MOST, MOST_ROLES, NAME, WEEK
from hpcps.rules import Average
from hpcps.rules.asynchronous import AsyncRule, NaiveAsync
from hpcps.rules.base import Rule
from hpcps.spec.heterogeneity import Heterogeneity
from hpcps.spec.members import WorkerCount
from hpcps.spec.optimization import Asynchronous, LrDecay, Optimizer, ServerStep, WarmUp
from hpcps.spec.simulation import AnySimulation, NoSimulation
from hpcps.spec.tracking import Tracking
from hpcps.spec.transport import Transport

_MOST_CALLBACKS = 16

Weights = Annotated[tuple[Annotated[float, Field(ge=1e-6, le=1e6)], ...], Field(strict=False, max_length=MOST_ROLES)]
Quorum = Annotated[int, Field(ge=1, le=MOST_ROLES)] | Annotated[float, Field(gt=0, lt=1)]


class Topology(Config):
    """Processes of each role; `{ servers = 0, validators = 1, workers = 0 }` is the single-process baseline."""

    servers: int = Field(1, ge=0, le=MOST_ROLES, description="Servers; each keeps an equal shard of the model.")
    validators: int = Field(
        1,
        ge=0,
        le=MOST_ROLES,
        description="Validators; 0: the servers combine the updates, with a rule that needs no reference.",
    )
    workers: int = Field(
        ..., ge=0, le=MOST_ROLES, description="Workers; worker k belongs to validator k mod validators."
    )
    colocate_validators: bool = Field(False, description="Place validator i on server i's host.")
    evaluators: int = Field(
        0,
        ge=0,
        le=1,
        description="1: a process of its own evaluates the models, always the latest one, and nobody waits for it "
        "before the last model; 0: validator 0 evaluates them (worker 0 without validators).",
    )

    @property
    def alone(self) -> bool:
        """Whether this is the single-process baseline, which trains on the held-out shard."""
        return self.servers == 0 and self.workers == 0


class Train(Config):
    """Local training and the definition of an epoch."""

    mode: Literal["sync", "async"] = Field(
        "sync",
        description="`sync`: all processes wait for each other in every round; `async`: no process waits for others "
        "(see [asynchronous]).",
    )
    exchange: Literal["servers", "ring", "allreduce"] = Field(
        "servers",
        description="How updates reach the model: `servers`: servers combine them; `ring`: the workers average them in "
        "a ring; `allreduce`: MPI's own collective averages them. `ring` and `allreduce` need `servers = 0`, "
        '`validators = 0`, `mode = "sync"` and the rule `average`; every worker keeps the whole model.',
    )
    epochs: PositiveInt = Field(
        ...,
        le=MOST,
        description="Epochs of validator 0 (of worker 0 without validators; with a policy of local steps, of all "
        "workers together).",
    )
    passes_per_epoch: PositiveInt = Field(1, le=MOST, description="Passes over a shard in an epoch.")
    batch_size: PositiveInt = Field(32, le=MOST, description="Samples per local step.")
    local_steps: Annotated[int | Policy, OneOf("policies", or_else=Annotated[int, Field(ge=1, le=MOST)])] = Field(
        1,
        description="Optimizer steps between two synchronizations: a number, or a table with the policy that decides "
        "how many each process takes in a round.",
    )
    quorum: Quorum | None = Field(
        None,
        description="Synchronous: a round closes with the answers of so many workers, a number or a share below 1; a "
        "combiner rounds its part of them up. Default: all.",
    )
    grace: float = Field(
        0.0,
        ge=0,
        le=WEEK,
        description="Seconds after the last answer of the quorum in which further updates enter the round.",
    )
    late: Literal["drop", "next"] = Field(
        "drop",
        description="The updates that come after their round has closed: `drop`: they are released when they come; "
        "`next`: they enter the round in which they come, and count as answers of its quorum.",
    )
    abandon: bool = Field(
        False, description="Whether late workers leave the local steps of a closed round, between two steps."
    )
    abandoned: Literal["residual", "lost"] = Field(
        "residual",
        description="What an abandoned round leaves: `residual`: the worker keeps the difference that its steps made, "
        "like blocks that it does not send; `lost`: nothing.",
    )
    global_lr: float = Field(
        1.0,
        gt=0,
        le=LARGEST_RATE,
        description="Synchronous: the model changes by this factor times the combined update of a round.",
    )
    optimizer: Optimizer = Optimizer()
    lr_decay: LrDecay = LrDecay()
    warmup: WarmUp = WarmUp()
    lr_scale: Literal["none", "sqrt_workers"] = Field(
        "none", description="`sqrt_workers`: every learning rate is multiplied by sqrt(1 / (workers + 1))."
    )
    stop_when_diverged: bool = Field(
        False,
        description="Whether a role stops training when its steps are in vain: in its last three rounds the model was "
        "the same, bit by bit, and its loss was not finite, so its updates were rejected. It trains again if the model "
        "changes. A single process stops when values of its model are NaN and so is its loss. Rounds and evaluations "
        "go on, and accuracies are the same.",
    )
    threads: PositiveInt = Field(
        1,
        le=MOST_ROLES,
        description="Compute threads of a process, and of a background evaluation; results depend on it.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Training device; auto: a GPU if there is one.")
    mps: Literal["auto", "off"] = Field(
        "auto",
        description="`auto`: processes of one host that train on one GPU share it through MPS, NVIDIA's "
        "Multi-Process Service, if that works; `off`: hpcps starts no MPS daemon. The result is the same.",
    )
    first_step: Literal["counted", "overwritten"] = Field(
        "counted",
        description="`overwritten` (artifact): every process takes its first local step before it has the model; "
        "validator 0's result is the initial model, and a worker's first pull overwrites its result.",
    )

    @property
    def policy(self) -> Policy | None:
        """The policy of local steps; None if every process takes the same number of steps in each round."""
        return self.local_steps if isinstance(self.local_steps, Policy) else None

    @property
    def steps_per_round(self) -> int:
        """The number of local steps of each round, of a run without a policy."""
        assert isinstance(self.local_steps, int), "the number depends on a policy"
        return self.local_steps


class Communication(Config):
    """How much of an update is sent, and how it is encoded."""

    participation: float = Field(1.0, ge=0, le=1, description="Probability that a worker sends in a round.")
    skip_rate: float = Field(0.0, ge=0, le=1, description="Probability that a worker skips a block of an update.")
    compression: Annotated[BaseCompressor, OneOf("compressors")] = Field(
        NoCompression(), description="How the blocks of updates, and of models, are encoded; a name, or a table."
    )


class Audit(Config):
    """Which updates of workers are executed again, to prove that a worker did not do what it should."""

    share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Synchronous, on CPUs: the probability with which the update of a worker is audited in a round: "
        "the worker hands over its state, its validator executes the local steps again and excludes the worker if the "
        "update or the state after it is another one; 0: no audits.",
    )


class Validation(Config):
    """The rule that decides which updates enter the model, and the evaluation of the model."""

    rule: Annotated[Rule | AsyncRule, OneOf("rules")] = Field(
        Average(),
        description="The rule that decides which updates enter the model; each rule is for one `train.mode`.",
    )
    weights: Literal["equal", "samples", "steps"] | Weights = Field(
        "equal",
        description="How much the update of a worker counts: `equal`: all alike; `samples`: by the size of its shard; "
        "`steps`: by the samples of its local steps in the round; or one number for each worker. The experiment says "
        "it, not the worker. For rules and pre-aggregators that take weights.",
    )
    evaluate: Literal["validator_model", "global_model"] = Field(
        "global_model",
        description="The model to test: `validator_model` (artifact): validator 0's own network at the end of its "
        "epoch, up to H-1 local steps after the global model; `global_model`: the global model after the round in "
        "which the epoch ended.",
    )
    batchnorm: Literal["validator", "averaged", "reestimated"] = Field(
        "reestimated",
        description="BatchNorm statistics for the test: `validator`: running statistics of validator 0 (artifact); "
        "`averaged`: mean of the workers' running statistics; `reestimated`: computed on validator 0's shard for the "
        "tested model.",
    )
    audit: Audit = Audit()


class Checkpoint(Config):
    """When a run writes checkpoints, from which it resumes after an interruption.

    Results do not depend on them, unless `survive.residual` is "checkpoint".
    """

    every: int = Field(
        10,
        ge=0,
        le=MOST,
        description="Epochs between checkpoints; 0: only when the run is stopped or reaches its walltime.",
    )
    rounds: int = Field(
        0,
        ge=0,
        le=MOST,
        description="Rounds between further checkpoints, if an epoch is too much to lose; asynchronous: entries of the "
        "log; 0: none. If all processes of a run are on one host, these checkpoints are in its memory, and one a "
        "minute is on disk.",
    )
    keep: PositiveInt = Field(2, le=MOST, description="Number of checkpoints to keep; a finished run keeps none.")
    margin: float = Field(
        120.0,
        ge=0,
        le=WEEK,
        description="Seconds before the end of a job's walltime at which its run stops at a checkpoint.",
    )
    successors: int = Field(
        0,
        ge=0,
        le=MOST,
        description="Number of successor jobs in a chain, each of which resumes the run of its predecessor.",
    )

    def due(self, rounds: tuple[int, int], epochs: tuple[int, int]) -> bool:
        """Return whether a checkpoint is due.

        Args:
            rounds: the finished rounds, or entries of the log, when it was last asked, and now.
            epochs: the finished epochs then, and now.
        """
        return _passed(self.rounds, rounds) or self.due_by_epoch(epochs)

    def due_by_epoch(self, epochs: tuple[int, int]) -> bool:
        """Return whether `every` makes a checkpoint due."""
        return _passed(self.every, epochs)


def _passed(step: int, counts: tuple[int, int]) -> bool:
    """Return whether a multiple of `step` lies between two counts."""
    before, after = counts
    return bool(step) and after // step > before // step


HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


class Survive(Config):
    """Which processes a run may lose. A process that is lost and not named here ends the run."""

    workers: bool = Field(
        False,
        description="The run goes on without a worker that is lost, until its replacement takes part; without "
        "validators also without the evaluator. "
        "The update of a worker is one message then, whatever `transport.partition` says.",
    )
    validators: bool = Field(
        False,
        description="With `workers`: the run goes on without a validator, or evaluator, that is lost. The other "
        "validators serve its workers until its replacement does. If there are none, the workers wait for the "
        "replacement.",
    )
    servers: bool = Field(
        False,
        description="With `workers`: each server has a standby, a further process, which handles the same events and "
        "takes its place if it is lost.",
    )
    min_workers: PositiveInt | None = Field(
        None,
        le=MOST_ROLES,
        description="Synchronous: the workers of a combiner below which its rounds wait for replacements; default: as "
        "many as the rule needs updates, such as 2 f + 3 for krum.",
    )
    wait: float | None = Field(
        None,
        gt=0,
        le=WEEK,
        description="Seconds that rounds wait for replacements; if too few workers, or no validator, are there for "
        "longer, `hpcps run` stops the run at a checkpoint. Default: 120, or half of `transport.timeout` if that is "
        "less.",
    )
    after: float = Field(
        5.0,
        ge=0.5,
        le=WEEK,
        description="Seconds without a sign of life after which a process that may be lost is lost: it is stopped, or "
        "its host is gone. A process that is killed is lost at once.",
    )
    spares: Annotated[tuple[HostName, ...], Field(strict=False)] = Field(
        (),
        description="Hosts for the replacements of the processes of hosts that are gone, in this order; others are "
        "replaced on their own host.",
    )
    residual: Literal["zero", "checkpoint"] = Field(
        "zero",
        description="With what the replacement of a worker begins: without residual and momentum, or with those that "
        "the worker had at the last kept checkpoint with its part; without one, as with zero.",
    )
    batch: Literal["own", "constant"] = Field(
        "own",
        description="The samples of a local step while workers are absent, synchronous: each of the others takes its "
        "own, or also its part of theirs, so that all together take as many as before.",
    )


class Run(Config):
    """One fully resolved point of an experiment."""

    name: str = Field(..., pattern=NAME, description="Name of the experiment and of its results folder.")
    description: str = Field("", description="What the experiment is for; shown by `hpcps check`.")
    baseline: str | None = Field(
        None, pattern=NAME, description="Experiment that the figures show for reference, if it trained the same."
    )
    plugins: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description="Python files that define your own components; paths are relative to this file."
    )
    seed: int = Field(1, ge=0, le=2**63 - 1, description="Seed of all random streams.")
    fidelity: Literal["artifact", "corrected"] = Field(
        "corrected", description="Preset: the behaviour of the ZenoPS artifact, or the behaviour its authors intended."
    )
    topology: Topology
    transport: Annotated[Transport, OneOf("transports")] = Field(
        cast(Transport, {}), description="The transport of the messages."
    )
    model: Annotated[Model, OneOf("models")] = Field(..., description="The network that is trained.")
    data: Annotated[Data, OneOf("datasets")] = Field(
        ...,
        description="The data set and its shards: worker k trains on shard k, all validators on the last shard.",
    )
    train: Train
    asynchronous: Asynchronous = Asynchronous()
    server: ServerStep = ServerStep()
    communication: Communication = Communication()
    heterogeneity: Heterogeneity = Heterogeneity()
    validation: Validation = Validation()
    attack: Annotated[ByzantineAttack | NoAttack, OneOf("attacks")] = Field(
        NoAttack(), description="The Byzantine attack."
    )
    checkpoint: Checkpoint = Checkpoint()
    survive: Survive = Survive()
    callbacks: Annotated[
        tuple[Annotated[Callback, OneOf("callbacks")], ...], Field(strict=False, max_length=_MOST_CALLBACKS)
    ] = Field((), description="What follows the rounds and evaluations of a run, and records numbers of its own.")
    tracking: Tracking = Tracking()
    simulation: AnySimulation = Field(
        NoSimulation(), description="Simulated timing of a cluster, for a run in one process."
    )

    _id: str = PrivateAttr("")
    _members: tuple[WorkerCount, ...] = PrivateAttr(())

    @property
    def id(self) -> str:
        """The id that `identified` has given it; it depends on plugins too, which a run does not know."""
        return self._id

    def identified(self, id: str) -> Run:
        """Return the run with its id; see `hpcps.spec.identity.run_id`."""
        run = self.model_copy()
        run._id = id
        return run

    @property
    def members(self) -> tuple[WorkerCount, ...]:
        """The numbers of workers so far; the last one is that of `topology.workers`."""
        return self._members or (WorkerCount(0, 0, self.topology.workers),)

    def resized(self, members: tuple[WorkerCount, ...]) -> Run:
        """Return the run with its id and the number of workers of the last membership; none: as it is.

        Raises:
            ValidationError: the number is not valid.
        """
        if not members:
            return self
        tree = self.model_dump(mode="json")
        tree["topology"]["workers"] = members[-1].workers
        if self.data.shards == self.derived().get("shards"):
            del tree["data"]["shards"]
        run = Run.model_validate(tree).identified(self._id)
        run._members = members
        return run

    def __reduce__(self) -> tuple[Callable[[Any], Run], tuple[dict[str, Any]]]:
        """Pickle the values of the keys only: the class of a component may be no attribute of any module."""
        return type(self).model_validate, (self.model_dump(mode="json"),)

    @model_validator(mode="after")
    def _fill_in(self) -> Run:
        """Fill in the defaults of `data` that follow from other keys."""
        missing = {key: value for key, value in self.derived().items() if getattr(self.data, key) is None}
        if missing:
            # The model is frozen, and a validator cannot return a copy.
            object.__setattr__(self, "data", self.data.model_copy(update=missing))
        return self

    @property
    def collective(self) -> bool:
        """Whether the workers average their updates among themselves, without servers."""
        return self.train.exchange != "servers"

    @property
    def buffered(self) -> bool:
        """Whether asynchronous servers combine several updates at once, by a synchronous rule."""
        return self.train.mode == "async" and self.asynchronous.buffer is not None

    @property
    def rule_mode(self) -> Literal["sync", "async"]:
        """The mode of the rules that the run can have."""
        return "sync" if self.buffered else self.train.mode

    @property
    def filter(self) -> AsyncRule:
        """The rule that decides on each update of an asynchronous run; in front of a buffer it accepts all."""
        rule = NaiveAsync() if self.buffered else self.validation.rule
        assert isinstance(rule, AsyncRule), "the specification has been checked"
        return rule

    @property
    def combined_at_once(self) -> tuple[int, ...]:
        """The numbers of updates that the rule gets if none is missing, in ascending order."""
        size = self.asynchronous.buffer
        return (size,) if self.buffered and size is not None else self.shares

    @property
    def server_optimizer(self) -> ServerOptimizer:
        """How a combined update changes the model; `train.global_lr` is the rate of `sgd`."""
        rate = self.train.global_lr
        return self.server.optimizer if rate == 1 else ServerSgd(lr=rate)

    def updates_needed(self, members: int) -> int:
        """Return how many of a combiner's workers a round waits for: its part of `train.quorum`, rounded up."""
        quorum = self.train.quorum
        if quorum is None or not self.topology.workers:
            return members
        share = Fraction(str(quorum)) if isinstance(quorum, float) else Fraction(quorum, self.topology.workers)
        return min(members, ceil(share * members))

    def workers_needed(self, members: int) -> int:
        """Return how many of its workers a combiner needs, if the run survives the loss of others."""
        if (least := self.survive.min_workers) is not None:
            return min(least, members)
        rule = self.validation.rule
        if not isinstance(rule, Rule):
            return members
        # A rule that can combine n updates may not be able to combine some more, if its f is a share.
        return next((n for n in range(members, 1, -1) if rule.refusal(n - 1)), 1)

    @property
    def shares(self) -> tuple[int, ...]:
        """The numbers of workers that combiners have, which differ by at most one."""
        fewest, more = divmod(self.topology.workers, max(self.topology.validators, 1))
        return tuple(sorted({fewest, fewest + bool(more)} - {0}))

    @property
    def has_quorum(self) -> bool:
        """Whether a round may close before all workers have answered."""
        served = {*self.shares, *([self.topology.workers] if self.survive.validators else [])}  # also for lost ones
        return any(self.updates_needed(members) < members for members in served)

    @property
    def misses_rounds(self) -> bool:
        """Whether a round may close without a worker: it is late, or lost."""
        return self.has_quorum or (self.survive.workers and self.train.mode == "sync")

    @property
    def survives_coordinator(self) -> bool:
        """Whether the run goes on without the role that evaluates, see `Roster.coordinator`, and has a replacement."""
        return self.survive.validators if self.topology.validators else self.survive.workers

    @property
    def shares_batches(self) -> bool:
        """Whether workers take the samples of those that are absent."""
        return self.survive.workers and self.survive.batch == "constant"

    @property
    def audits(self) -> bool:
        """Whether validators audit workers."""
        return self.validation.audit.share > 0

    @property
    def has_adversary(self) -> bool:
        """Whether the run has the role `adversary`: its attack knows the updates of other workers."""
        return self.attack.omniscient and self.topology.workers > 0

    @property
    def processes(self) -> int:
        """The number of roles and standbys, each of which is a process over MPI or ps-lite."""
        topology = self.topology
        servers = topology.servers * (1 + self.survive.servers)
        return servers + topology.validators + topology.workers + topology.evaluators + self.has_adversary

    @property
    def holds_out(self) -> bool:
        """Whether the last shard is drawn before the split assigns the other samples to workers."""
        data = self.data
        return not data.split.alike and data.validation_split == "iid" and (data.shards or 0) > self.topology.workers

    def batch_size(self, role: str, index: int) -> int:
        """Return the samples per local step of a role."""
        own = self.heterogeneity.class_of(role, index)
        return self.train.batch_size if own is None or own.batch_size is None else own.batch_size

    def epoch_batch(self, role: str, index: int) -> int:
        """Return the batch size that determines how many local steps an epoch of a role has.

        In synchronous training all roles take the same number of steps in a round, so the coordinator's epochs count
        for all of them. In asynchronous training each role has its own.
        """
        if self.train.mode == "sync":
            role, index = "validator" if self.topology.validators else "worker", 0
        return self.batch_size(role, index)

    @property
    def largest_batch(self) -> int:
        """The largest batch of any role, which every shard must fill."""
        classes = self.heterogeneity.classes if self.topology.workers else ()
        return max([self.train.batch_size, *(each.batch_size or 0 for each in classes)])

    def derived(self) -> dict[str, object]:
        """Return the defaults of `data` that follow from other keys."""
        shards = {"shards": self.topology.workers + 1} if self.topology.workers else {}
        return {**shards, "augment": self.data.facts.augment}
