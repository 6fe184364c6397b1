"""The aggregator of a process: combines its parts of all tensors. It is a state machine: a message in, effects out."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from hpcps.aggregation.collector import Collector, span, spans
from hpcps.errors import RunError, SpecError
from hpcps.numerics.layout import Allocate, Vector
from hpcps.protocol.messages import (
    AllJoined,
    Declare,
    Given,
    Joined,
    Message,
    Missing,
    Peer,
    TensorResult,
    TensorUpdate,
    WhoIsMissing,
)
from hpcps.roles.events import Now, Send
from hpcps.session.buckets import Bucket, all_of
from hpcps.session.combination import Combination
from hpcps.session.elements import reduce
from hpcps.session.reduction import ACCUMULATE, GATHER, compresses, needs_all, rule_of
from hpcps.session.sharding import Sharding
from hpcps.session.tensors import Declaration, Tensor, TensorPart


class _AggregatedBucket:
    """A bucket as its aggregator sees it: what each worker has sent of it, and the results.

    A slot is combined when all workers have sent it. Its result stays in its memory until all workers have sent it
    again: before they do, they have copied the result.
    """

    def __init__(self, first: TensorPart, workers: Sequence[Peer], allocate: Allocate) -> None:
        self.bucket = bucket = Bucket(first)
        self.results = allocate(bucket.capacity)
        self.rows = Collector[Vector](workers, self.cut)
        self.since = 0.0
        self.accumulates = first.tensor.declaration.reduction == ACCUMULATE
        self.needs_all = needs_all(first.tensor.declaration.reduction, first.tensor.rule)
        self._workers = len(workers)
        # An encoding has any size, and so have the rows of an allgather: it is checked when they are read.
        reduction = first.tensor.declaration.reduction
        self._any_size = compresses(reduction) or reduction == GATHER
        self._calls: dict[int, tuple[int, Peer]] = {}
        self._absent: defaultdict[int, list[set[int]]] = defaultdict(list)
        self.stored = 0
        self._weights: Vector = np.zeros(0, np.float32)
        self._answers: dict[Peer, Vector] = {}
        self.combination = Combination(bucket, first.tensor, workers, allocate)

    def cut(self, row: Vector, begin: int, first: int, stop: int) -> Vector:
        """Return the elements of some slots in a row that begins at a slot; a tensor of any size is the only one."""
        edges = self.bucket.edges
        return row if self._any_size else row[edges[first] - edges[begin] : edges[stop] - edges[begin]]

    def store(self, first: int, stop: int) -> None:
        """Keep the results of a span as weights, to which workers add from now on; see `ACCUMULATE`."""
        if not self._weights.size:
            self._weights = np.zeros(self.bucket.capacity, np.float32)
        self.stored |= span(first, stop)
        elements = self.bucket.elements(first, stop)
        self._weights[elements] = self.results[elements]

    def accumulate(self, payload: Vector | None, weights: Vector, answer: Vector) -> None:
        """Add the elements of a worker to weights, and copy these to its answer, which stays until it sends again."""
        if payload is not None:
            dtype = self.bucket.parts[0].tensor.declaration.dtype
            reduce([weights.view(np.uint8), payload.view(np.uint8)], dtype, "sum", weights.view(np.uint8))
        answer[:] = weights

    def weights(self, worker: Peer, first: int, stop: int, allocate: Allocate) -> tuple[Vector, Vector]:
        """Return the weights of a span, and the memory of the answer to a worker."""
        if worker not in self._answers:
            self._answers[worker] = allocate(self.bucket.capacity)
        elements = self.bucket.elements(first, stop)
        return self._weights[elements], self._answers[worker][elements]

    def check_call(self, worker: Peer, slot: int, call: int) -> None:
        """Check that a worker gives a tensor without a name in the same call as the others.

        Raises:
            RunError: its script synchronizes such tensors in another order, so different tensors would be combined.
        """
        known, by = self._calls.setdefault(slot, (call, worker))
        if call != known:
            raise RunError(
                f"the order of tensors without a name differs: {worker} gives its tensor {call} of "
                f"{self.bucket.parts[slot].tensor.declaration} where {by} gives its tensor {known}: name the tensors, "
                "or synchronize them in the same order in all processes"
            )

    def note_absent(self, slot: int, blocks: Sequence[int]) -> None:
        """Note the blocks of a slot that a worker does not have."""
        self._absent[slot].append(set(blocks))

    def unused(self, first: int, stop: int, joined: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return the blocks that no worker has, of each slot of a span that is combined and has some; forget them.

        Args:
            first: the first slot.
            stop: the end of the slots.
            joined: the number of workers that have joined, and so have none.
        """
        found = []
        for slot in range(first, stop) if self._absent else ():
            absent = self._absent.pop(slot, [])
            if len(absent) == self._workers - joined and (blocks := set.intersection(*absent)):
                found.append((slot, tuple(sorted(blocks))))
        return tuple(found)

    def put(self, worker: Peer, first: int, stop: int, payload: Vector | None) -> Iterator[tuple[int, int]]:
        """Take a span of a worker, and return the spans that all workers have sent.

        Raises:
            RunError: it has sent them already, or another number of elements.
        """
        elements = self.bucket.elements(first, stop)
        fits = payload is None or self._any_size or payload.size == elements.stop - elements.start
        try:
            if fits:
                return self.rows.put(worker, first, stop, payload)
        except ValueError:
            pass
        raise RunError(f"{worker} has sent slots {first} to {stop - 1} of bucket {self.bucket.number} wrongly")

    def take(self, first: int, stop: int) -> tuple[int, dict[Peer, Vector]]:
        """Remove slots that all workers have sent; see `Collector.take`."""
        stop, rows = self.rows.take(first, stop)
        for slot in range(first, stop) if self._calls else ():
            self._calls.pop(slot, None)
        return stop, rows


