"""The messages of own scripts: tensors that workers declare and send, and that aggregators combine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from hpcps.numerics.layout import Mask, Vector
from hpcps.protocol.messages.base import Count, HeaderField, InNote, Message


@dataclass(frozen=True, kw_only=True, eq=False)
class Declare(Message, code=25, kind="DECLARE", sender="worker", receiver="aggregator"):
    """A tensor that is exchanged from now on.

    Attributes:
        key: its index in the order of declaration.
        name: its name.
        dtype: the type of its elements, one of `elements.TYPES`.
        shapes: the shape of each of its blocks.
        reduction: how the tensors of all processes are combined: `sum`, `mean`, `accumulate` (from an asynchronous
            optimizer, see `reduction.ACCUMULATE`), or the table of a rule, which may have the keys `attack`, `seed` and
            `compression`; see `reduction.Reduction`.
        whole: whether one aggregator combines all of it at once, also if it could be divided.
        bucket: the index of its bucket: a small tensor shares one with others, and a large tensor has one of this index
            at each of its aggregators.
        parts: in how many parts it is divided among the aggregators; some may have no elements, and are left out.
        line: the file and line of the script that declared it, for messages; empty if it is not known.
    """

    key: Annotated[int, HeaderField.INDEX]
    name: str
    dtype: str
    shapes: tuple[tuple[Count, ...], ...]
    reduction: str | dict[str, Any]
    whole: bool
    bucket: Count
    parts: Count
    line: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Span(Message):
    """Slots of a bucket in a row: each slot is a part of a tensor; see `session/buckets.py`.

    Attributes:
        bucket: the index of the bucket, at the aggregator that sends or gets the message.
        first: the index of the first slot in that bucket.
        slots: a bit for each slot of the span, all of them set: only its length counts.
    """

    bucket: Annotated[int, HeaderField.INDEX]
    first: Annotated[int, HeaderField.PARTITION]
    slots: Annotated[Mask, HeaderField.MASK]

    @property
    def bounds(self) -> tuple[int, int]:
        """The span, as (first, stop)."""
        return self.first, self.first + len(self.slots)


@dataclass(frozen=True, kw_only=True, eq=False)
class Given(Span):
    """What a worker says of the tensors in a span.

    Attributes:
        calls: for each tensor without a name: the index of its slot in the bucket, and its number, from 1, among those
            of its type, shape and reduction that the script has given without a name. It must be the same on all
            workers.
        absent: for each slot of a tensor with blocks that the worker does not have: the index of the slot in the
            bucket, and the indices of these blocks in the whole tensor, also if the slot is a part of it.
    """

    calls: tuple[tuple[Count, Count], ...] = ()
    absent: tuple[tuple[Count, tuple[Count, ...]], ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorUpdate(Given, code=40, kind="UPDATE", sender="worker", receiver="aggregator", answer="TensorResult"):
    """The tensors in a span.

    Attributes:
        values: their bytes, slot by slot, each filled up to whole float32; or what the compressor made of them. An
            encoded tensor has a bucket of its own, with one slot.
    """

    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class NoTensors(Given, code=41, kind="ABSENT", sender="worker", receiver="aggregator", answer="TensorResult"):
    """The worker gives nothing for the tensors in a span, and takes the result."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorResult(Span, code=42, kind="COMBINED", sender="aggregator", receiver="worker"):
    """The results of the tensors in a span.

    Attributes:
        unused: for each slot of a tensor with blocks that no worker has: the index of the slot in the bucket, and the
            indices of these blocks in the whole tensor, also if the slot is a part of it.
        values: their bytes, slot by slot, each filled up to whole float32; or what the compressor made of them.
    """

    unused: Annotated[tuple[tuple[Count, tuple[Count, ...]], ...], InNote("absent")] = ()
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class WhoIsMissing(Span, code=43, kind="QUERY", sender="worker", receiver="aggregator", answer="Missing"):
    """The worker has waited long for the result of the first slot of the span."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Missing(Span, code=44, kind="ANSWER", sender="aggregator", receiver="worker"):
    """The workers that have not sent the first slot of the span.

    Attributes:
        waiting_for: their names, such as `worker-3`; none if the aggregator has not heard of the bucket, or answers
            each worker alone.
    """

    waiting_for: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Abort(Message, code=26, kind="ABORT", sender="every process", receiver="everyone"):
    """The session cannot go on.

    Attributes:
        reason: why, for people.
    """

    reason: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Leave(Message, code=27, kind="LEAVE", sender="every process", receiver="everyone"):
    """The process has ended its script.

    Attributes:
        steps: the number of steps of the script, without those that a process may take alone; 0 from a server.
        updates: the number of steps of its optimizers, also of those in which nothing is exchanged; 0 from a server.
    """

    steps: int
    updates: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Failed(Message, code=45, kind="LEAVE", sender="every process", receiver="everyone"):
    """The script of the process has failed, in place of `Leave`.

    Attributes:
        error: the text of the error, for people.
    """

    error: str


@dataclass(frozen=True, kw_only=True, eq=False)
class AskAlive(Message, code=29, kind="ALIVE", sender="process that has ended its part", receiver="one that has not",
               answer="Alive"):  # fmt: skip
    """A request for a sign of life."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Alive(Message, code=46, kind="ALIVE", sender="process", receiver="process that has asked"):
    """A sign of life."""
