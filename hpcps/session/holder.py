"""The holder: combines its parts of all tensors. It is a state machine: a message in, effects out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from hpcps.errors import RunError
from hpcps.numerics.layout import Allocate, Layout, Vector
from hpcps.protocol.messages import Kind, Message, Peer
from hpcps.protocol.partitioning import Partition
from hpcps.roles.events import Now, Send
from hpcps.roles.sync.partitions import PartitionCollector
from hpcps.session.tensors import Declaration, Tensor, TensorPart


class _Held:
    """The parts of a tensor that a holder combines, in one exchange after another.

    The result of an exchange stays in its buffer until all workers have sent the tensor again: before they do, they
    have copied the result.
    """

    def __init__(self, tensor: Tensor, holder: Peer, workers: Sequence[Peer], allocate: Allocate) -> None:
        self.tensor = tensor
        self.parts = tensor.of(holder)
        self.results = [allocate(part.words) for part in self.parts]
        words = [Layout.of([("", (part.words,))]) for part in self.parts]
        self.collector = PartitionCollector(workers, [Partition.of(each, (0, each.size)) for each in words])
        self.round = 0
        self._workers = len(workers)

    @property
    def begun(self) -> bool:
        """Whether some workers have sent the next partition, and others have not."""
        missing = len(self.collector.waiting_for)
        return self.collector.current > 0 or 0 < missing < self._workers


class Holder:
    """Combines its parts of all tensors, each as soon as all workers have sent it."""

    def __init__(self, peer: Peer, session: str, workers: Sequence[Peer], holders: Sequence[Peer]) -> None:
        """Begin without tensors.

        Args:
            peer: the process.
            session: the id of the session.
            workers: all workers.
            holders: all holders; the first one gets every declaration.
        """
        self.peer = peer
        self._session = session
        self._workers = tuple(workers)
        self._holders = tuple(holders)
        self._declared: dict[int, tuple[Declaration, Peer]] = {}
        self._held: dict[int, _Held] = {}
        self._disputed: set[int] = set()
        self._left: dict[Peer, str] = {}
        self.allocate: Callable[[int], Vector]

    def take(self, source: Peer, message: Message) -> Iterator[Send | Now]:
        """Handle a message of a worker.

        Raises:
            RunError: the session cannot go on.
        """
        match message.kind:
            case Kind.DECLARE:
                self._declare(source, Declaration.from_note(message.note))
            case Kind.UPDATE | Kind.ABSENT if message.index in self._disputed:
                pass
            case Kind.UPDATE | Kind.ABSENT:
                yield from self._collect(source, message)
            case Kind.QUERY:
                held = self._held.get(message.index)
                names = [str(peer) for peer in held.collector.waiting_for] if held else []
                yield Send(
                    source,
                    Message(Kind.ANSWER, self.peer, self._session, 0, index=message.index, note={"waiting_for": names}),
                )
            case _:
                raise RunError(f"{self.peer} gets no {message.kind.name} from {source}")

    def leave(self, worker: Peer, why: str) -> None:
        """Note that a worker has left; `why` ends the sentence that begins with its name.

        Raises:
            RunError: another worker waits for it.
        """
        self._left[worker] = why
        for held in self._held.values():
            self._check(held)

    def _declare(self, source: Peer, declaration: Declaration) -> None:
        first, by = self._declared.setdefault(declaration.key, (declaration, source))
        if difference := declaration.difference(first):
            # The first holder gets every declaration, so all processes hear of the same difference from it.
            if self.peer != self._holders[0]:
                self._disputed.add(declaration.key)
                return
            raise RunError(
                f"tensor {declaration.key} differs: {source} declares {difference}; {by} declares "
                f"{first.difference(declaration)}: all processes must declare the same tensors in the same order"
            )
        if declaration.key not in self._held:
            tensor = Tensor(declaration, self._holders, len(self._workers))
            if self.peer in tensor.holders:
                self._held[declaration.key] = _Held(tensor, self.peer, self._workers, self.allocate)

    def _collect(self, source: Peer, message: Message) -> Iterator[Send | Now]:
        held = self._held[message.index]
        for record in held.collector.put(source, message, held.round):
            raise RunError(f"{self.peer} got a wrong message for {held.tensor.declaration} from {source}: {record}")
        while held.collector.ready:
            number = held.collector.current
            part, out = held.parts[number], held.results[number]
            payloads = held.collector.take()
            yield Now("combine", partial(held.tensor.combine, part, payloads, out), part.words)
            yield from self._send(held, part, out)
            if held.collector.done:
                held.collector.clear()
                held.round += 1
        self._check(held)

    def _send(self, held: _Held, part: TensorPart, out: Vector) -> Iterator[Send]:
        key = held.tensor.declaration.key
        message = Message(
            Kind.COMBINED, self.peer, self._session, held.round, index=key, partition=part.number, payload=out
        )
        for worker in self._workers:
            if worker not in self._left:
                yield Send(worker, message)

    def _check(self, held: _Held) -> None:
        if not held.begun:
            return
        missing = held.collector.waiting_for
        for worker in missing:
            if worker in self._left:
                waiting = ", ".join(str(each) for each in self._workers if each not in (*missing, *self._left))
                why = f"{worker} {self._left[worker]}"
                raise RunError(
                    f"{waiting or 'a worker'} waited for {worker} in tensor {held.tensor.declaration}: {why}"
                )