class Aggregator:
    """Combines its parts of all tensors, each as soon as all workers have sent it.

    Attributes:
        waited: the seconds in which it waited for the last worker of an exchange after the first one, by the last.
    """

    def __init__(
        self,
        peer: Peer,
        workers: Sequence[Peer],
        sharding: Sharding,
        allocate: Allocate,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin without tensors.

        Args:
            peer: the process.
            workers: all workers.
            sharding: which aggregator combines what; the first one gets every declaration.
            allocate: returns memory to send from.
            clock: returns seconds.
        """
        self.peer = peer
        self._workers = tuple(workers)
        self._sharding = sharding
        self._declared: dict[int, tuple[Declaration, Peer]] = {}
        self._collected: dict[int, _AggregatedBucket] = {}
        self._disputed = False
        self._gone: dict[Peer, str] = {}
        self._joined: dict[Peer, Joined] = {}
        # How many tensors each worker has declared; the first aggregator knows it.
        self._known: Counter[Peer] = Counter()
        self._clock, self._allocate = clock, allocate
        self._counted = 0.0
        self.waited: defaultdict[Peer, float] = defaultdict(float)

    def take(self, source: Peer, message: Message) -> Iterator[Send | Now]:
        """Handle a message of a worker.

        Raises:
            RunError: the session cannot go on.
        """
        match message:
            case Declare():
                self._declare(source, Declaration.of(message))
            case Given():
                yield from self._collect(source, message)
            case Joined():
                yield from self._join(source, message)
            case WhoIsMissing(bucket=bucket, first=slot, slots=slots):
                found = self._collected.get(bucket)
                waits = found is not None and not found.stored >> slot & 1
                names = tuple(str(peer) for peer in found.rows.waiting_for(slot)) if found and waits else ()
                yield Send(source, Missing(bucket=bucket, first=slot, slots=slots, waiting_for=names))
            case _:
                raise RunError(f"{self.peer} gets no {message.kind} from {source}")

    def leave(self, worker: Peer, why: str) -> None:
        """Note that a worker has left; `why` ends the sentence that begins with its name.

        Raises:
            RunError: another worker waits for it.
        """
        self._gone[worker] = why
        self._check_joined()
        for collected in self._collected.values():
            self._check(collected)

    def _join(self, source: Peer, message: Joined) -> Iterator[Send | Now]:
        """Combine without a worker that has joined, until all have."""
        self._joined[source] = message
        self._check_joined()
        if len(self._joined) < len(self._workers):
            for collected in self._collected.values():
                yield from self._combine_without(collected)
            return
        declared = [declaration for declaration, _ in self._declared.values()]
        news = declared[min(self._known[worker] for worker in self._workers) :]
        tables = [d.reduction if isinstance(d.reduction, str) else dict(d.reduction) for d in news]
        answer = AllJoined(
            last=source.index,
            steps=max(each.steps for each in self._joined.values()),
            updates=max(each.updates for each in self._joined.values()),
            declared=tuple(
                (d.key, d.name, d.dtype, d.shapes, table, d.whole) for d, table in zip(news, tables, strict=True)
            )
            if self.peer == self._sharding.aggregators[0]
            else (),
        )
        self._joined = {}
        for worker in self._workers:
            self._known[worker] = len(declared)
            yield Send(worker, answer)

    def _check_joined(self) -> None:
        """Raise an error if workers that have joined wait for one that has left."""
        for worker, why in self._gone.items() if self._joined else ():
            if worker not in self._joined:
                raise RunError(f"{', '.join(map(str, self._joined))} waited in join() for {worker}: {worker} {why}")

    def _combine_without(self, collected: _AggregatedBucket, priority: int = 0) -> Iterator[Send | Now]:
        """Combine what all workers have sent that have not joined.

        Raises:
            RunError: each worker must take part.
        """
        for worker in self._joined:
            for first, stop in spans(collected.rows.awaited_of(worker)):
                if collected.needs_all:
                    raise RunError(
                        f"tensor {collected.bucket.parts[first].tensor.declaration} needs all processes, and {worker} "
                        "has called join(): until all have, leave out rules, attacks, broadcasts and asynchronous "
                        "optimizers, or give all processes as much data"
                    )
                yield from self._combine(worker, collected, first, stop, None, priority)

    def _declare(self, source: Peer, declaration: Declaration) -> None:
        self._known[source] += 1
        first, by = self._declared.setdefault(declaration.key, (declaration, source))
        if difference := declaration.difference(first):
            # The first aggregator gets every declaration, so all processes hear of the same difference from it.
            if self.peer != self._sharding.aggregators[0]:
                self._disputed = True
                return
            raise RunError(
                f"tensor {declaration.key} differs: {source} declares {difference}; {by} declares "
                f"{first.difference(declaration)}: all processes must declare the same tensors in the same order"
            )
        if by != source or self._disputed:
            return
        try:
            rule = rule_of(declaration.reduction, len(self._workers))
        except SpecError as error:  # the script of the worker may have loaded a plugin, which this process has not
            raise RunError(
                f"{self.peer} cannot combine tensor '{declaration.name}' of {source}: {error}. If a plugin defines it, "
                "every process must know the plugin, also a server: start with `hpcps launch --plugin FILE`"
            ) from error
        tensor = Tensor(declaration, self._sharding, rule)
        for part in tensor.parts:
            if part.aggregator == self.peer:
                if declaration.bucket not in self._collected:
                    self._collected[declaration.bucket] = _AggregatedBucket(part, self._workers, self._allocate)
                self._collected[declaration.bucket].bucket.add(part)

    def _collect(self, source: Peer, message: Given) -> Iterator[Send | Now]:
        if self._disputed:
            return
        collected = self._collected[message.bucket]
        first, end = message.bounds
        payload = message.values if isinstance(message, TensorUpdate) else None
        slots = span(first, end)
        for slot, call in message.calls:
            collected.check_call(source, slot, call)
        for slot, blocks in message.absent:
            collected.note_absent(slot, blocks)
        for stored, found in ((True, slots & collected.stored), (False, slots & ~collected.stored)):
            for low, stop in spans(found):
                part = None if payload is None else collected.cut(payload, first, low, stop)
                if stored:
                    weights, answer = collected.weights(source, low, stop, self._allocate)
                    yield Now("combine", partial(collected.accumulate, part, weights, answer), answer.size)
                    result = TensorResult(
                        bucket=message.bucket, first=low, slots=all_of(stop - low), priority=message.priority,
                        values=answer,
                    )  # fmt: skip
                    yield Send(source, result)
                else:
                    yield from self._combine(source, collected, low, stop, part, message.priority)
        yield from self._combine_without(collected, message.priority)
        self._check(collected)

    def _combine(
        self, source: Peer, collected: _AggregatedBucket, first: int, end: int, payload: Vector | None, priority: int
    ) -> Iterator[Send | Now]:
        """Combine the slots of a span that all workers have sent now; the results have the priority of the last."""
        if not collected.rows.begun:
            collected.since = self._clock()
        for low, high in collected.put(source, first, end, payload):
            now = self._clock()
            self.waited[source] += now - max(collected.since, self._counted)
            self._counted = now
            while low < high:
                stop, rows = collected.take(low, high)
                out = collected.results[collected.bucket.elements(low, stop)]
                yield Now("combine", partial(collected.combination.combine, low, stop, rows, out), out.size)
                if collected.accumulates:
                    collected.store(low, stop)
                combined = TensorResult(
                    bucket=collected.bucket.number, first=low, slots=all_of(stop - low), priority=priority,
                    unused=collected.unused(low, stop, len(self._joined)),
                    values=collected.combination.sent(out),
                )  # fmt: skip
                for worker in self._workers:
                    if worker not in self._gone and worker not in self._joined:
                        yield Send(worker, combined)
                low = stop

    def _check(self, collected: _AggregatedBucket) -> None:
        """Raise an error if workers wait for one that has left."""
        for worker, why in self._gone.items():
            if slots := collected.rows.awaited_of(worker):
                slot = next(spans(slots))[0]
                missing = collected.rows.waiting_for(slot)
                waiting = ", ".join(str(each) for each in self._workers if each not in (*missing, *self._gone))
                raise RunError(
                    f"{waiting or 'a worker'} waited for {worker} in tensor "
                    f"{collected.bucket.parts[slot].tensor.declaration}: {worker} {why}"
                )
