"""The messages between roles: a checked header, and a payload of contiguous sent blocks.

The header is sent separately from the payload, so that the payload goes from the sender's buffer to the receiver's
without a copy, also between devices. Frame of a header (little-endian): magic, version of the frame, kind, sender's
role, flags, sender's index, run id, round, model version, log index, shard, partition, number of mask bits, note bytes,
payload bytes; then the packed block mask; then the note (JSON).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.layout import Mask, Vector

ROLES = ("server", "validator", "worker", "adversary", "evaluator")

_MAGIC = b"HPS\x01"
_FRAME_VERSION = 3
_FRAME = struct.Struct("<4sBBBBI10sQQQIIIIQ")


class Peer(NamedTuple):
    """One process of the run: its role and index. A tuple is hashed and compared fast, which each message needs."""

    role: str
    index: int  # type: ignore[assignment]  # not the method of tuples

    @staticmethod
    def parse(name: str) -> Peer:
        """Return the process of a name such as `worker-3`."""
        role, _, index = name.rpartition("-")
        return Peer(role, int(index))

    def __str__(self) -> str:
        return f"{self.role}-{self.index}"


NOBODY = Peer("", 0)
"""The sender of a message that its role has not sent yet."""


class Kind(IntEnum):
    """The kind of a message."""

    INIT = 1
    """To a server: the initial weights of its shard; the note holds the layout, the steps of an epoch, and whether
    BatchNorm statistics are averaged. The adversary gets one without weights. In a collective exchange: to the next
    worker, all initial weights."""
    MODEL = 2
    """From a server: its shard of a model, or a partition of it; with `Flag.DIFFERENCE` as a difference."""
    UPDATE = 3
    """From a worker: its sent blocks."""
    ABSENT = 4
    """From a worker: it does not participate in a round or cycle. It goes to its combiners and to the adversary."""
    COMBINED = 5
    """From a validator: the combined update of its workers, for one shard."""
    STATISTICS = 6
    """From a worker to the process that evaluates: its BatchNorm running statistics."""
    APPLY = 7
    """Asynchronous, from a validator: the accepted blocks of a worker's update, for one shard. The server adds them to
    its shard and sends the model to the worker."""
    READ = 8
    """Asynchronous: the sender requests the model."""
    STOP = 9
    """Asynchronous: the coordinator has finished its epochs. Server 0 passes it on to the adversary. Synchronous
    with a policy of local steps, from server 0 to the other servers and the adversary: the run ends before this
    round. From the coordinator to the evaluator: no model follows."""
    ORDER = 10
    """Asynchronous, from server 0 to the other servers: the position of an entry in the log."""
    CHECKPOINT = 11
    """Asynchronous, from server 0: write your part of the checkpoint at this position of the log. With a quorum, from
    server 0 to a late worker: write your part of the checkpoint of this round once your answer is made, all of whose
    partitions you may send."""
    PART = 12
    """To the keeper of checkpoints: a part of a checkpoint is written; the note holds its checksum."""
    CREDIT = 13
    """From a combiner: the number of partitions of a round's update or combined update that the receiver of this
    message may send. A combiner that sends partitions of the next model does not send it: these permit the same."""
    CLOCK = 14
    """Before a run: a request for the receiver's clock. The note of the answer holds the seconds of its monotonic
    clock."""
    COPY = 15
    """From a worker to the adversary: a copy of the update that it is about to send, its blocks of the whole vector."""
    REPLACEMENT = 16
    """From the adversary to a worker, as the answer to a COPY: send the blocks of this message instead; without a mask:
    send the update as it is."""
    QUERY = 17
    """To server 0, with a policy of local steps: the note holds `k`, the local steps of the round so far, and `c`, the
    seconds per step of those since the last QUERY. With k = 0 the round begins, and there is no answer."""
    ANSWER = 18
    """From server 0, as the answer to a QUERY: the note holds its `k`, and the number of `steps` that the receiver may
    take before it asks again; 0: it sends its update."""
    PARTIAL = 19
    """Ring: from a worker to the next: the sum of some updates, for a piece of a chunk of the vector."""
    CHUNK = 20
    """Ring: from a worker to the next: a piece of a chunk of the next model."""
    EVALUATE = 21
    """From the coordinator to the evaluator: a model to evaluate: its parameters, then its BatchNorm statistics."""
    EVALUATED = 22
    """From the evaluator to the coordinator, as the answer to an EVALUATE: the note holds the evaluation."""
    CLOSED = 23
    """With a quorum and without validators, from server 0 to the other servers: the round is closed. The note holds
    `arrived`, the workers that are in, in order of arrival; `answered`, those that get the next model; and `everyone`,
    whether the round waits for all."""
    ABANDON = 24
    """With a quorum, from the combiner that closes rounds to a late worker: leave the local steps of this round."""
    DECLARE = 25
    """Session: from a worker to a holder: the note describes the tensor with the key `index`."""
    ABORT = 26
    """Session: from a process to everyone: the note holds the `reason` why the session cannot go on."""
    LEAVE = 27
    """Session: from a process to everyone: it ends; the note holds its `error` if it failed."""
    OWED = 28
    """With a quorum, from server 0 to a worker that was late at the checkpoint from which the run resumed: send the
    answer that your part contains; the note holds the `age` of its model at the checkpoint, in seconds."""
    ALIVE = 29
    """Session: from a process that has ended its part to one that has not: give a sign of life. The answer is the same
    message, with `Flag.LAST`."""


class Flag(IntFlag):
    """Additional properties of a message."""

    NONE = 0
    LAST = 1
    """The model is final: no round begins with it."""
    STATISTICS = 2
    """Workers send their BatchNorm statistics to the process that evaluates this model."""
    SNAPSHOT = 4
    """Every role writes a checkpoint after this round; roles that send to servers forward the flag to them."""
    SUSPEND = 8
    """Every role ends after that checkpoint."""
    EVERYONE = 16
    """With a quorum: the round that begins with the model waits for every worker."""
    DIFFERENCE = 32
    """The payload is the encoded difference to the model that the receiver got last."""


class MalformedMessageError(ValueError):
    """The received bytes are not a message of hpcps; the text is the reason, in one line."""


@dataclass(frozen=True)
class Message:
    """A header and its payload.

    Attributes:
        kind: its kind.
        sender: the role that sends it; `MessagingRole` states it, and the run.
        run: the id of the run that it belongs to.
        round: a number whose meaning depends on the kind; see the table.
        shard: the server shard that the payload belongs to, or the chunk of the ring; 0 if the payload is of the whole
            vector.
        flags: see `Flag`.
        mask: the blocks that the payload holds `[B]`; None if the receiver knows them. Session: a bit for each
            slot from `partition` on that the message is about.
        note: small additional values, JSON.
        payload: float32 `[m]`. The sender must not change it before the receiver has answered. So a received payload is
            valid and constant until then: an update until the next model is sent to its worker, and a combined update
            likewise; a copy, until the adversary answers; a model to evaluate, until the evaluator answers; an
            asynchronous model, until its reader asks for the next one; an asynchronous validator's part of an update,
            until the servers answer its own next request. The receiver must not write to it.
        version: asynchronous: the version of the model that a MODEL holds, or from which an update was computed.
        index: asynchronous: the position in the servers' log of the entry that is ordered or answered; ring: the number
            of updates in a sum; session: the bucket; of a DECLARE, the key of the tensor.
        partition: synchronous: the number of the partition, in the order in which the partitions between this sender
            and receiver are sent, or within the chunk of the ring; of a CREDIT, the number of partitions that may be
            sent; session: the first slot.

    The meaning of `round`:

    | Kind | Synchronous | Asynchronous |
    |---|---|---|
    | INIT | 0 | 0 |
    | MODEL | the round that begins with the model | the reader's request that it answers |
    | UPDATE, to a validator; ABSENT | the round | the worker's request |
    | UPDATE, to a server | the round | the submitter's number of the entry |
    | APPLY, READ; STOP, to server 0 | | the submitter's number of the entry |
    | ORDER | | the submitter's number of the entry that it gives its position |
    | COMBINED, CLOSED, STATISTICS, QUERY, ANSWER, PARTIAL, CHUNK | the round | |
    | CREDIT, ABANDON, OWED | the round of the receiver's update | |
    | STOP, from server 0 | the round that does not begin | the index of the entry in the log |
    | CHECKPOINT | the round of the checkpoint | the index of the entry in the log |
    | PART | the round of the checkpoint | the index of the checkpoint in the log |
    | COPY, REPLACEMENT; ABSENT, to the adversary | the round | the worker's cycle |
    | EVALUATE, EVALUATED; STOP, to the evaluator | the coordinator's round | the coordinator's cycle |
    | CLOCK | the number of the question | the number of the question |

    In a session, `round` is 0. QUERY asks a holder which workers have not sent a slot; the note of the ANSWER holds
    them as `waiting_for`.
    """

    kind: Kind
    sender: Peer = NOBODY
    run: str = ""
    round: int = 0
    shard: int = 0
    flags: Flag = Flag.NONE
    mask: Mask | None = None
    note: dict[str, Any] = field(default_factory=dict)
    payload: Vector | None = None
    version: int = 0
    index: int = 0
    partition: int = 0

    @property
    def payload_bytes(self) -> int:
        """The size of the payload."""
        return 0 if self.payload is None else self.payload.nbytes

    @property
    def values(self) -> Vector:
        """The payload, or an empty array; empty payloads, as of a server whose shard has no elements, are not sent."""
        return np.zeros(0, np.float32) if self.payload is None else self.payload

    def of(self, sender: Peer, run: str) -> Message:
        """Return the message with its sender and run; faster than `dataclasses.replace`."""
        return Message(
            self.kind, sender, run, self.round, self.shard, self.flags, self.mask, self.note, self.payload,
            self.version, self.index, self.partition,
        )  # fmt: skip

    def header(self) -> bytes:
        """Encode everything but the payload."""
        return self._header

    @cached_property
    def _header(self) -> bytes:
        """The encoded header, computed once for all receivers."""
        note = json.dumps(self.note, separators=(",", ":")).encode() if self.note else b""
        bits = 0 if self.mask is None else len(self.mask)
        packed = b"" if self.mask is None else np.packbits(self.mask, bitorder="little").tobytes()
        fixed = _FRAME.pack(
            _MAGIC, _FRAME_VERSION, self.kind, ROLES.index(self.sender.role), self.flags, self.sender.index,
            self.run.encode(), self.round, self.version, self.index, self.shard, self.partition, bits, len(note),
            self.payload_bytes,
        )  # fmt: skip
        return fixed + packed + note

    @staticmethod
    def decode(header: bytes, payload: Vector | None = None) -> Message:
        """Decode a header and attach the payload that was received with it.

        Raises:
            MalformedMessageError: the bytes are not a header, or the payload has another size than the header says.
        """
        if len(header) < _FRAME.size:
            raise MalformedMessageError(f"a header of {len(header)} bytes is shorter than {_FRAME.size}")
        fields = _FRAME.unpack_from(header)
        magic, frame, kind, role, flags, sender, run, round_, version, index, *counts = fields
        shard, partition, bits, note_bytes, payload_bytes = counts
        if magic != _MAGIC or frame != _FRAME_VERSION:
            raise MalformedMessageError("the header does not begin like a message of hpcps")
        mask_bytes = -(-bits // 8)
        if len(header) != _FRAME.size + mask_bytes + note_bytes:
            announced = _FRAME.size + mask_bytes + note_bytes
            raise MalformedMessageError(f"a header of {len(header)} bytes announces {announced}")
        if payload_bytes != (0 if payload is None else payload.nbytes):
            got = 0 if payload is None else payload.nbytes
            raise MalformedMessageError(f"the header announces a payload of {payload_bytes} bytes, {got} were received")
        rest = header[_FRAME.size :]
        mask = None
        if bits:
            packed = np.frombuffer(rest, np.uint8, mask_bytes)
            mask = np.unpackbits(packed, count=bits, bitorder="little").astype(np.bool_)
        try:
            note = json.loads(rest[mask_bytes:]) if note_bytes else {}
            if not isinstance(note, dict):
                raise MalformedMessageError("the note is not a table")
            return Message(
                Kind(kind), Peer(ROLES[role], sender), run.rstrip(b"\0").decode("ascii"), round_, shard, Flag(flags),
                mask, note, payload, version, index, partition,
            )  # fmt: skip
        except (ValueError, IndexError) as error:
            raise MalformedMessageError(f"the header holds an invalid field: {error}") from error


@dataclass(frozen=True)
class Received:
    """A well-formed message was received.

    Attributes:
        source: its sender according to the transport.
        message: the message.
        time: when the role got it, in seconds since the role's record began.
        moment: the same on the clock that measures pauses, which stands still in one process while a role can proceed.
    """

    source: Peer
    message: Message
    time: float = 0.0
    moment: float = 0.0

    def dated(self, time: float, moment: float) -> Received:
        """Return the same with its times."""
        return Received(self.source, self.message, time, moment)


@dataclass(frozen=True)
class Malformed:
    """The bytes received from `source` are not a message; `moment` is as in `Received`."""

    source: Peer
    reason: str
    moment: float = 0.0

    def dated(self, time: float, moment: float) -> Malformed:
        """Return the same with its moment."""
        return Malformed(self.source, self.reason, moment)


Operation = Literal["sum", "max"]
"""How a reduction combines the elements of all processes."""


@dataclass(frozen=True)
class Reduced:
    """A reduction is done; `values` is the array that this process gave to it, with the result in it."""

    values: NDArray[Any]
