"""What all messages have in common, and how a class says where a header holds its fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntFlag
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field

from hpcps.numerics.layout import Vector

ROLES = ("server", "validator", "worker", "adversary", "evaluator", "standby")


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


class Flag(IntFlag):
    """Additional properties of a message."""

    NONE = 0
    LAST = 1
    """The model is final: no round begins with it."""
    STATISTICS = 2
    """Workers send the coordinator their BatchNorm statistics, for the evaluation of this model."""
    SNAPSHOT = 4
    """Every role writes a checkpoint after this round; roles that send to servers forward the flag to them."""
    SUSPEND = 8
    """Every role ends after that checkpoint."""
    EVERYONE = 16
    """With a quorum: the round that begins with the model waits for every worker."""
    DIFFERENCE = 32
    """The payload is the encoded difference to the model that the receiver got last."""


class HeaderField(Enum):
    """A place of the header, for a field of another name: `position: Annotated[int, HeaderField.ROUND]`."""

    ROUND = "round"
    VERSION = "version"
    INDEX = "index"
    SHARD = "shard"
    PARTITION = "partition"
    MASK = "mask"


@dataclass(frozen=True)
class InNote:
    """How the note, which is JSON, holds a field.

    Attributes:
        key: its key.
        pack: returns the JSON value of the field.
        unpack: returns the field of a JSON value.
        packed: the type of the JSON value; None: that of the field.
    """

    key: str
    pack: Callable[[Any], Any] | None = None
    unpack: Callable[[Any], Any] | None = None
    packed: Any = None


Count = Annotated[int, Field(ge=0)]
"""A number that is not negative, in a note."""


class Message:
    """A message: a class of its own for each kind, whose fields say what it holds.

    A subclass is a frozen dataclass. The header of an `Envelope` holds its fields: in fixed places `flags`, and those
    that have the name of a `HeaderField` or are annotated with one; in the note, under their names, all others. A field
    of the note that has its default is left out. `values`, if there is such a field, is the payload.

    Shapes: `[d]` is the whole model, `[m]` a part of it, `[k]` the BatchNorm statistics, `[B]` a bit for each block of
    the part that the message is about. Flags "of checkpoints" are `Flag.SNAPSHOT` and `Flag.SUSPEND`. Rounds, cycles
    and indices count from 0. A block is a trainable tensor of the model or, in a part, what the part has of it. In
    `values`, the blocks that `mask` selects are one after another, without the others. "What the compressor made of
    them" is their encoding; with the memory `ef21`, that of their difference to the sum of all that the receiver has
    decoded of this sender so far. `protocol/partitioning.py`, and for a chunk `Layout.bounds`, say which elements a
    shard, a partition or a chunk of some index has.

    A payload is float32. Its sender must not change it before the receiver has answered, and the receiver must not
    write to it. So a received payload is valid and constant until then:

    - an update, or a combined update: until the next model is sent to its sender
    - a copy: until the adversary answers
    - a model to evaluate: until the evaluator answers
    - an asynchronous model: until its reader asks for the next one
    - an asynchronous validator's part of an update: until the servers answer the validator's own next request
    - a piece in the ring: until the next round
    - a tensor of a script: until its result has come; a result: until its receiver has sent the tensor again

    A payload without elements, as of a server whose shard has none, is not sent.

    Attributes:
        code: the number of the class in headers and traces.
        kind: its name in traces and in messages to people; several classes may have the same one.
        sender: who sends it.
        receiver: who gets it.
        answer: the class that answers it; empty for none.
    """

    code: ClassVar[int]
    kind: ClassVar[str]
    sender: ClassVar[str]
    receiver: ClassVar[str]
    answer: ClassVar[str]
    classes: ClassVar[dict[int, type[Message]]] = {}
    # What a header holds in the places of fields that a class does not have.
    _no_round = _no_version = _no_index = _no_shard = _no_partition = _no_flags = 0
    _no_mask = None

    def __init_subclass__(
        cls, *, code: int = 0, kind: str = "", sender: str = "", receiver: str = "", answer: str = ""
    ) -> None:
        """Register a class by its code; one without a code is a base of others."""
        cls.code, cls.kind, cls.sender, cls.receiver, cls.answer = code, kind, sender, receiver, answer
        if code:
            assert code not in cls.classes, f"two messages have the code {code}"
            cls.classes[code] = cls

    @property
    def payload(self) -> Vector | None:
        """What travels beside the header."""
        return getattr(self, "values", None)

    @property
    def payload_bytes(self) -> int:
        """The size of the payload."""
        payload = self.payload
        return 0 if payload is None else payload.nbytes
