"""The messages of synchronous rounds."""

from __future__ import annotations

from dataclasses import dataclass
from struct import pack, unpack
from typing import Annotated, Any

from pydantic import Field

from hpcps.numerics.layout import Mask, Vector
from hpcps.protocol.messages.base import Flag, HeaderField, InNote, Message


def _fixed_length(number: float) -> str:
    """Return a text whose length does not depend on the number, because records count the bytes of messages."""
    return pack("<d", number).hex()


def _number(text: str) -> float:
    (number,) = unpack("<d", bytes.fromhex(text))
    return float(number)


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelPartition(
    Message,
    code=2,
    kind="MODEL",
    sender="server",
    receiver="worker, validator",
    answer="Update, Absent, CombinedUpdate",
):
    """A partition of the server's shard of a model; with `Flag.DIFFERENCE` as a difference.

    To a role that sends partitions to this server it is also a credit: the server has combined the partition of this
    number.

    Attributes:
        round: the round that begins with the model.
        shard: the index of the server.
        partition: the index of the partition among those of the server.
        flags: receivers unite those of all partitions of a model. Those of checkpoints come from server 0 alone. With a
            policy of local steps `Flag.LAST` and `Flag.STATISTICS` may do so, too, as the others do not count epochs.
        epoch: the epochs of the run that are over when the round begins. With a policy of local steps it comes from
            server 0, and is None from the others; without one it comes from every server if the attack has
            `from_epoch` > 0, else it is None.
        progress: with a policy of local steps, from server 0: the epochs of the run so far, such as 3.4, by the steps
            that it had counted when it sent this partition; else None.
        validators: with `survive.validators`, from server 0: the indices of the validators that get this model, in
            ascending order; they say who serves which worker, see `Roster.validator_of`. Else None.
        workers: with `survive.batch = "constant"`, from server 0: the indices of the workers that get this model, in
            ascending order; they take the samples of the others, see `shared_batches`. Else None.
        values: the elements of the partition, or what the compressor made of their difference.
    """

    round: int
    shard: int
    partition: int
    flags: Flag
    epoch: int | None = None
    progress: float | None = None
    validators: tuple[int, ...] | None = None
    workers: tuple[int, ...] | None = None
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class Update(
    Message, code=3, kind="UPDATE", sender="worker", receiver="its combiners", answer="ModelPartition, Credit"
):
    """A partition of the worker's update, once its local steps are done.

    Attributes:
        round: the round of the model that it answers, which is an earlier one if the worker is late.
        shard: the index of the receiving server; 0 to a validator, which gets the whole update.
        partition: the index of the partition, in the order in which they are sent to the receiver.
        flags: those of checkpoints, of the model that it answers; none if it is sent again after a resume.
        mask: the blocks of the partition that are sent `[B]`.
        position: with `survive.workers`, to the combiner that decides who is in a round: where the worker is after this
            update. Under `data`: the numbers of its local steps, of its passes over its shard, and of the batches of
            the pass under way, or its samples with `survive.batch = "constant"`. Under the name of each random stream
            of the update, such as `skipping`: numbers that only `go_to_positions` interprets. Else None.
        commitment: with audits, in the last partition: the SHA-256 of the worker's state after this update, see
            `Commitments`. Else None.
        values: these blocks, or what the compressor made of them.
    """

    round: int
    shard: int
    partition: int
    flags: Flag
    mask: Mask
    position: dict[str, list[int]] | None = None
    commitment: str | None = None
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class Absent(
    Message, code=4, kind="ABSENT", sender="worker", receiver="its combiners, adversary", answer="ModelPartition"
):
    """The worker has no update: it does not take part, has abandoned the round, or its attack withholds the update.

    Attributes:
        round: the round of the model that it answers; to the adversary of an asynchronous run, the worker's cycle.
        flags: as in `Update`; none in an asynchronous run.
        abandoned: the number of local steps after which the worker abandoned the round; None if it did not. To the
            adversary always None.
        position: as in `Update`; to the adversary always None.
        commitment: with audits, the SHA-256 of the worker's state after its local steps; to the adversary always None.
    """

    round: int
    flags: Flag
    abandoned: int | None = None
    position: dict[str, list[int]] | None = None
    commitment: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class ProbeStep(Message, code=53, kind="PROBE", sender="worker", receiver="its validator"):
    """With audits: what a step on a batch that all processes have in common gives here, when the worker starts.

    Attributes:
        checksum: the SHA-256 of the state after the step.
    """

    checksum: str


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditRequest(Message, code=54, kind="AUDIT", sender="validator", receiver="worker", answer="AuditedState"):
    """With audits: the receiver hands over its state before its local steps of a round.

    The update of the round has come, and its combined update is not sent before the state has come.

    Attributes:
        round: the round.
    """

    round: int


