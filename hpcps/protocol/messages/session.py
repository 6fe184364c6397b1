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
        name: its name; if the script gave none, one made of its type, shape and reduction.
        dtype: the name of the type of its elements, as torch has it, such as `float32` or `int64`: one of
            `elements.TYPES` or, for `broadcast` and `gather`, `elements.COPIED`.
        shapes: the shape of each of its blocks.
        reduction: how the tensors of all workers are combined: `sum`; `mean`; `min`; `max`; `product`; `broadcast`: the
            tensor that one worker gives, and the others do not; `gather`: the rows of all workers, one of which is
            declared, and of which each worker may have another number; `accumulate`, from an asynchronous
            optimizer: the first exchange gives all workers the sum, and later ones add the tensor of one worker to it
            and give it the new sum at once; or the table of a rule, which may have the keys `attack`, `seed` and
            `compression`, see `reduction.Reduction`.
        whole: whether one aggregator combines all of it at once, also if it could be divided.
        bucket: the index of its bucket. One for which `Declaration.small` holds, of at most 64 KiB and
            not `whole`, shares one with others of its type and reduction. Any other has one of its own, of this index
            at each of its aggregators.
        parts: in how many parts it is divided. Part k is of the aggregator with the index bucket + k, modulo their
            number, and has the elements between the bounds k and k + 1 of `Layout.bounds`. A part without elements is
            left out.
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
        first: the index of the first slot in that bucket, whose slots count in the order of declaration, and within a
            tensor in that of its parts at this aggregator.
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
        calls: for each tensor to which the script gave no name: the index of its slot in the bucket, and its number,
            from 1, among those of its type, shape and reduction that have none. It must be the same on all workers.
        absent: for each slot of a tensor with blocks that the worker does not have: the index of the slot in the
            bucket, and the indices of these blocks in the whole tensor, also if the slot is a part of it. Their
            elements are in `values`, as zeros, and count in a mean.
        priority: how urgent the tensors are for the worker: it sends larger numbers first, and the aggregator sends the
            result with that of the last worker.
    """

    calls: tuple[tuple[Count, Count], ...] = ()
    absent: tuple[tuple[Count, tuple[Count, ...]], ...] = ()
    priority: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorUpdate(Given, code=40, kind="UPDATE", sender="worker", receiver="aggregator", answer="TensorResult"):
    """The tensors in a span.

    Attributes:
        values: their bytes, slot by slot, each filled up to whole float32; or what the compressor made of them, see
            `Message`. An encoded tensor has a bucket of its own, with one slot. So has one with the reduction `gather`,
            whose rows follow their number, an int64.
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
            indices of these blocks in the whole tensor, also if the slot is a part of it. Their elements are in
            `values`: zeros, unless a residual or an attack has changed them.
        values: their bytes, slot by slot, each filled up to whole float32; or what the compressor made of them. With
            the reduction `gather`, the number of rows of each worker, an int64, and then the bytes of each, filled up.
        priority: how urgent they are: the aggregator sends larger numbers first.
    """

    unused: Annotated[tuple[tuple[Count, tuple[Count, ...]], ...], InNote("absent")] = ()
    priority: int = 0
    values: Vector


@dataclass(frozen=True, kw_only=True, eq=False)
class WhoIsMissing(Span, code=43, kind="QUERY", sender="worker", receiver="aggregator", answer="Missing"):
    """The worker has waited long for the result of the first slot of the span."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Missing(Span, code=44, kind="ANSWER", sender="aggregator", receiver="worker"):
    """The workers that have not sent the first slot of the span.

    Attributes:
        waiting_for: their names, such as `worker-3`. None of them if the aggregator has not heard of the bucket, or
            answers each worker alone; all workers if it has just sent the result.
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
        steps: how often it has exchanged all gradients of an optimizer or of a model, which all workers do equally
            often; exchanges of single tensors do not count; 0 from a server.
        updates: how often it has changed parameters, also without an exchange: the calls of `step` of a
            `DistributedOptimizer`; of a model in `DistributedDataParallel`, the backward passes that found its
            parameters changed, so the last change is not counted. 0 from a server, and from an asynchronous optimizer.
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
class Joined(Message, code=51, kind="JOIN", sender="worker", receiver="aggregator", answer="AllJoined"):
    """The script of the worker has no data left: until `AllJoined` it gives no tensor, and takes no result.

    It has the results of all tensors that it has given.

    Attributes:
        steps: see `Leave`.
        updates: see `Leave`.
    """

    steps: int
    updates: int


@dataclass(frozen=True, kw_only=True, eq=False)
class AllJoined(Message, code=52, kind="JOIN", sender="aggregator", receiver="worker"):
    """All workers have joined, and take part again; a worker goes on when it has this of all aggregators.

    Attributes:
        last: the index of the worker that joined last, as the aggregator has heard it; that of the first one counts.
        steps: the most steps of a worker, see `Leave`; all workers count as many from now on.
        updates: the most updates of a worker, see `Leave`.
        declared: from the first aggregator, the tensors that some worker has not declared, in order: the key, name,
            type, shapes and reduction of each, and whether it is whole, see `Declare`.
    """

    last: Count
    steps: int
    updates: int
    declared: tuple[tuple[Count, str, str, tuple[tuple[Count, ...], ...], str | dict[str, Any], bool], ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class AskAlive(Message, code=29, kind="ALIVE", sender="process that has ended its part", receiver="one that has not",
               answer="Alive"):  # fmt: skip
    """A request for a sign of life."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Alive(Message, code=46, kind="ALIVE", sender="process", receiver="process that has asked"):
    """A sign of life."""
