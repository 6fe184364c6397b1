"""The keys of one run: what an experiment file says once its sweep is expanded and its preset filled in."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from hpcps.attacks import AnyAttack, NoAttack
from hpcps.config import Config
from hpcps.heterogeneity import Heterogeneity
from hpcps.roles.asynchronous.config import Asynchronous
from hpcps.rules import AnyRule, Average
from hpcps.simulation.config import AnySimulation, NoSimulation
from hpcps.training.catalogue import DATA_SETS

Beta = Annotated[float, Field(ge=0, lt=1)]
Epochs = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)]


class Topology(Config):
    """How many processes of each role there are; `{ servers = 0, validators = 1, workers = 0 }` is one alone."""

    servers: int = Field(1, ge=0, description="Servers; each keeps an equal shard of the model.")
    validators: int = Field(1, ge=0, description="Validators; 0 lets the servers combine (rules without a score only).")
    workers: int = Field(..., ge=0, description="Workers; worker k belongs to validator k mod validators.")
    colocate_validators: bool = Field(False, description="Place validator i on server i's host.")

    @property
    def alone(self) -> bool:
        """Whether one process trains by itself on the held-out shard, with nobody to talk to."""
        return self.servers == 0 and self.workers == 0


class Transport(Config):
    """What carries the messages."""

    kind: Literal["mpi", "pslite", "inproc"] = Field(
        "mpi",
        description="`mpi`: one process per role; `pslite`: the same over TCP, as nodes of ps-lite, without MPI; "
        "`inproc`: all roles in one process, deterministic.",
    )
    partition: Literal["auto"] | Annotated[int, Field(ge=64)] = Field(
        "auto",
        description="Bytes of the model that a synchronous round moves as one message, so that combining overlaps "
        "transfer and no role holds more than a few of them of every sender; `auto`: 384 KiB where a run is spread "
        "over hosts, else everything at once. A rule that scores blocks takes whole blocks.",
    )
    timeout: float = Field(
        600.0, gt=0, description="Seconds a role waits for a message before the run fails and names who was waited for."
    )
    shared_memory: Literal["auto", "off"] = Field(
        "auto",
        description="`auto`: processes that can reach each other's memory, as those of one host can, read updates and "
        "models where they lie; `off`: all are sent. The result is the same.",
    )
    interface: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9._-]+$",
        description="pslite: the network interface that nodes listen at, such as `ib0`, or `all`; default: loopback on "
        "one machine, else the one towards the other hosts.",
    )
    port: int | None = Field(
        None, ge=1, le=65535, description="pslite: the port that the scheduler listens at; default: one that is free."
    )
    heartbeat_timeout: int = Field(
        60, ge=0, le=86400, description="pslite: seconds of silence after which a process counts as lost; 0: never."
    )
    resend: bool = Field(
        False, description="pslite: acknowledge messages, and send again what is not, as where connections break."
    )


class Model(Config):
    """The network that is trained."""

    backend: Literal["torch", "mxnet"] = Field(
        "torch", description="The framework that trains: PyTorch, or MXNet with GluonCV in an environment of its own."
    )
    name: Literal[
        "cifar_resnet20_v1",
        "cifar_resnet32_v1",
        "cifar_resnet44_v1",
        "cifar_resnet56_v1",
        "cifar_resnet110_v1",
        "cnn",
        "mlp",
        "cifar_resnet20_v2",
        "cifar_resnet56_v2",
        "cifar_resnet110_v2",
        "cifar_wideresnet16_10",
        "cifar_wideresnet28_10",
        "cifar_wideresnet40_8",
        "cifar_resnext29_32x4d",
        "cifar_resnext29_16x64d",
        "cifar_residualattentionnet56",
        "cifar_residualattentionnet92",
        "cifar_residualattentionnet452",
    ] = Field(..., description="The network; those after `mlp` are GluonCV's, for the MXNet backend.")


class Data(Config):
    """The data set and its cut into shards: worker k trains on shard k, every validator on the last one."""

    name: Literal["cifar10", "fashion_mnist", "mnist", "digits", "synthetic"] = Field(..., description="The data set.")
    dir: str | None = Field(None, description="Folder with the official files; default: $HPCPS_DATA, else ./data.")
    split: Literal["iid", "by_class", "dirichlet"] = Field(
        "iid",
        description="How samples are dealt to shards: in file order, sorted by class (so that the validators get the "
        "last classes), or with uneven class mixtures.",
    )
    alpha: float = Field(0.5, gt=0, description="Concentration of the dirichlet split; small is uneven.")
    shards: PositiveInt | None = Field(
        None, description="Number of equal shards; default: workers + 1, to be given without workers."
    )
    limit: PositiveInt | None = Field(None, description="Use only the first so many training samples.")
    test_limit: PositiveInt | None = Field(None, description="Use only the first so many test samples.")
    augment: bool | None = Field(
        None, description="Random crop (pad 4) and horizontal flip; only for cifar10, and true there by default."
    )


class Optimizer(Config):
    """The optimizer of the local steps; its state never leaves its process."""

    name: Literal["sgd", "nag", "adam"] = Field("nag", description="sgd (momentum), nag (Nesterov) or adam.")
    lr: float = Field(0.1, gt=0, description="Learning rate before any decay.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of sgd and nag.")
    betas: Annotated[tuple[Beta, Beta], Field(strict=False)] = Field((0.9, 0.999), description="Decay rates of adam.")
    weight_decay: float = Field(0.0, ge=0, description="L2 weight decay, on every tensor.")


class LrDecay(Config):
    """Step decay of the learning rate; epoch n means from the (n+1)th epoch of that role on."""

    factor: float = Field(0.1, gt=0, description="Multiplier at each of the epochs.")
    epochs: Epochs = Field((), description="Epochs after which the rate is multiplied.")
    validator_epochs: Epochs | None = Field(None, description="The same for validators; default: `epochs`.")


class WarmUp(Config):
    """Linear warm-up of the learning rate."""

    epochs: int = Field(0, ge=0, description="Epochs over which the rate rises; 0: none.")
    start: float = Field(0.1, gt=0, le=1, description="Fraction of the rate at the first step.")


class Train(Config):
    """Local training, and how it is counted."""

    mode: Literal["sync", "async"] = Field(
        "sync", description="`sync`: rounds that everyone waits for; `async`: nobody waits for others ([asynchronous])."
    )
    epochs: PositiveInt = Field(..., description="Epochs of validator 0 (of worker 0 without validators).")
    passes_per_epoch: PositiveInt = Field(1, description="Passes over a shard that make an epoch.")
    batch_size: PositiveInt = Field(32, description="Samples per local step.")
    local_steps: PositiveInt = Field(1, description="Optimizer steps between two synchronisations.")
    optimizer: Optimizer = Optimizer()
    lr_decay: LrDecay = LrDecay()
    warmup: WarmUp = WarmUp()
    lr_scale: Literal["none", "sqrt_workers"] = Field(
        "none", description="`sqrt_workers`: every learning rate is multiplied by sqrt(1 / (workers + 1))."
    )
    threads: PositiveInt = Field(
        1, description="Compute threads per process, and of an evaluation beside its steps; results depend on them."
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where to train; auto: a GPU if there is one.")
    mps: Literal["auto", "off"] = Field(
        "auto",
        description="`auto`: processes of one host that train on one GPU share it through MPS, NVIDIA's "
        "Multi-Process Service, where that works; `off`: no daemon is started for them. The result is the same.",
    )
    first_step: Literal["counted", "overwritten"] = Field(
        "counted",
        description="`overwritten` (artifact): every process takes its first local step before it has the model; "
        "validator 0's result is the initial model, a worker's is overwritten by its first pull.",
    )


class Communication(Config):
    """How much of an update is sent."""

    participation: float = Field(1.0, ge=0, le=1, description="Probability that a worker sends in a round.")
    skip_rate: float = Field(0.0, ge=0, le=1, description="Probability that a sent update leaves a block out.")


class Validation(Config):
    """What decides what enters the model, and how accuracy is measured."""

    rule: AnyRule = Field(
        Average(),
        description="What decides which updates enter the model; each rule is for one `train.mode`.",
    )
    evaluate: Literal["validator_model", "global_model"] = Field(
        "global_model",
        description="`validator_model` (artifact): validator 0's own network at the very end of its epoch, up to H-1 "
        "local steps past the global model; `global_model`: the global model after the round in which the epoch ended.",
    )
    batchnorm: Literal["validator", "averaged", "reestimated"] = Field(
        "reestimated",
        description="BatchNorm statistics for the test: `validator` 0's running ones (artifact), the mean over the "
        "workers' running ones, or reestimated on validator 0's shard for the model under test.",
    )


class Checkpoint(Config):
    """When a run writes what it takes to go on after an interruption; results do not depend on it."""

    every: int = Field(
        10, ge=0, description="Epochs between checkpoints; 0: only when it is stopped, or its walltime runs out."
    )
    keep: PositiveInt = Field(2, description="How many checkpoints are kept; a run that is done needs none.")
    margin: float = Field(
        120.0, ge=0, description="Seconds before the end of a job's walltime at which its run stops at a checkpoint."
    )
    successors: int = Field(
        0, ge=0, description="How many further jobs a job may submit, one after another, to go on where it stopped."
    )


class Run(Config):
    """One fully resolved point of an experiment."""

    name: str = Field(
        ..., pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", description="The experiment; names its results folder."
    )
    description: str = Field("", description="What the experiment is for; shown by `hpcps check`.")
    seed: int = Field(1, ge=0, description="Every random stream derives from it.")
    fidelity: Literal["artifact", "corrected"] = Field(
        "corrected", description="Preset: what the ZenoPS artifact did, or what its authors meant."
    )
    topology: Topology
    transport: Transport = Transport()
    model: Model
    data: Data
    train: Train
    asynchronous: Asynchronous = Asynchronous()
    communication: Communication = Communication()
    heterogeneity: Heterogeneity = Heterogeneity()
    validation: Validation = Validation()
    attack: AnyAttack = Field(NoAttack(), description="The Byzantine attack.")
    checkpoint: Checkpoint = Checkpoint()
    simulation: AnySimulation = Field(
        NoSimulation(), description="The time that a run in one process takes on an imagined machine."
    )

    @model_validator(mode="after")
    def _fill_in(self) -> Run:
        """Fill in the defaults of `data` that follow from other keys."""
        missing = {key: value for key, value in self.derived().items() if getattr(self.data, key) is None}
        if missing:
            # The model is frozen for its users; returning a copy instead is not possible from a validator.
            object.__setattr__(self, "data", self.data.model_copy(update=missing))
        return self

    def derived(self) -> dict[str, object]:
        """Return the defaults of `data` that follow from other keys."""
        shards = {"shards": self.topology.workers + 1} if self.topology.workers else {}
        return {**shards, "augment": DATA_SETS[self.data.name].augment}
