"""The participant: sends the tensors of a worker and takes the results. It is a state machine, without I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from hpcps.errors import RunError, SpecError
from hpcps.numerics.layout import Allocate, Mask, Vector
from hpcps.protocol.messages import Kind, Message, Peer
from hpcps.roles.events import Send
from hpcps.session.buckets import Bucket, Placement, runs
from hpcps.session.elements import Bytes
from hpcps.session.tensors import Reduction, Tensor, TensorPart, declared, is_whole, rule_of


class Copies(Protocol):
    """Copies small tensors of a framework to and from the buffers of their buckets."""

    def view(self, values: Bytes, dtype: str, like: Any) -> Any:
        """Return bytes as a tensor of a type, with the shape of another tensor."""

    def copy(self, targets: Sequence[Any], sources: Sequence[Any]) -> None:
        """Copy each source to its target."""


class ByteCopies(Copies):
    """Copies tensors that are given as bytes."""

    def view(self, values: Bytes, dtype: str, like: Any) -> Any:
        return values

    def copy(self, targets: Sequence[Any], sources: Sequence[Any]) -> None:
        for target, source in zip(targets, sources, strict=True):
            np.copyto(target, source)


class TensorExchange:
    """One exchange of a tensor.

    Attributes:
        tensor: the tensor.
        target: gets the result.
        began: when it began, in seconds.
        left: the number of parts whose result has not come.
        error: why there will be no result; None if there is one, or may be.
        waiting_for: the workers that have not sent the tensor, as far as a holder has said.
        asked: when its holders were asked for them, in seconds.
    """

    __slots__ = ("_then", "asked", "began", "error", "left", "target", "tensor", "waiting_for")

    def __init__(self, tensor: Tensor, target: Any, began: float) -> None:
        self.tensor, self.target, self.began = tensor, target, began
        self.left = len(tensor.parts)
        self.error: BaseException | None = None
        self.waiting_for: tuple[str, ...] = ()
        self.asked = -math.inf
        self._then: tuple[Callable[[], None], ...] = ()

    @property
    def done(self) -> bool:
        """Whether the result has come, or will not come."""
        return not self.left or self.error is not None

    def then(self, call: Callable[[], None]) -> None:
        """Call a function when the exchange is done; at once if it is."""
        if self.done:
            call()
        else:
            self._then = *self._then, call

    def end(self) -> None:
        """Call what waits for the end."""
        calls, self._then = self._then, ()
        for call in calls:
            call()


class _Sender:
    """A bucket as a worker sees it.

    Attributes:
        bucket: the bucket.
        holder: the process that combines it.
        values: the words that are sent; results of small tensors are put there too.
        exchanges: the exchange of each slot, None if there is none.
        idle: the number of slots without an exchange.
        given: the slots that are copied to `values`, but not sent.
        absent: the slots of which the worker gives nothing, which the holder does not know yet.
    """

    def __init__(self, first: TensorPart, allocate: Allocate, copies: Copies) -> None:
        self.bucket, self.holder = Bucket(first), first.holder
        self.values = allocate(self.bucket.capacity)
        self.values[:] = 0  # also what fills the last word of a slot
        self.exchanges: list[TensorExchange | None] = []
        self.idle = self.given = self.absent = 0
        self._copies = copies
        self._views: list[Any] = []

    def add(self, part: TensorPart) -> None:
        """Give the next slot to a part."""
        self.bucket.add(part)
        self.exchanges.append(None)
        self._views.append(None)
        self.idle += 1

    def bytes_of(self, slot: int) -> Bytes:
        """Return the bytes of a slot."""
        return self.bucket.bytes_of(slot, self.values[self.bucket.words(slot, slot + 1)])

    def view(self, slot: int, like: Any) -> Any:
        """Return the bytes of a slot as a tensor with the shape of another."""
        view = self._views[slot]
        if view is None or view.shape != like.shape:
            dtype = self.bucket.parts[slot].tensor.declaration.dtype
            view = self._views[slot] = self._copies.view(self.bytes_of(slot), dtype, like)
        return view

    def begin(self, part: TensorPart, exchange: TensorExchange, source: Any) -> None:
        """Begin the exchange of a slot: copy its source, which is then ready to be sent."""
        slot = part.slot
        self.exchanges[slot] = exchange
        self.idle -= 1
        if source is None:
            self.absent |= 1 << slot
            return
        self.given |= 1 << slot
        if part.tensor.small:
            self._copies.copy((self.view(slot, source),), (source,))
        else:
            self.bytes_of(slot)[:] = source[part.columns]

    def take(self, first: int, stop: int, words: Vector) -> list[TensorExchange]:
        """Copy the results of a run to the targets of its exchanges, and return these, which are over."""
        ended = self.exchanges[first:stop]
        exchanges = [exchange for exchange in ended if exchange is not None]
        if len(exchanges) < stop - first:
            raise RunError(f"{self.holder} sent a result that was not due, of slots {first} to {stop - 1}")
        self.exchanges[first:stop] = [None] * (stop - first)
        self.idle += stop - first
        part = self.bucket.parts[first]
        if not part.tensor.small:
            exchanges[0].target[part.columns] = self.bucket.bytes_of(first, words)
            return exchanges
        # The holder has combined what was sent from there.
        self.values[self.bucket.words(first, stop)] = words
        targets = [exchange.target for exchange in exchanges]
        self._copies.copy(targets, [self.view(first + k, target) for k, target in enumerate(targets)])
        return exchanges


class Participant:
    """Sends the tensors of a worker to their holders, and takes the results.

    Small tensors wait for `flush`, or until all tensors of their bucket have begun.

    Attributes:
        waits_since: when the first tensor that waits for `flush` began, in seconds; None if none waits.
        open: the number of exchanges that are not done.
    """

    def __init__(
        self,
        peer: Peer,
        session: str,
        workers: int,
        holders: Sequence[Peer],
        allocate: Allocate,
        copies: Copies,
    ) -> None:
        """Begin without tensors.

        Args:
            peer: the worker.
            session: the id of the session.
            workers: the number of workers.
            holders: the processes that combine tensors.
            allocate: returns memory to send from.
            copies: copies small tensors.
        """
        self.peer = peer
        self._session, self._workers, self._holders = session, workers, tuple(holders)
        self._allocate, self._copies = allocate, copies
        self._placement = Placement()
        self._tensors: dict[str, tuple[Tensor, object]] = {}
        self._senders: dict[tuple[int, Peer], _Sender] = {}
        self._of: dict[Tensor, tuple[_Sender, ...]] = {}
        self._last: dict[Tensor, TensorExchange] = {}
        self._queue: dict[_Sender, None] = {}
        self.waits_since: float | None = None
        self.open = 0

    @property
    def exchanges(self) -> list[TensorExchange]:
        """The exchanges that are not done."""
        return [exchange for exchange in list(self._last.values()) if not exchange.done]

    def declare(
        self, name: str, dtype: str, shape: Sequence[int], reduction: Reduction, blocks: Sequence[int] | None = None
    ) -> tuple[Tensor, Sequence[Send]]:
        """Return the tensor of a name, and the messages that declare it if it is new.

        Raises:
            SpecError: it was declared in another way, or cannot be combined in this way.
        """
        given = dtype, shape, reduction, blocks
        known, before = self._tensors.get(name, (None, None))
        if known is not None and given == before:
            return known, ()
        declaration = declared(len(self._tensors), name, dtype, shape, reduction, blocks)
        if known is not None:
            was = known.declaration
            if difference := replace(declaration, key=was.key, bucket=was.bucket, whole=was.whole).difference(was):
                now = was.difference(declaration)
                raise SpecError(f"a tensor was declared before as {now}, and is now {difference}: use another name")
            return known, ()
        rule = rule_of(reduction, self._workers)
        declaration = self._placement.place(replace(declaration, whole=is_whole(reduction, rule)))
        tensor = Tensor(declaration, self._holders, rule)
        self._tensors[name] = tensor, given
        self._of[tensor] = tuple(self._place(part) for part in tensor.parts)
        note = declaration.to_note()
        message = Message(Kind.DECLARE, self.peer, self._session, 0, index=declaration.key, note=note)
        return tensor, [Send(holder, message) for holder in dict.fromkeys((self._holders[0], *tensor.holders))]

    def _place(self, part: TensorPart) -> _Sender:
        number = part.tensor.declaration.bucket, part.holder
        if number not in self._senders:
            self._senders[number] = _Sender(part, self._allocate, self._copies)
        self._senders[number].add(part)
        return self._senders[number]

    def start(
        self, tensor: Tensor, source: Any, target: Any, now: float = 0.0
    ) -> tuple[TensorExchange, Iterator[Send]]:
        """Begin an exchange.

        Args:
            tensor: the tensor.
            source: its bytes, or, if it is small, anything that `Copies` copies; None if this worker gives none.
            target: gets the result, in the same form; it may be the source.
            now: the time, in seconds.

        Returns:
            The exchange, and messages that are due.

        Raises:
            RunError: the tensor is being exchanged.
        """
        last = self._last.get(tensor)
        if last is not None and not last.done:
            raise RunError(f"tensor '{tensor.declaration.name}' is being exchanged: synchronize its handle first")
        exchange = self._last[tensor] = TensorExchange(tensor, target, now)
        self.open += 1
        senders = self._of[tensor]
        if not tensor.small:
            return exchange, self._send_parts(exchange, senders, source)
        (sender,) = senders
        sender.begin(tensor.parts[0], exchange, source)
        if not sender.idle:
            self._queue.pop(sender, None)
            self.waits_since = self.waits_since if self._queue else None
            return exchange, self._send(sender)
        self._queue[sender] = None
        if self.waits_since is None:
            self.waits_since = now
        return exchange, iter(())

    def _send_parts(self, exchange: TensorExchange, senders: Sequence[_Sender], source: Any) -> Iterator[Send]:
        for part, sender in zip(exchange.tensor.parts, senders, strict=True):
            sender.begin(part, exchange, source)
            yield from self._send(sender)

    def flush(self) -> Iterator[Send]:
        """Send the tensors that wait."""
        queue, self._queue, self.waits_since = self._queue, {}, None
        for sender in queue:
            yield from self._send(sender)

    def _send(self, sender: _Sender) -> Iterator[Send]:
        """Send what has begun of a bucket, in one message if its slots are in a row."""
        given, absent, sender.given, sender.absent = sender.given, sender.absent, 0, 0
        for kind, slots in ((Kind.UPDATE, given), (Kind.ABSENT, absent)):
            for first, stop in runs(slots):
                payload = sender.values[sender.bucket.words(first, stop)] if kind is Kind.UPDATE else None
                yield Send(sender.holder, self._message(kind, sender, first, stop, payload))

    def _message(self, kind: Kind, sender: _Sender, first: int, stop: int, payload: Vector | None = None) -> Message:
        return Message(
            kind, self.peer, self._session, 0, index=sender.bucket.number, partition=first, mask=slots_of(stop - first),
            payload=payload,
        )  # fmt: skip

    def take(self, source: Peer, message: Message) -> None:
        """Take a result, or an answer of a holder.

        Raises:
            RunError: the result is not due.
        """
        sender, first = self._senders.get((message.index, source)), message.partition
        if sender is None or first >= len(sender.exchanges):
            raise RunError(f"{source} sent a result to {self.peer} that was not due, of bucket {message.index}")
        if message.kind is Kind.ANSWER:
            asked = sender.exchanges[first]
            if asked is not None:
                asked.waiting_for = tuple(map(str, message.note["waiting_for"]))
            return
        stop = first + (0 if message.mask is None else len(message.mask))
        for exchange in sender.take(first, stop, message.values):
            exchange.left -= 1
            if not exchange.left:
                self.open -= 1
                exchange.end()

    def exchanges_of(self, holder: Peer, message: Message) -> list[TensorExchange]:
        """Return the exchanges of a message to or from a holder."""
        count = 0 if message.mask is None else len(message.mask)
        found = self._senders[message.index, holder].exchanges[message.partition : message.partition + count]
        return [exchange for exchange in found if exchange is not None]

    def missing(self, exchange: TensorExchange) -> list[Peer]:
        """Return the holders of the parts whose result has not come."""
        both = zip(exchange.tensor.parts, self._of[exchange.tensor], strict=True)
        return list(dict.fromkeys(part.holder for part, sender in both if sender.exchanges[part.slot] is exchange))

    def query(self, exchange: TensorExchange) -> Iterator[Send]:
        """Ask the holders for whom an exchange waits."""
        for part, sender in zip(exchange.tensor.parts, self._of[exchange.tensor], strict=True):
            if sender.exchanges[part.slot] is exchange:
                yield Send(part.holder, self._message(Kind.QUERY, sender, part.slot, part.slot + 1))

    def fail(self, error: BaseException) -> None:
        """End all exchanges without a result."""
        for exchange in self.exchanges:
            exchange.error = error
            exchange.end()


@lru_cache
def slots_of(count: int) -> Mask:
    """Return the mask of a message with a number of slots."""
    return np.ones(count, np.bool_)
