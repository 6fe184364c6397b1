"""The messages of asynchronous runs: entries of the servers' log, their positions, and the models that answer them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hpcps.numerics.layout import Mask, Vector
from hpcps.protocol.messages.base import ROLES, Count, Flag, HeaderField, InNote, Message, Peer


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelReply(Message, code=35, kind="MODEL", sender="server", receiver="worker, validator"):
    """The server's shard of the model, as the answer to a request; with `Flag.DIFFERENCE` as a difference.

    Attributes:
        request: which of the receiver's requests it answers; 0: the model at the start.
        shard: the number of the server.
        version: how many updates the model holds.
        position: the position in the log of the entry that it answers.
        epoch: the coordinator's epoch, as far as the log knows.
        flags: see `Flag`.
        applied: the blocks of the shard to which values of the entry were added `[B]`; the optimizer of the servers may
            change others, too. None if it is no update.
        values: the elements of the shard, or what the compressor made of their difference; none in the last model of a
            role that does not need it.
    """

    request: Annotated[int, HeaderField.ROUND]
    shard: int
    version: int
    position: Annotated[int, HeaderField.INDEX]
    epoch: int
    flags: Flag
    applied: Annotated[Mask | None, HeaderField.MASK]
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class UpdateRequest(Message, code=36, kind="UPDATE", sender="worker", receiver="validator", answer="ModelReply"):
    """The worker's update; after it, the worker gets the model.

    Attributes:
        request: the number of the worker's request for the model.
        base: the version of the model from which the update was made.
        rate: the learning rate of its local step, for rules that compensate delays; else 0.
        mask: the blocks that are sent `[B]`.
        values: these blocks, or what the compressor made of them.
    """

    request: Annotated[int, HeaderField.ROUND]
    base: Annotated[int, HeaderField.VERSION]
    mask: Mask
    rate: float = 0.0
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class NoUpdate(Message, code=37, kind="ABSENT", sender="worker", receiver="validator", answer="ModelReply"):
    """The worker has no update in this cycle; it gets the model unless `asynchronous.absent = "accumulate"`.

    Attributes:
        request: the number of the worker's request for the model; with "accumulate" that of its last one.
    """

    request: Annotated[int, HeaderField.ROUND]


@dataclass(frozen=True, kw_only=True, eq=False)
class SubmittedEntry(Message):
    """An entry of the log, to each server: all servers execute it at the same position.

    Attributes:
        number: the submitter's count of its entries, from 1.
        shard: the number of the server.
        base: the version of the model from which an update was made; it has no effect in other entries.
        epoch: the epochs of the submitter's own steps that are over; 0 in the `Stop` of a worker.
        rate: the learning rate of an update, see `UpdateRequest`; if a validator filtered it, `asynchronous.alpha`
            multiplies it, as it multiplies the values.
        request: which of the reader's requests the model answers; None: a worker submits it, and `number` says so.
        worker: from a validator: the worker that reads the model; None if the validator itself does.
    """

    number: Annotated[int, HeaderField.ROUND]
    shard: int
    base: Annotated[int, HeaderField.VERSION]
    epoch: Count
    rate: float = 0.0
    request: Count | None = None
    worker: Count | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class ApplyUpdate(
    SubmittedEntry, code=7, kind="APPLY", sender="validator", receiver="server", answer="ModelReply, to the worker"
):
    """The blocks of a worker's update that the rule applies; the server adds them and sends the worker the model.

    Attributes:
        mask: the blocks of the shard that are applied `[B]`.
        values: these blocks, as the rule leaves them.
    """

    mask: Mask
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class UpdateEntry(SubmittedEntry, code=38, kind="UPDATE", sender="worker", receiver="server", answer="ModelReply"):
    """A worker's update in a run without validators, which the servers filter.

    Attributes:
        mask: the blocks of the shard that are sent `[B]`.
        values: these blocks, or what the compressor made of them.
    """

    mask: Mask
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class Read(SubmittedEntry, code=8, kind="READ", sender="worker, validator", receiver="server", answer="ModelReply"):
    """The reader gets the model."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Stop(
    SubmittedEntry, code=9, kind="STOP", sender="coordinator", receiver="server", answer="ModelReply, to every reader"
):
    """The coordinator has finished its epochs; the last model has values for it alone."""


def _pack(peer: Peer) -> tuple[int, int]:
    return ROLES.index(peer.role), peer.index


def _unpack(packed: tuple[int, int]) -> Peer:
    return Peer(ROLES[packed[0]], packed[1])


@dataclass(frozen=True, kw_only=True, eq=False)
class Ordered(Message, code=10, kind="ORDER", sender="server 0", receiver="other servers"):
    """The position of an entry in the log; an entry of server 0 itself is a checkpoint.

    Attributes:
        number: the submitter's number of the entry; 0 for a checkpoint.
        submitter: the submitter.
        position: the position of the entry in the log, from 1.
        version: how many updates the model holds with it.
        epoch: the coordinator's epoch, as far as the log knows.
        flags: those of a checkpoint.
    """

    number: Annotated[int, HeaderField.ROUND]
    submitter: Annotated[Peer, InNote("of", _pack, _unpack, tuple[Count, Count])]
    position: Annotated[int, HeaderField.INDEX]
    version: int
    epoch: Count
    flags: Flag