@dataclass(frozen=True, kw_only=True, eq=False)
class AuditedState(Message, code=55, kind="AUDITED", sender="worker", receiver="its validator"):
    """With audits: the state of a worker before its local steps of a round, see `Commitments`.

    Before the run stops at a checkpoint all workers send it after their updates, without being asked.

    Attributes:
        round: the round.
        steps: the number of its local steps.
        facts: the facts of the state.
        arrays: the arrays of the state, in the order of the payload: name, type and shape of each.
        values: the bytes of the arrays, one after another, filled up with zeros to whole elements; see `PackedState`.
    """

    round: int
    steps: Annotated[int, HeaderField.INDEX]
    facts: dict[str, Any]
    arrays: list[list[Any]]
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class CombinedUpdate(
    Message, code=5, kind="COMBINED", sender="validator", receiver="server", answer="ModelPartition, Credit"
):
    """A partition of the combined update of the validator's workers.

    Attributes:
        round: the round in which the validator combines the updates.
        shard: the index of the server.
        partition: the index of the partition among those of the server.
        flags: those of checkpoints, of the validator's model of the round.
        answered: in the first partition, with a quorum or `survive.workers`: the indices of those of the validator's
            workers that get the next model, in ascending order: as in `Closed`. Else None.
        lost: in the first partition, with `survive.workers`: the indices of those of the validator's workers that were
            lost between the closing of its last round and that of this one, as in `Closed`. Else empty.
        positions: with `survive.validators`, in the first partition, to server 0: `Update.position` of the answers that
            the combined update contains, by the names of their workers, such as `worker-3`. Else None.
        values: the elements of the partition of the combined update.
    """

    round: int
    shard: int
    partition: int
    flags: Flag
    answered: tuple[int, ...] | None = None
    lost: tuple[int, ...] = ()
    positions: dict[str, dict[str, list[int]]] | None = None
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class Credit(Message, code=13, kind="CREDIT", sender="combiner, server", receiver="worker, validator"):
    """How many partitions of its answer the receiver may send; the first `WINDOW`, which is 4, need no credit.

    A combiner that sends partitions of the next model does not send it, as each of them is a credit, too; but it does
    before a checkpoint, and for the rest of an answer that no round combines.

    Attributes:
        round: the round of the model that the answer is to.
        partitions: how many partitions of the answer may be sent to this sender in all, with those that were sent.
    """

    round: int
    partitions: Annotated[int, HeaderField.PARTITION]


@dataclass(frozen=True, kw_only=True, eq=False)
class StepsQuery(Message, code=17, kind="QUERY", sender="worker, validator", receiver="server 0", answer="StepsAnswer"):
    """With a policy of local steps: the sender asks whether to take further steps.

    One that cannot be used is answered by 0 steps.

    Attributes:
        round: the round of the sender.
        k: ESync's k, the number of local steps of the round so far; 0 says that the round begins, and is not answered.
        c: ESync's c, the mean seconds of a local step, over those since the last query; None with k = 0.
    """

    round: int
    k: int
    c: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class StepsAnswer(Message, code=18, kind="ANSWER", sender="server 0", receiver="worker, validator"):
    """How many local steps the receiver may take in the round: `k` and `steps` further ones.

    It asks after each step, or, if the policy waits, after all that it may take. The latest answer counts.

    Attributes:
        round: the round to which it applies: that of the query; if the query could not be used, mostly server 0's own.
        k: that of the query; 0 if the query could not be used.
        steps: the number of further local steps; 0: the receiver sends its update.
    """

    round: int
    k: int
    steps: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Closed(Message, code=23, kind="CLOSED", sender="server 0", receiver="other servers"):
    """With a quorum or `survive.workers`, and without validators: the round is closed.

    With `survive.validators` it closes the round of the validators, and the indices below are theirs. Server 0 sends it
    once more if the coordinator is replaced after the last round: the other servers then send the last model to the
    replacement.

    Attributes:
        round: the round.
        flags: the flags of checkpoints in the model that began the round. Answers contain them, too, but all who got
            that model may be lost.
        arrived: the indices of the workers whose answers enter the round, also of those that sent `Absent`; by the time
            at which the first message of the answer arrived at server 0, those of the same time by index.
        answered: the indices of the workers that get the next model, in ascending order: those in `arrived`, others
            whose answers have come but enter no model, and replacements that have started; without those that are lost.
        everyone: whether the round had to wait for every worker (`Flag.EVERYONE`); False also if all answered anyway.
        lost: the indices of the workers that were lost between the closing of the last round and that of this one, in
            ascending order; one appears once for each loss, as its replacement may be lost, too. What they have sent
            and no round combines is dropped.
    """

    round: int
    arrived: tuple[int, ...]
    answered: tuple[int, ...]
    everyone: bool
    lost: tuple[int, ...] = ()
    flags: Flag = Flag.NONE


