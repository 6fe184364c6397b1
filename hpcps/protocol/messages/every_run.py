"""The messages of every kind of run: the initial model, checkpoints, the adversary, evaluations, clocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from hpcps.numerics.layout import Mask, Vector
from hpcps.protocol.messages.base import Count, Flag, HeaderField, InNote, Message


@dataclass(frozen=True, kw_only=True, eq=False)
class InitialModel(Message, code=1, kind="INIT", sender="coordinator", receiver="server"):
    """The initial weights of the server's shard, once.

    Attributes:
        shard: the index of the server.
        layout: for each block of the whole model, in order, its name and its shape, as `[name, shape]`.
        steps_per_epoch: the number of the coordinator's batches in an epoch.
        statistics: whether evaluations use the mean of all workers' BatchNorm statistics.
        values: the weights of the shard `[m]`.
    """

    shard: int
    layout: list[list[Any]]
    steps_per_epoch: int
    statistics: bool
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class Description(Message, code=30, kind="INIT", sender="coordinator", receiver="adversary"):
    """What servers are told of the model, to the adversary, once; the fields are as in `InitialModel`.

    The adversary does not need `statistics`.
    """

    layout: list[list[Any]]
    steps_per_epoch: int
    statistics: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Statistics(Message, code=6, kind="STATISTICS", sender="worker", receiver="coordinator"):
    """The worker's BatchNorm running statistics, for the evaluation of a model.

    Attributes:
        round: the round that began with that model.
        values: the running means and variances of all BatchNorm layers `[k]`, of each first the means.
    """

    round: int
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class WriteCheckpoint(
    Message, code=11, kind="CHECKPOINT", sender="server 0",
    receiver="late worker; asynchronous: worker, validator, adversary", answer="PartWritten",
):  # fmt: skip
    """The receiver writes its part of a checkpoint.

    Asynchronous: as soon as it comes; server 0 sends it before it executes the entry at this position of the log, at
    which the servers write their parts. With a quorum, to those only that the model of the round does not tell: a
    worker that still makes its answer writes its part once that is made, and may send all of its partitions.

    Attributes:
        position: the round that begins after the checkpoint; asynchronous: its position in the log, from 1.
        flags: those of checkpoints.
    """

    position: Annotated[int, HeaderField.ROUND]
    flags: Flag


@dataclass(frozen=True, kw_only=True, eq=False)
class PartWritten(
    Message, code=12, kind="PART", sender="every other role but the evaluator", receiver="checkpoint coordinator"
):
    """A part of a checkpoint is written.

    Attributes:
        position: that of the checkpoint, see `WriteCheckpoint`.
        checksum: the SHA-256 of the file of the part, in hexadecimal digits.
    """

    position: Annotated[int, HeaderField.ROUND]
    checksum: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Copy(Message, code=15, kind="COPY", sender="worker", receiver="adversary", answer="CraftedUpdate"):
    """A copy of the update that the worker is about to send.

    Attributes:
        round: the round, or the worker's cycle.
        flags: those that the worker sends with the update; none in an asynchronous run.
        mask: the blocks of the model that are sent `[B]`.
        epoch: the epochs of the run that are over, as far as the worker knows; None if they follow from the round.
        values: these blocks; if the attack acts on encodings, as combiners would decode them.
    """

    round: int
    flags: Flag
    mask: Mask
    epoch: int | None = None
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class CraftedUpdate(Message, code=16, kind="REPLACEMENT", sender="adversary", receiver="worker"):
    """What the worker sends instead of the update that it has shown, or that it sends the update as it is.

    Attributes:
        round: that of the `Copy`; if the adversary could not read the copy, its own round, or 0 in an asynchronous run.
        mask: the blocks that are sent `[B]`, which must be those of the `Copy`: else the worker ends with a `RunError`.
            None, as are the values: the worker sends its update as it is, whatever the round says.
        values: these blocks, with the values of the attack, in the form of the `Copy`.
    """

    round: int
    mask: Mask | None = None
    values: Vector | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class RunEnds(Message, code=31, kind="STOP", sender="server 0", receiver="other servers, adversary"):
    """The run is over.

    Synchronous with a policy of local steps, to all of them: it ends before this round. Asynchronous, to the adversary.

    Attributes:
        round: the round that does not begin; asynchronous: the position of the `Stop` in the log, from 1.
    """

    round: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluate(Message, code=21, kind="EVALUATE", sender="coordinator", receiver="evaluator", answer="Evaluated"):
    """A model to evaluate.

    Attributes:
        round: the round or cycle of the coordinator that began with the model; of a model that the coordinator trained
            itself (`validation.evaluate`), the round or cycle in which it did.
        incarnation: the number of the coordinator's process, if it replaces a lost one; else 0.
        number: how many other models this process had evaluated before.
        values: its parameters, then the BatchNorm statistics to evaluate it with `[d + k]`.
    """

    round: int
    incarnation: int = 0
    number: Count
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluated(Message, code=22, kind="EVALUATED", sender="evaluator", receiver="coordinator"):
    """An evaluation.

    Attributes:
        round: that of the `Evaluate`.
        incarnation: the same.
        number: the same.
        finite: whether all outputs of the network were finite.
        accuracy: the fraction of the samples that are classified rightly, 0 to 1; one whose outputs are not finite
            counts as wrong.
        loss: the mean loss of the samples; `inf` if it is not finite.
        samples: the number of test samples; of a text, of its bytes.
        perplexity: of a text: the exponential of the mean loss, at most e^700; None for other data.
        top5: the fraction of the samples whose class is among the five with the largest outputs, 0 to 1.
        class_accuracy: the accuracy of each class, 0 to 1, by its index in decimal digits; None for a class without
            samples.
    """

    round: int
    incarnation: int = 0
    number: Count
    finite: bool
    accuracy: float
    loss: float
    samples: Count
    perplexity: float | None = None
    top5: float
    class_accuracy: dict[str, float | None]

    @property
    def fields(self) -> dict[str, object]:
        """What the `evaluation` line of a record says of it."""
        fields: dict[str, object] = {"accuracy": self.accuracy, "loss": self.loss, "samples": self.samples}
        if self.perplexity is not None:
            fields["perplexity"] = self.perplexity
        return fields | {"top5": self.top5, "class_accuracy": self.class_accuracy}


@dataclass(frozen=True, kw_only=True, eq=False)
class NotEvaluated(Message, code=32, kind="EVALUATED", sender="evaluator", receiver="coordinator"):
    """A model could not be evaluated, in place of `Evaluated`.

    Attributes:
        round: that of the `Evaluate`.
        incarnation: the same.
        number: the same.
        reason: why, for people.
    """

    round: int
    incarnation: int = 0
    number: Count
    reason: Annotated[str, InNote("lost")]


@dataclass(frozen=True, kw_only=True, eq=False)
class NoMoreModels(Message, code=33, kind="STOP", sender="coordinator or server 0", receiver="evaluator"):
    """No model to evaluate follows: the evaluator ends, and cancels the evaluation under way, if there is one.

    Server 0 says so where the coordinator may be lost: its replacement may have the last model evaluated again.

    Attributes:
        flags: `Flag.SUSPEND` if the run stops at a checkpoint. Without it, all models are evaluated before.
    """

    flags: Flag


@dataclass(frozen=True, kw_only=True, eq=False)
class ClockQuestion(
    Message, code=14, kind="CLOCK", sender="one process of each clock", receiver="rank 0", answer="ClockReading"
):
    """A request for the receiver's clock, with which a traced run compares the clocks of its hosts.

    Attributes:
        number: the index of the question among those that the sender asks in a row.
    """

    number: Annotated[int, HeaderField.ROUND]


@dataclass(frozen=True, kw_only=True, eq=False)
class ClockReading(Message, code=34, kind="CLOCK", sender="rank 0", receiver="one process of each clock"):
    """The sender's clock.

    Attributes:
        number: that of the question.
        clock: the seconds that the sender's monotonic clock showed when the sender handled the question.
    """

    number: Annotated[int, HeaderField.ROUND]
    clock: float
