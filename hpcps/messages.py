"""What roles say to one another: a checked header and the sent blocks, contiguous.

The header travels apart from the payload, so that a payload can go from the sender's buffer to the receiver's
without a copy, and from device to device. Frame (little-endian): magic, version of the
frame, kind, sender's role, flags, sender's index, run id, round, model version, log index, shard, partition, number of
mask bits, note bytes, payload bytes; then the packed block mask; then the note (JSON).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from functools import cached_property
from typing import Any

import numpy as np

from hpcps.layout import Mask, Vector

ROLES = ("server", "validator", "worker")

_MAGIC = b"HPS\x01"
_FRAME_VERSION = 3
_FRAME = struct.Struct("<4sBBBBI10sQQQIIIIQ")


@dataclass(frozen=True, order=True)
class Peer:
    """One process of the run: its role and index."""

    role: str
    index: int

    def __str__(self) -> str:
        return f"{self.role}-{self.index}"


class Kind(IntEnum):
    """What a message is."""

    INIT = 1
    """Initial weights of a shard, with the layout and the schedule in the note; to a server."""
    MODEL = 2
    """A shard of the model of a round; from a server."""
    UPDATE = 3
    """A worker's sent blocks."""
    ABSENT = 4
    """A worker that does not participate in a round or cycle."""
    COMBINED = 5
    """What a validator made of its share of the updates, for one shard."""
    STATISTICS = 6
    """A worker's BatchNorm running statistics; to the process that evaluates."""
    APPLY = 7
    """Asynchronous: what a validator accepted of a worker's update, for one shard; the worker gets the model then."""
    READ = 8
    """Asynchronous: somebody wants the model."""
    STOP = 9
    """Asynchronous: the chief has done its epochs."""
    ORDER = 10
    """Asynchronous: server 0 gives an entry its place in the log; to the other servers."""
    CHECKPOINT = 11
    """Asynchronous: write your part of the checkpoint at this place of the log; from server 0."""
    PART = 12
    """A part of a checkpoint is written: its checksum in the note; to server 0."""
    GRANT = 13
    """So many partitions of a round's update or combined update are taken by now; from who combines, and does not say
    so by sending a partition of the next model."""
    CLOCK = 14
    """Before a run: what time is it? The answer has it in the note, in seconds of the answerer's monotonic clock."""


class Flag(IntFlag):
    """What else a message says."""

    NONE = 0
    LAST = 1
    """The model is final: no round begins with it."""
    STATISTICS = 2
    """Workers send their BatchNorm statistics to the process that evaluates this model."""
    SNAPSHOT = 4
    """Everyone writes a checkpoint after this round; who sends to servers passes it on to them."""
    SUSPEND = 8
    """And ends then."""


class MalformedMessageError(ValueError):
    """Bytes that are no message of ours; the reason in one line."""


@dataclass(frozen=True)
class Message:
    """A header and its payload.

    Attributes:
        kind: what it is.
        sender: who says it.
        run: the run it belongs to (its id).
        round: the synchronous round; asynchronous, the sender's count of such messages, and of a MODEL, which of its
            reader's requests it answers.
        shard: the server shard the payload belongs to; 0 where it is of the whole vector.
        flags: see `Flag`.
        mask: which blocks the payload holds `[B]`; None where that goes without saying.
        note: small structured extra, JSON.
        payload: float32 `[m]`. A sent one must not change before its receiver has answered, and so a received one is
            valid, and unchanged, until then: an update until the next model is sent to its worker, a combined update
            likewise. It is not the receiver's to write to.
        version: asynchronous: the version of the model that a MODEL holds or an update was made from.
        index: asynchronous: the place in the servers' log of what is ordered or answered.
        partition: synchronous: which of the partitions that its sender and receiver have agreed on it is, in the order
            in which they are sent; of a GRANT, how many.
    """

    kind: Kind
    sender: Peer
    run: str
    round: int
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
        """The payload; an empty one (a shard of a model with fewer elements than servers, say) never travels."""
        return np.zeros(0, np.float32) if self.payload is None else self.payload

    def header(self) -> bytes:
        """Encode everything but the payload."""
        return self._header

    @cached_property
    def _header(self) -> bytes:
        """Once, as a message may go to many."""
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
        """Decode a header and attach the payload that came with it.

        Raises:
            MalformedMessageError: if the bytes are not a header, or the payload is not of the size it announces.
        """
        if len(header) < _FRAME.size:
            raise MalformedMessageError(f"a header of {len(header)} bytes is shorter than {_FRAME.size}")
        fields = _FRAME.unpack_from(header)
        magic, frame, kind, role, flags, sender, run, round_, version, index, *counts = fields
        shard, partition, bits, note_bytes, payload_bytes = counts
        if magic != _MAGIC or frame != _FRAME_VERSION:
            raise MalformedMessageError("the header does not begin as a message of hpcps does")
        mask_bytes = -(-bits // 8)
        if len(header) != _FRAME.size + mask_bytes + note_bytes:
            announced = _FRAME.size + mask_bytes + note_bytes
            raise MalformedMessageError(f"a header of {len(header)} bytes announces {announced}")
        if payload_bytes != (0 if payload is None else payload.nbytes):
            got = 0 if payload is None else payload.nbytes
            raise MalformedMessageError(f"the header announces a payload of {payload_bytes} bytes, {got} came")
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
    """A well-formed message came; `source` is who the transport says sent it."""

    source: Peer
    message: Message


@dataclass(frozen=True)
class Malformed:
    """Bytes came from `source` that are no message."""

    source: Peer
    reason: str
