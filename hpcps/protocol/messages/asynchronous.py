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
        request: the number of the receiver's request that it answers, from 1; 0: the model with which the run begins or
            resumes. In the last model, which all readers get, that of the coordinator's request.
        shard: the index of the server.
        version: the number of `ApplyUpdate` and `UpdateEntry` entries that the servers have executed as updates, up to
            `position`, also those of which no block was applied. They execute a refused update as a `Read`, which does
            not count, and a validator that rejects all blocks sends a `Read`.
        position: the position in the log of the entry that it answers, from 1; for request 0 that of the last entry
            executed, which is 0 in a new run.
        epoch: the epochs of the coordinator's own steps that are over, by its entries up to `position`.
        flags: `Flag.LAST`, `Flag.DIFFERENCE`, or none.
        applied: the blocks of the shard to which values of the entry were added `[B]`; the optimizer of the servers may
            change others, too. None if the entry is no update, was refused, or is in a buffer. No role uses it so far.
        values: the elements of the shard `[m]`, or what the compressor made of their difference; no elements in the
            last model, except to the coordinator.
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
        request: the number of the worker's request for the model, from 1; a resumed run begins again with 1.
        base_version: the version of the model from which the update was made, see `ModelReply`.
        rate: the learning rate of its local step, for rules that compensate delays; else 0.
        position: with `survive.workers`, where the worker is after this update, as in `Update`; else None.
        since: with `survive.validators`, the position of the entry of the log since which the receiver serves the
            worker, as far as the worker knows, see `ServedBy`; 0 before the first such entry.
        mask: the blocks of the model that are sent `[B]`.
        values: these blocks, or what the compressor made of them.
    """

    request: Annotated[int, HeaderField.ROUND]
    base_version: Annotated[int, HeaderField.VERSION]
    mask: Mask
    rate: float = 0.0
    position: dict[str, list[int]] | None = None
    since: Count = 0
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class NoUpdate(Message, code=37, kind="ABSENT", sender="worker", receiver="validator", answer="ModelReply"):
    """The worker has no update in this cycle; it gets the model unless `asynchronous.absent = "accumulate"`.

    Attributes:
        request: the number of the worker's request for the model, from 1; with "accumulate" that of its last one, which
            is 0 before the first.
        position: as in `UpdateRequest`; None with "accumulate", as the steps of the cycle enter a later update.
        since: as in `UpdateRequest`.
    """

    request: Annotated[int, HeaderField.ROUND]
    position: dict[str, list[int]] | None = None
    since: Count = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class SubmittedEntry(Message):
    """An entry of the log, to each server: all servers execute it at the same position.

    Attributes:
        number: the submitter's count of its entries, from 1; a resumed run begins again with 1.
        shard: the index of the server.
        base_version: the version of the model from which an update was made; it has no effect in other entries.
        epoch: the epochs of the submitter's own steps that are over; 0 in the `Stop` of a worker.
        rate: the learning rate of an update, see `UpdateRequest`; from a validator it is multiplied by the same
            `asynchronous.alpha` as the values. It has no effect in other entries.
        request: from a validator: the number of the reader's request that the model answers. None from a worker, which
            is the reader itself: `number` is also that of its request.
        worker: from a validator: the index of the worker that reads the model; None if the validator itself does. Also
            None from a worker.
        position: with `survive.workers` and without validators, or with `survive.validators`: where the reader is after
            this entry, as in `Update`; of a validator that reads the model itself, the numbers under `data` alone. Else
            None. Of the entry at which the replacement of a worker begins: where it begins.
        since: from a validator, of an entry of a worker: as in the worker's `UpdateRequest`. Server 0 gives the entry
            a place only if the validator still serves the worker since then.
    """

    number: Annotated[int, HeaderField.ROUND]
    shard: int
    base_version: Annotated[int, HeaderField.VERSION]
    epoch: Count
    rate: float = 0.0
    request: Count | None = None
    worker: Count | None = None
    position: dict[str, list[int]] | None = None
    since: Count = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class ApplyUpdate(
    SubmittedEntry, code=7, kind="APPLY", sender="validator", receiver="server", answer="ModelReply, to the worker"
):
    """The blocks of a worker's update that the rule applies; the server adds them and sends the worker the model.

    Attributes:
        mask: the blocks of the shard that are applied `[B]`.
        values: these blocks as the rule leaves them, multiplied by `asynchronous.alpha` of the epoch.
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
    """The reader gets the model.

    Attributes:
        incarnation: the number of the replacement of a lost worker that gets its first model; else 0.
    """

    incarnation: Count = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Stop(
    SubmittedEntry, code=9, kind="STOP", sender="coordinator", receiver="server", answer="ModelReply, to every reader"
):
    """The coordinator has finished its epochs; the last model has values for it alone."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EntryArrived(Message, code=56, kind="ARRIVED", sender="other servers", receiver="server 0", answer="Ordered"):
    """With `survive.validators`: an entry of a validator has come here.

    Server 0 gives no entry a place before all servers have it, so that a lost validator's update enters all shards or
    none.

    Attributes:
        number: the validator's number of the entry.
        validator: the index of the validator.
        incarnation: the number of the process that has sent it: 0, or that of a replacement.
    """

    number: Annotated[int, HeaderField.ROUND]
    validator: Annotated[int, HeaderField.INDEX]
    incarnation: Count = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Admitted(Message, code=57, kind="ADMITTED", sender="server 0", receiver="other servers"):
    """With `survive.validators`: an entry of server 0, at which the replacement of a validator gets its first model.

    The receiver drops the entries of the predecessor that have no place, and the replacement numbers its own from 1.
    After the `Stop`, the replacement of the coordinator gets the last model.

    Attributes:
        validator: the index of the validator.
        incarnation: the number of the replacement.
        request: the number of the request that the model answers, which nobody sends.
        position: the position of the entry in the log, from 1; after the `Stop`, that of the `Stop`.
        version: that of the model, see `ModelReply`.
        epoch: as in `Ordered`.
        validators: as in `Ordered`.
    """

    validator: Annotated[int, HeaderField.INDEX]
    incarnation: Count
    request: Annotated[int, HeaderField.ROUND]
    position: int
    version: int
    epoch: Count
    validators: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class ServeWorkers(Message, code=63, kind="SERVE", sender="server 0", receiver="validator"):
    """With `survive.validators`: an entry of the log changes which workers the receiver serves.

    Attributes:
        since: the position of the entry.
        requests: the last requests of the workers that the receiver serves from then on, and did not serve before, that
            the servers have answered, by the names of the workers.
        begun: of these workers, the numbers of their last replacements that have got a model.
        positions: their positions, as `Serve.positions`.
        released: the indices of the workers that another validator serves from then on. What the receiver has of them,
            and has no place in the log, does not count.
    """

    since: Annotated[int, HeaderField.INDEX]
    requests: dict[str, int]
    begun: dict[str, int]
    positions: dict[str, dict[str, list[int]]]
    released: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedBy(
    Message, code=64, kind="SERVED BY", sender="server 0", receiver="worker", answer="UpdateRequest, NoUpdate"
):
    """With `survive.validators`: an entry of the log says that another validator serves the receiver from then on.

    The worker sends it what is not answered, and all that follows.

    Attributes:
        since: the position of the entry.
        validator: the index of the validator, which may also be a replacement.
    """

    since: Annotated[int, HeaderField.INDEX]
    validator: int


def _pack(peer: Peer) -> tuple[int, int]:
    return ROLES.index(peer.role), peer.index


def _unpack(packed: tuple[int, int]) -> Peer:
    return Peer(ROLES[packed[0]], packed[1])


@dataclass(frozen=True, kw_only=True, eq=False)
class Ordered(Message, code=10, kind="ORDER", sender="server 0", receiver="other servers"):
    """The position of an entry in the log; an entry of server 0 itself is a checkpoint, or has `validators`.

    Server 0 gives no place to the entry of a validator that no longer serves the reader: a later one of the validator
    then has the next place.

    Attributes:
        number: the submitter's number of the entry, from 1; 0 for one of server 0.
        submitter: the role that has sent the entry to all servers; server 0 for its own.
        position: the position of the entry in the log, from 1.
        version: that of the model after the entry, see `ModelReply`. If the entry is an update and this is also the
            version before it, server 0 has refused the update: all servers execute it as a `Read`.
        epoch: the epochs of the coordinator's own steps that are over, by its entries up to this one.
        flags: those of a checkpoint; none for other entries.
        validators: with `survive.validators`, of an entry that changes who serves which worker: the indices of the
            validators that are there from then on, see `Roster.validator_of`. Else None.
    """

    number: Annotated[int, HeaderField.ROUND]
    submitter: Annotated[Peer, InNote("of", _pack, _unpack, tuple[Count, Count])]
    position: Annotated[int, HeaderField.INDEX]
    version: int
    epoch: Count
    flags: Flag
    validators: tuple[int, ...] | None = None
