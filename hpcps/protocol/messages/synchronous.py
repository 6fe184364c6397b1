"""The messages of synchronous rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hpcps.numerics.layout import Mask, Vector
from hpcps.protocol.messages.base import Flag, HeaderField, Message


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
        shard: the number of the server.
        partition: the number of the partition among those of the server.
        flags: see `Flag`.
        epoch: the epochs that have ended when the round begins, if an attack begins at an epoch; with a policy of local
            steps from server 0 alone; else None.
        progress: the epochs of the run so far, such as 3.4, from server 0 with a policy of local steps; else None.
        values: the elements of the partition, or what the compressor made of their difference.
    """

    round: int
    shard: int
    partition: int
    flags: Flag
    epoch: int | None = None
    progress: float | None = None
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class Update(
    Message, code=3, kind="UPDATE", sender="worker", receiver="its combiners", answer="ModelPartition, Credit"
):
    """A partition of the worker's update, once its local steps are done.

    Attributes:
        round: the round of the model that it answers, which is an earlier one if the worker is late.
        shard: the number of the receiving server; 0 to a validator, which gets the whole update.
        partition: the number of the partition, in the order in which they are sent to the receiver.
        flags: those of checkpoints, of the model that it answers.
        mask: the blocks of the partition that are sent `[B]`.
        position: with `survive.workers`, to the combiner that decides who is in a round: where the worker is after this
            update: under `data` its local steps, passes over its shard, and batches of the pass; under the name of each
            random stream, as `stream_positions` returns it. Else None.
        values: these blocks, or what the compressor made of them.
    """

    round: int
    shard: int
    partition: int
    flags: Flag
    mask: Mask
    position: dict[str, list[int]] | None = None
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class Absent(
    Message, code=4, kind="ABSENT", sender="worker", receiver="its combiners, adversary", answer="ModelPartition"
):
    """The worker has no update: it does not take part, has abandoned the round, or its attack withholds the update.

    Attributes:
        round: the round of the model that it answers; to the adversary of an asynchronous run, the worker's cycle.
        flags: those of checkpoints, of the model that it answers.
        abandoned: the local steps after which the worker abandoned the round; None if it did not.
        position: as in `Update`.
    """

    round: int
    flags: Flag
    abandoned: int | None = None
    position: dict[str, list[int]] | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class CombinedUpdate(
    Message, code=5, kind="COMBINED", sender="validator", receiver="server", answer="ModelPartition, Credit"
):
    """A partition of the combined update of the validator's workers.

    Attributes:
        round: the round that combines it.
        shard: the number of the server.
        partition: the number of the partition among those of the server.
        flags: those of checkpoints, of the model that it answers.
        answered: in the first partition, with a quorum or `survive.workers`: the workers of this validator that get the
            next model; else None.
        lost: in the first partition: the workers of this validator that were lost between the closing of its last round
            and that of this one, as often as that.
        values: the elements.
    """

    round: int
    shard: int
    partition: int
    flags: Flag
    answered: tuple[int, ...] | None = None
    lost: tuple[int, ...] = ()
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class Credit(Message, code=13, kind="CREDIT", sender="combiner, server", receiver="worker, validator"):
    """How many partitions of its answer the receiver may send; the first `WINDOW`, which is 4, need no credit.

    A combiner that sends partitions of the next model does not send it, as each of them is a credit, too; but it does
    before a checkpoint, and for the rest of an answer that no round combines.

    Attributes:
        round: the round of the answer.
        partitions: the number of its partitions that may be sent in all, with those that were sent before.
    """

    round: int
    partitions: Annotated[int, HeaderField.PARTITION]


@dataclass(frozen=True, kw_only=True, eq=False)
class StepsQuery(Message, code=17, kind="QUERY", sender="worker, validator", receiver="server 0", answer="StepsAnswer"):
    """With a policy of local steps: the sender asks whether to take further steps.

    One that cannot be used is answered by 0 steps.

    Attributes:
        round: the round.
        k: ESync's k, the local steps of the round so far; 0 says that the round begins, and is not answered.
        c: ESync's c, the seconds per step of those since the last query; None with k = 0.
    """

    round: int
    k: int
    c: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class StepsAnswer(Message, code=18, kind="ANSWER", sender="server 0", receiver="worker, validator"):
    """How many local steps the receiver may take in the round: `k` and `steps` further ones.

    It asks after each step, or, if the policy waits, after all that it may take. The latest answer counts.

    Attributes:
        round: the round.
        k: that of the query; 0 after a query that could not be used.
        steps: the number of further steps; 0: it sends its update.
    """

    round: int
    k: int
    steps: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Closed(Message, code=23, kind="CLOSED", sender="server 0", receiver="other servers"):
    """With a quorum or `survive.workers`, and without validators: the round is closed.

    Attributes:
        round: the round.
        arrived: the workers whose answers the round combines, in order of arrival; absent ones have none to combine.
        answered: the workers that get the next model: those, and others whose answers have come, but enter no model;
            without those that are lost, and with replacements.
        everyone: whether the round waited for every worker.
        lost: the workers that were lost between the closing of the last round and that of this one, as often as that;
            what they have sent and no round combines is dropped.
    """

    round: int
    arrived: tuple[int, ...]
    answered: tuple[int, ...]
    everyone: bool
    lost: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Complete(Message, code=47, kind="COMPLETE", sender="other servers", receiver="server 0", answer="Closed"):
    """With `survive.workers` and without validators: the answer of a worker has come here.

    Server 0 does not close a round before all servers have the answers that it combines, so that a lost worker's update
    enters all shards or none.

    Attributes:
        round: the round of the answer.
        worker: the index of the worker.
    """

    round: int
    worker: Annotated[int, HeaderField.INDEX]


@dataclass(frozen=True, kw_only=True, eq=False)
class TakePart(
    Message, code=48, kind="TAKE_PART", sender="combiner that closes rounds", receiver="replacement of a worker"
):
    """The receiver takes the place of a lost worker.

    Attributes:
        round: the round of the first model that it gets; models of earlier rounds were for its predecessor.
        incarnation: the number of the replacement; a message that has another one was for a predecessor, too.
        position: where the predecessor was after its last answer that entered a round; None: at the beginning.
    """

    round: int
    incarnation: Annotated[int, HeaderField.INDEX]
    position: dict[str, list[int]] | None = None


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
        round: the round of the answer.
        age: the age of the worker's model at the checkpoint, in seconds.
    """

    round: int
    age: float
