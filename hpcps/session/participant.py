"""The participant: sends the tensors of a worker and takes the results. It is a state machine, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from hpcps.errors import RunError, SpecError
from hpcps.numerics.layout import Allocate, Vector
from hpcps.protocol.messages import Kind, Message, Peer
from hpcps.roles.events import Send
from hpcps.session.elements import Bytes
from hpcps.session.tensors import Reduction, Tensor, TensorPart, declared

_ALL = np.ones(1, np.bool_)


class TensorExchange:
    """One exchange of a tensor.

    Attributes:
        tensor: the tensor.
        round: the number of exchanges of the tensor before this one.
        target: gets the bytes of the result.
        missing: the partitions whose result has not come.
        error: why there will be no result; None if there is one, or may be.
        waiting_for: the workers that have not sent the tensor, as far as a holder has said.
    """

    def __init__(self, tensor: Tensor, round: int, target: Bytes) -> None:
        self.tensor, self.round, self.target = tensor, round, target
        self.missing: dict[tuple[Peer, int], TensorPart] = {(part.holder, part.number): part for part in tensor.parts}
        self.error: BaseException | None = None
        self.waiting_for: tuple[str, ...] = ()
        self._then: list[Callable[[], None]] = []

    @property
    def done(self) -> bool:
        """Whether the result has come, or will not come."""
        return not self.missing or self.error is not None

    def then(self, call: Callable[[], None]) -> None:
        """Call a function when the exchange is done; at once if it is."""
        if self.done:
            call()
        else:
            self._then.append(call)

    def end(self) -> None:
        """Call what waits for the end."""
        calls, self._then = self._then, []
        for call in calls:
            call()


class Participant:
    """Sends the tensors of a worker to their holders, and takes the results.

    Attributes:
        exchanges: the exchanges that are not done, by key.
    """

    def __init__(self, peer: Peer, session: str, workers: int, holders: Sequence[Peer], allocate: Allocate) -> None:
        """Begin without tensors.

        Args:
            peer: the worker.
            session: the id of the session.
            workers: the number of workers.
            holders: the processes that combine tensors.
            allocate: returns memory to send from.
        """
        self.peer = peer
        self._session, self._workers, self._holders = session, workers, tuple(holders)
        self._allocate = allocate
        self._tensors: dict[str, Tensor] = {}
        self._buffers: dict[int, Vector] = {}
        self._rounds: dict[int, int] = {}
        self.exchanges: dict[int, TensorExchange] = {}

    def declare(
        self, name: str, dtype: str, shape: Sequence[int], reduction: Reduction, blocks: Sequence[int] | None = None
    ) -> tuple[Tensor, list[Send]]:
        """Return the tensor of a name, and the messages that declare it if it is new.

        Raises:
            SpecError: it was declared in another way, or cannot be combined in this way.
        """
        known = self._tensors.get(name)
        key = len(self._tensors) if known is None else known.declaration.key
        declaration = declared(key, name, dtype, shape, reduction, blocks)
        if known is not None:
            if difference := declaration.difference(known.declaration):
                before = known.declaration.difference(declaration)
                raise SpecError(f"a tensor was declared before as {before}, and is now {difference}: use another name")
            return known, []
        tensor = self._tensors[name] = Tensor(declaration, self._holders, self._workers)
        note = declaration.to_note()
        message = Message(Kind.DECLARE, self.peer, self._session, 0, index=key, note=note)
        return tensor, [Send(holder, message) for holder in dict.fromkeys((self._holders[0], *tensor.holders))]

    def start(self, tensor: Tensor, source: Bytes | None, target: Bytes) -> tuple[TensorExchange, Iterator[Send]]:
        """Begin an exchange.

        Args:
            tensor: the tensor.
            source: its bytes; None if this worker gives none.
            target: gets the bytes of the result; it may be the source.

        Returns:
            The exchange, and the messages that send the tensor.

        Raises:
            RunError: the tensor is being exchanged.
        """
        key = tensor.declaration.key
        if key in self.exchanges:
            raise RunError(f"tensor '{tensor.declaration.name}' is being exchanged: synchronize its handle first")
        round = self._rounds.get(key, 0)
        self._rounds[key] = round + 1
        exchange = self.exchanges[key] = TensorExchange(tensor, round, target)
        return exchange, self._send(exchange, source)

    def _send(self, exchange: TensorExchange, source: Bytes | None) -> Iterator[Send]:
        tensor, key = exchange.tensor, exchange.tensor.declaration.key
        if source is None:
            for holder in tensor.holders:
                yield Send(holder, Message(Kind.ABSENT, self.peer, self._session, exchange.round, index=key))
            return
        if key not in self._buffers:
            self._buffers[key] = self._allocate(tensor.words)
        buffer = self._buffers[key]
        for part in tensor.parts:
            words = buffer[part.offset : part.offset + part.words]
            tensor.bytes_of(part, words)[:] = source[tensor.columns(part)]
            yield Send(
                part.holder,
                Message(
                    Kind.UPDATE, self.peer, self._session, exchange.round, index=key, partition=part.number,
                    mask=_ALL if part.words else None, payload=words,
                ),
            )  # fmt: skip

    def take(self, source: Peer, message: Message) -> None:
        """Take a result, or an answer of a holder."""
        exchange = self.exchanges.get(message.index)
        if message.kind is Kind.ANSWER:
            if exchange is not None:
                exchange.waiting_for = tuple(map(str, message.note["waiting_for"]))
            return
        if exchange is None or message.round != exchange.round or (source, message.partition) not in exchange.missing:
            raise RunError(f"{source} sent a result to {self.peer} that was not due, of tensor {message.index}")
        part = exchange.missing[source, message.partition]
        exchange.target[exchange.tensor.columns(part)] = exchange.tensor.bytes_of(part, message.values)
        del exchange.missing[source, message.partition]
        if exchange.done:
            del self.exchanges[message.index]
            exchange.end()

    def query(self, exchange: TensorExchange) -> Iterator[Send]:
        """Ask a holder for whom an exchange waits."""
        key = exchange.tensor.declaration.key
        for holder in dict.fromkeys(holder for holder, _ in exchange.missing):
            yield Send(holder, Message(Kind.QUERY, self.peer, self._session, exchange.round, index=key))

    def fail(self, error: BaseException) -> None:
        """End all exchanges without a result."""
        failed, self.exchanges = self.exchanges, {}
        for exchange in failed.values():
            exchange.error = error
            exchange.end()