@dataclass(frozen=True, kw_only=True, eq=False)
class Complete(Message, code=47, kind="COMPLETE", sender="other servers", receiver="server 0", answer="Closed"):
    """With `survive.workers` and without validators: the answer of a worker has come here.

    Server 0 does not close a round before all servers have the answers that it combines, so that a lost worker's update
    enters all shards or none. With `survive.validators` it is the answer of a validator.

    Attributes:
        round: the round of the model that the answer is to.
        worker: the index of the worker, or of the validator.
    """

    round: int
    worker: Annotated[int, HeaderField.INDEX]


@dataclass(frozen=True, kw_only=True, eq=False)
class TakePart(Message, code=48, kind="TAKE_PART", sender="combiner", receiver="replacement of a worker or validator"):
    """The receiver takes the place of a lost worker; in a synchronous run the combiner that closes rounds says so.

    In an asynchronous run server 0 says so, and with `survive.validators` to the replacement of a validator, too.

    Attributes:
        round: the round of the first model that it gets; in an asynchronous run, the number of the request that this
            model answers, which nobody sends. Models of earlier rounds or requests were for its predecessor.
        incarnation: the number of the replacement: 1 for the worker's first one. A message that has another number was
            for a predecessor, too.
        position: `Update.position` of the last answer of a predecessor that entered the model. None if none did:
            the replacement begins with the first batch, and each random stream at its beginning. None for a
            validator of a synchronous run, whose batches follow from the round; in an asynchronous run as
            `SubmittedEntry.position`.
        evaluated: to the replacement of the coordinator: how many epochs have a recorded evaluation; else 0.
        since: in an asynchronous run with `survive.validators`, to a worker: the position of the entry of the log since
            which the validator serves it, see `ServedBy`.
        validator: to such a worker: the index of its validator. Else None.
    """

    round: int
    incarnation: Annotated[int, HeaderField.INDEX]
    position: dict[str, list[int]] | None = None
    evaluated: int = 0
    since: int = 0
    validator: int | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Serve(Message, code=49, kind="SERVE", sender="server 0", receiver="validator"):
    """With `survive.validators`: from a round on, the receiver serves workers that it did not serve before.

    The model of the round, which comes later, says which validators are there, and so which workers these are. They get
    no model of this round, but that of the next one, once the receiver has closed this round.

    Attributes:
        round: the round.
        positions: `CombinedUpdate.positions` of these workers, after their last answers that entered the model. If one
            is lost, its replacement goes on there.
    """

    round: int
    positions: dict[str, dict[str, list[int]]]


@dataclass(frozen=True, kw_only=True, eq=False)
class EndWait(Message, code=65, kind="END WAIT", sender="server 0", receiver="validator"):
    """With `survive.workers`: the run is to stop, so a round does not wait for replacements.

    It closes, because the model of the next round announces the checkpoint.

    Attributes:
        round: the round.
    """

    round: int


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationRecorded(
    Message, code=50, kind="RECORDED", sender="coordinator; server 0", receiver="server 0; other servers"
):
    """If the coordinator may be lost: an evaluation is recorded. The servers end once that of the last epoch is.

    Server 0, which the coordinator tells, tells the others.

    Attributes:
        epoch: the last epoch that it is of.
    """

    epoch: Annotated[int, HeaderField.INDEX]


@dataclass(frozen=True, kw_only=True, eq=False)
class Abandon(Message, code=24, kind="ABANDON", sender="combiner that closes rounds", receiver="late worker"):
    """With a quorum: the round is closed; the worker leaves its local steps.

    Attributes:
        round: the round of the model that the worker works on, which may be earlier than the closed one.
    """

    round: int


@dataclass(frozen=True, kw_only=True, eq=False)
class SendAgain(Message, code=28, kind="OWED", sender="server 0", receiver="late worker", answer="Update, Absent"):
    """With a quorum, after a resume: the worker sends the answer that its part of the checkpoint contains.

    Attributes:
        round: the round of the model that the answer is to.
        age: seconds from the sending of that model, of its first partition to any reader, to the checkpoint.
    """

    round: int
    age: Annotated[float, InNote("age", _fixed_length, _number, Annotated[str, Field(pattern="^[0-9a-f]{16}$")])]
