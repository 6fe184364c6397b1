"""The participant: sends the tensors of a worker and takes the results. It is a state machine, without I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from traceback import walk_stack
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hpcps.aggregation.collector import spans
from hpcps.errors import RunError, SpecError
from hpcps.numerics.layout import Allocate, Vector
from hpcps.protocol.messages import (
    Given,
    Missing,
    NoTensors,
    Peer,
    Span,
    TensorResult,
    TensorUpdate,
    WhoIsMissing,
)
from hpcps.roles.events import Send
from hpcps.session.buckets import Bucket, Placement, all_of
from hpcps.session.elements import Bytes
from hpcps.session.gathering import Rows
from hpcps.session.reduction import GATHER, compresses, compressor_of, is_whole, rule_of
from hpcps.session.sharding import Sharding
from hpcps.session.tensors import Declaration, Tensor, TensorExchange, TensorPart, script_line

if TYPE_CHECKING:
    from hpcps.session.compressed import TensorDecoder, TensorEncoder

_Of = TypeVar("_Of")
_VIEW = 1 << 12
"""Elements of a tensor whose copy takes longer than creating a view of it."""


class Copies:
    """Copies tensors, given as bytes, to and from buffers; a framework has its own."""

    def views(self, values: Bytes, dtype: str, like: Sequence[Any]) -> list[Any]:
        """Return bytes as tensors of a type, one after another, with the shapes of other tensors."""
        return np.split(values, np.cumsum([len(each) for each in like])[:-1])

    def copy(self, targets: Sequence[Any], sources: Sequence[Any]) -> None:
        """Copy each source to its target."""
        for target, source in zip(targets, sources, strict=True):
            np.copyto(target, source)


class _WorkerBucket:
    """A bucket as a worker sees it.

    Attributes:
        bucket: the bucket.
        aggregator: the process that combines it.
        exchanges: the exchange of each slot; None if there is none.
        begun: the slots that have begun and are not sent, with their sources.
        calls: the `TensorExchange.call` of those without a name.
        absent: the `TensorExchange.absent` of those that have some.
        priority: the highest one of those that have begun.
    """

    priority = 0

    def __init__(self, first: TensorPart, allocate: Allocate, copies: Copies, *, in_place: bool = False) -> None:
        """Begin without slots.

        Args:
            first: the first part in it.
            allocate: returns memory to send from.
            copies: copies tensors.
            in_place: whether a divided tensor is sent from its own memory.
        """
        self.bucket, self.aggregator = Bucket(first), first.aggregator
        self.exchanges: list[TensorExchange | None] = []
        self.begun: dict[int, Any] = {}
        self.calls: dict[int, int] = {}
        self.absent: dict[int, tuple[int, ...]] = {}
        self._views: list[Sequence[Any]] = []
        self._shapes: list[Any] = []
        self._copies = Copies() if first.tensor.divided else copies
        self._allocate = allocate
        self._encoder: TensorEncoder | None = None
        self._decoder: TensorDecoder | None = None
        if compresses(first.tensor.declaration.reduction):
            from hpcps.session.compressed import TensorDecoder, TensorEncoder  # here, because their imports take long

            self._encoder = TensorEncoder.of(first.tensor, "update", allocate)
            self._decoder = TensorDecoder.of(first.tensor, "model")
        self._in_place = in_place and first.tensor.divided and self._encoder is None

    @cached_property
    def _values(self) -> Vector:
        """The memory to send from; a tensor that is declared and never exchanged, as one of rows may be, needs none."""
        values = self._allocate(self.bucket.capacity)
        values[:] = 0  # also what fills the last word of a slot
        return values

    def add(self, part: TensorPart) -> None:
        """Give the next slot to a part."""
        self.bucket.add(part)
        self.exchanges.append(None)
        self._views.append(())
        self._shapes.append(None)

    def begin(self, part: TensorPart, exchange: TensorExchange) -> None:
        """Begin the exchange of a part."""
        slot, source, target = part.slot, exchange.source, exchange.target
        if part.tensor.divided:
            source, target = None if source is None else part.of(source), part.of(target)
        # Several tensors of an exchange keep their shapes, see `Together`.
        shapes = [each.shape for each in target[:2]]
        if self._shapes[slot] != shapes and not self._in_place:
            values = self.bucket.bytes_of(slot, self._values[self.bucket.elements(slot, slot + 1)])
            self._views[slot] = self._copies.views(values, part.tensor.declaration.dtype, target)
            self._shapes[slot] = shapes
        self._note(slot, exchange, source)

    def _note(self, slot: int, exchange: TensorExchange, source: Any) -> None:
        """Note that the exchange of a slot has begun."""
        self.exchanges[slot] = exchange
        self.priority = max(self.priority, exchange.priority) if self.begun else exchange.priority
        self.begun[slot] = source
        if exchange.call:
            self.calls[slot] = exchange.call
        if exchange.absent:
            self.absent[slot] = tuple(exchange.absent)

    def send(self) -> Iterator[Given]:
        """Copy the sources that have begun; return the messages."""
        begun, self.begun = self.begun, {}
        given = {slot: source for slot, source in begun.items() if source is not None}
        if not self._in_place:
            self._copies.copy([*chain(*(self._views[slot] for slot in given))], [*chain(*given.values())])
        for first, stop in _spans_of(given):
            elements = _elements(given[first][0]) if self._in_place else self._values[self.bucket.elements(first, stop)]
            values = elements if self._encoder is None else self._encoder(elements)
            yield TensorUpdate(
                bucket=self.bucket.number, first=first, slots=all_of(stop - first), priority=self.priority,
                calls=_within(self.calls, first, stop), absent=_within(self.absent, first, stop), values=values,
            )  # fmt: skip
        for first, stop in _spans_of(begun.keys() - given.keys()):
            yield NoTensors(
                bucket=self.bucket.number, first=first, slots=all_of(stop - first), priority=self.priority,
                calls=_within(self.calls, first, stop), absent=_within(self.absent, first, stop),
            )  # fmt: skip
        self.calls.clear()
        self.absent.clear()

    def _ended(self, first: int, stop: int) -> list[TensorExchange]:
        """Return the exchanges of a span whose result has come.

        Raises:
            RunError: a result is not due.
        """
        ended = [exchange for exchange in self.exchanges[first:stop] if exchange is not None]
        if not ended or len(ended) < stop - first:
            raise RunError(
                f"{self.aggregator} sent a result that was not due, of slot {first} of bucket {self.bucket.number}"
            )
        self.exchanges[first:stop] = [None] * len(ended)
        return ended

    def take(self, first: int, stop: int, elements: Vector) -> list[TensorExchange]:
        """Give the results of a span to its exchanges, and return these.

        Raises:
            RunError: a result is not due.
        """
        ended = self._ended(first, stop)
        part = self.bucket.parts[first]
        if self._decoder is not None:
            elements = self._decoder(self.aggregator, elements)
        whole = [exchange.target for exchange in ended]
        targets = [part.of(whole[0])] if part.tensor.divided else whole
        if part.tensor.small or (elements.size < _VIEW * len(targets[0]) and not self._in_place):
            # The aggregator has combined what was sent from this memory.
            self._values[self.bucket.elements(first, stop)] = elements
            views = self._views[first:stop]
        else:
            values = self.bucket.bytes_of(first, elements)
            views = [self._copies.views(values, part.tensor.declaration.dtype, targets[0])]
        if any(exchange.deferred for exchange in ended):
            for exchange, target, view in zip(ended, targets, views, strict=True):
                exchange.take(partial(self._copies.copy, target, view))
        else:  # in one call
            self._copies.copy([*chain.from_iterable(targets)], [*chain.from_iterable(views)])
        return ended


class _GatherBucket(_WorkerBucket):
    """The bucket of an allgather, whose tensor is its only one.

    The source of its exchanges are the bytes of rows, and their target is a list, which gets those of each worker.
    """

    def __init__(self, first: TensorPart, workers: int, allocate: Allocate, copies: Copies) -> None:
        super().__init__(first, allocate, copies)
        self._rows = Rows(first.tensor.declaration, workers, allocate)

    def begin(self, part: TensorPart, exchange: TensorExchange) -> None:
        self._note(part.slot, exchange, exchange.source)

    def send(self) -> Iterator[Given]:
        values, calls = self._rows.message(self.begun.pop(0)), _within(self.calls, 0, 1)
        self.calls.clear()
        yield TensorUpdate(
            bucket=self.bucket.number, first=0, slots=all_of(1), priority=self.priority, calls=calls, values=values
        )

    def take(self, first: int, stop: int, elements: Vector) -> list[TensorExchange]:
        ended = self._ended(first, stop)
        ended[0].target.extend(self._rows.of_all(elements))
        return ended


def _elements(given: Bytes) -> Vector:
    """Return bytes as elements of float32, in their own memory if that is possible; zeros fill the last element."""
    if given.size % 4 or given.ctypes.data % 4:
        given = np.concatenate([given, np.zeros(-given.size % 4, np.uint8)])
    elements: Vector = given.view(np.float32)
    return elements


def _within(of_slots: dict[int, _Of], first: int, stop: int) -> tuple[tuple[int, _Of], ...]:
    """Return what belongs to the slots of a span."""
    return tuple(each for each in of_slots.items() if first <= each[0] < stop) if of_slots else ()


def _spans_of(slots: Collection[int]) -> Iterator[tuple[int, int]]:
    """Return the spans of slots; mostly all of them are one span."""
    if slots and max(slots) - min(slots) == len(slots) - 1:
        return iter([(min(slots), max(slots) + 1)])
    return spans(sum(map((1).__lshift__, slots)))


class Participant:
    """Sends the tensors of a worker to their aggregators, and takes the results.

    Attributes:
        open: the number of exchanges that are not done.
    """

    def __init__(
        self,
        peer: Peer,
        workers: int,
        sharding: Sharding,
        allocate: Allocate,
        copies: Copies,
        shared_memory: bool,
        neighbours: Collection[Peer] = (),
    ) -> None:
        """Begin without tensors.

        Args:
            peer: the worker.
            workers: the number of workers.
            sharding: which aggregator combines what.
            allocate: returns memory to send from.
            copies: copies tensors.
            shared_memory: whether all processes share memory.
            neighbours: the processes that read allocated memory in place. Others, and the aggregator of this process,
                get the parts of a divided tensor in its own memory, without a copy, unless a compressor encodes them.
        """
        self.peer, self._neighbours = peer, frozenset(neighbours)
        self._workers, self._sharding = workers, sharding
        self._allocate, self._copies = allocate, copies
        self._placement = Placement(workers, sharding, shared_memory)
        self._tensors: dict[str, Tensor] = {}
        self._buckets: dict[tuple[int, Peer], _WorkerBucket] = {}
        self._bucket_of: dict[TensorPart, _WorkerBucket] = {}
        self.open = 0

    @property
    def exchanges(self) -> list[TensorExchange]:
        """The exchanges that are not done."""
        every = [tensor.exchange for tensor in list(self._tensors.values())]
        return [exchange for exchange in every if exchange is not None and not exchange.done]

    def declare(self, given: Declaration) -> tuple[Tensor, list[Send]]:
        """Return the tensor of a declaration, and the messages that declare it if its name is new.

        Raises:
            SpecError: it was declared in another way, or cannot be combined in this way.
        """
        given.check()
        reduction = given.reduction
        rule = rule_of(reduction, self._workers)
        if compresses(reduction):
            compressor_of(reduction["compression"])
        whole = given.whole or is_whole(reduction, rule) or compresses(reduction) or reduction == GATHER
        given = replace(given, whole=whole, key=len(self._tensors), line=script_line(walk_stack(None)))
        if given.name in self._tensors:
            was = self._tensors[given.name].declaration
            if difference := given.difference(was):
                before = was.difference(given)
                raise SpecError(f"a tensor was declared before as {before}, and is now {difference}: use another name")
            return self._tensors[given.name], []
        declaration = self._placement.place(given)
        tensor = self._tensors[given.name] = Tensor(declaration, self._sharding, rule)
        for part in tensor.parts:
            self._place(part)
        message = declaration.message()
        # The first aggregator gets every declaration, see `Aggregator`.
        aggregators = dict.fromkeys((self._sharding.aggregators[0], *(part.aggregator for part in tensor.parts)))
        return tensor, [Send(aggregator, message) for aggregator in aggregators]

    def learn(self, declared: Sequence[Declaration]) -> list[str]:
        """Take note of tensors that others have declared while this worker had joined; return the names of new ones."""
        known = len(self._tensors)
        return [given.name for given in declared if given.key >= known and self.declare(given)]

    def _place(self, part: TensorPart) -> None:
        number = part.tensor.declaration.bucket, part.aggregator
        if number not in self._buckets:
            if part.tensor.declaration.reduction == GATHER:
                self._buckets[number] = _GatherBucket(part, self._workers, self._allocate, self._copies)
            else:
                in_place = part.aggregator not in self._neighbours
                self._buckets[number] = _WorkerBucket(part, self._allocate, self._copies, in_place=in_place)
        bucket = self._bucket_of[part] = self._buckets[number]
        bucket.add(part)

    def start_small(self, exchanges: Iterable[TensorExchange]) -> Iterator[Send]:
        """Send the tensors of exchanges, those of a bucket together."""
        together: dict[_WorkerBucket, None] = {}
        for exchange in exchanges:
            self.open += 1
            (part,) = exchange.tensor.parts
            bucket = self._bucket_of[part]
            bucket.begin(part, exchange)
            together[bucket] = None
        for bucket in together:
            yield from self._send(bucket)

    def start(self, exchange: TensorExchange) -> Iterator[Send]:
        """Begin the exchange of a large tensor; return its messages; one for a neighbour is copied when asked for."""
        self.open += 1
        for part in exchange.tensor.parts:
            self._bucket_of[part].exchanges[part.slot] = exchange
        return self._send_parts(exchange)

    def _send_parts(self, exchange: TensorExchange) -> Iterator[Send]:
        for part in exchange.tensor.parts:
            bucket = self._bucket_of[part]
            bucket.begin(part, exchange)
            yield from self._send(bucket)

    def _send(self, bucket: _WorkerBucket) -> Iterator[Send]:
        for message in bucket.send():
            yield Send(bucket.aggregator, message)

    def take(self, source: Peer, message: TensorResult | Missing) -> None:
        """Take a result, or an answer of an aggregator.

        Raises:
            RunError: the result is not due.
        """
        bucket, (first, stop) = self._buckets[message.bucket, source], message.bounds
        if isinstance(message, Missing):
            asked = bucket.exchanges[first]
            if asked is not None:
                asked.waiting_for = message.waiting_for
            return
        for slot, blocks in message.unused:
            if (exchange := bucket.exchanges[slot]) is not None:
                exchange.unused = blocks
        for exchange in bucket.take(first, stop, message.values):
            exchange.end()
            self.open -= not exchange.left

    def _unfinished(self, exchange: TensorExchange) -> list[tuple[TensorPart, _WorkerBucket]]:
        both = [(part, self._bucket_of[part]) for part in exchange.tensor.parts]
        return [(part, bucket) for part, bucket in both if bucket.exchanges[part.slot] is exchange]

    def exchanges_of(self, aggregator: Peer, message: Span) -> list[TensorExchange]:
        """Return the exchanges of a message to or from an aggregator."""
        found = self._buckets[message.bucket, aggregator].exchanges[slice(*message.bounds)]
        return [exchange for exchange in found if exchange is not None]

    def missing(self, exchange: TensorExchange) -> list[Peer]:
        """Return the aggregators of the parts whose result has not come."""
        return list(dict.fromkeys(part.aggregator for part, _ in self._unfinished(exchange)))

    def query(self, exchange: TensorExchange) -> Iterator[Send]:
        """Ask the aggregators for whom an exchange waits."""
        for part, bucket in self._unfinished(exchange):
            yield Send(part.aggregator, WhoIsMissing(bucket=bucket.bucket.number, first=part.slot, slots=all_of(1)))

    def fail(self, error: BaseException) -> None:
        """End all exchanges without a result."""
        for exchange in self.exchanges:
            exchange.end(error)
