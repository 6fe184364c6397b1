"""Buckets: the parts of tensors that a holder combines, in a row in one buffer of each process.

Small tensors of one type and reduction that are declared one after another share a bucket, so one message carries many
of them. A message names a span: slots of a bucket in a row. The spans of the workers may differ, as they send what they
have: the holder combines the slots that all have sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from hpcps.numerics.kernels import enough
from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.numerics.operations import average
from hpcps.numerics.updates import Destination, NotFiniteError, Updates
from hpcps.protocol.messages import Peer
from hpcps.roles.combiner_state import RuleState
from hpcps.rules.base import combine_received
from hpcps.rules.context import NO_CONTEXT, Context
from hpcps.session.elements import Bytes, add, size_of, to_float32, write
from hpcps.session.reduction import compresses, simulated
from hpcps.session.tensors import Declaration, TensorPart

if TYPE_CHECKING:
    from hpcps.session.compressed import TensorCodec
    from hpcps.session.whole import SimulatedAttack

ID = "session"
"""The run id of messages."""
_WORDS, _SHARED_WORDS = 1 << 16, 1 << 18
"""Float32 that a bucket of small tensors takes: between hosts, and between processes that share memory."""
_PARTITION = 3 << 18
"""Bytes of a partition between hosts, so that sending, combining and receiving overlap."""
_SHARED_PARTITION, _COMBINED = 1 << 23, 1 << 25
"""Between processes that share memory: the most bytes of a partition, because there a message costs more time than it
hides; and the most bytes that a holder combines at once, of all workers together."""


def partition(workers: int, shared_memory: bool) -> int:
    """Return the most bytes of a partition. Between processes that share memory, a smaller tensor has one holder.

    Args:
        workers: the number of workers.
        shared_memory: whether all processes share memory.
    """
    return min(_SHARED_PARTITION, _COMBINED // workers) if shared_memory else _PARTITION


class Placement:
    """Chooses the bucket of each tensor, in the order of declaration, and divides it."""

    def __init__(self, workers: int, holders: int, shared_memory: bool) -> None:
        """Begin without buckets.

        Args:
            workers: the number of workers.
            holders: the number of holders.
            shared_memory: whether all processes share memory.
        """
        self._holders, self._shared_memory = holders, shared_memory
        self._partition = partition(workers, shared_memory)
        self._buckets = 0
        self._open: dict[tuple[str, str], tuple[int, int]] = {}

    def place(self, declaration: Declaration) -> Declaration:
        """Return a declaration with its parts and bucket: that of the last tensor like it, if there is room."""
        kind = declaration.dtype, json.dumps(declaration.reduction, sort_keys=True)
        number, room = self._open.get(kind, (0, 0)) if declaration.small else (0, 0)
        if room < max(declaration.words, 1):
            number, room = self._buckets, _SHARED_WORDS if self._shared_memory else _WORDS
            self._buckets += 1
        if declaration.small:
            self._open[kind] = number, room - declaration.words
        parts = 1
        if not (declaration.small or declaration.whole):
            parts = -(-4 * declaration.words // self._partition)
            if not self._shared_memory:
                parts += -parts % self._holders  # each holder receives as much as any other
        return replace(declaration, bucket=number, parts=parts)


def spans(slots: int) -> Iterator[tuple[int, int]]:
    """Return the spans, as (first, stop), of a set of slots: the bits of a number."""
    while slots:
        first = (slots & -slots).bit_length() - 1
        rest = ~(slots >> first)
        stop = first + (rest & -rest).bit_length() - 1
        yield first, stop
        slots = slots >> stop << stop


def span(first: int, stop: int) -> int:
    """Return the set of the slots of a span."""
    return (1 << stop) - (1 << first)


@lru_cache
def all_of(slots: int) -> Mask:
    """Return the mask of so many slots, all of them set."""
    return np.ones(slots, np.bool_)


class Bucket:
    """The parts of tensors that one holder combines, in slots.

    Attributes:
        number: its number, in the order of declaration of its first tensor. A large tensor has a bucket of this number
            at each of its holders.
        parts: the part of each slot.
        edges: the first word of each slot, and the end of the last.
        capacity: the words of its buffer.
        codec: encodes its only tensor; None if tensors travel as they are.
        results: encodes the results; None if they travel as they are.
    """

    def __init__(self, first: TensorPart) -> None:
        """Begin an empty bucket for a tensor and those after it."""
        tensor = first.tensor
        self.number = tensor.declaration.bucket
        self.capacity = (
            _SHARED_WORDS if tensor.small else sum(part.words for part in tensor.parts if part.holder == first.holder)
        )
        self.parts: list[TensorPart] = []
        self.edges = [0]
        self._layout: tuple[tuple[int, int], Layout] | None = None
        self._kept: RuleState | None = None
        self.codec: TensorCodec | None = None
        self.results: TensorCodec | None = None
        if compresses(tensor.declaration.reduction):
            from hpcps.session.compressed import TensorCodec

            self.codec, self.results = TensorCodec.both(tensor.declaration.reduction["compression"], tensor.layout)
        self._attack: SimulatedAttack | None = None

    def add(self, part: TensorPart) -> None:
        """Give the next slot to a part."""
        part.slot = len(self.parts)
        self.parts.append(part)
        self.edges.append(self.edges[-1] + part.words)

    def words(self, first: int, stop: int) -> slice:
        """Return the words of a span of slots in the buffer."""
        return slice(self.edges[first], self.edges[stop])

    def bytes_of(self, slot: int, words: Vector) -> Bytes:
        """Return the bytes of a slot in its words, without those that fill the last word."""
        columns = self.parts[slot].columns
        return words.view(np.uint8)[: columns.stop - columns.start]

    def combine(self, first: int, stop: int, payloads: Sequence[Vector], out: Vector) -> None:
        """Combine the payloads of a span, in the order of the workers, and write the words of the result."""
        if not out.size:
            return
        tensor = self.parts[first].tensor
        if self.codec is not None:
            payloads = [self.codec.decode(tensor.declaration.name, payload) for payload in payloads]
        dtype, reduction = tensor.declaration.dtype, tensor.declaration.reduction
        if tensor.rule is None and not ((dtype, reduction) == ("float32", "mean") and _averaged(payloads, out)):
            rows = [payload.view(np.uint8) for payload in payloads]
            add(rows, dtype, len(rows) if reduction == "mean" else 1, out.view(np.uint8))
        elif tensor.rule is not None:
            layout = self._layout_of(first, stop)
            values = [to_float32(payload.view(np.uint8), dtype) for payload in payloads]
            sent = np.ones((len(values), len(layout.blocks)), np.bool_)
            context = self._context(values, layout) if tensor.declaration.whole else NO_CONTEXT
            result: Vector = np.empty(layout.size, np.float32) if dtype != "float32" else out
            combine_received(tensor.rule, layout, values, sent, context, Destination(out=result))
            if result is not out:
                write(result, dtype, out.view(np.uint8))

    def _context(self, values: list[Vector], layout: Layout) -> Context:
        """Return what the rule keeps from step to step; replace the updates of simulated attackers."""
        tensor = self.parts[0].tensor
        assert tensor.rule is not None, "otherwise it would not be whole"
        reduction = tensor.declaration.reduction
        seed = reduction["seed"] if simulated(reduction) else 0
        # The seeds are those of an experiment with one server.
        kept = self._kept = self._kept or RuleState(tensor.rule, seed, Peer("server", 0))
        if simulated(reduction):
            from hpcps.session.whole import (  # here, because their imports take long
                SimulatedAttack,
                attack_of,
                sent_with,
            )

            self._attack = self._attack or SimulatedAttack(
                attack_of(reduction), tensor.rule, seed, len(values), layout, sent_with(reduction)
            )
            values[:] = self._attack.replaced(values)
        return Context(random=kept.random, state=kept.arrays)

    def _layout_of(self, first: int, stop: int) -> Layout:
        """Return the blocks of a span; elements that fill the last word of a slot are a block of their own."""
        if self._layout is None or self._layout[0] != (first, stop):
            item = size_of(self.parts[first].tensor.declaration.dtype)
            sizes = [
                size
                for part in self.parts[first:stop]
                for size in (*part.blocks, part.words * 4 // item - (part.bounds[1] - part.bounds[0]))
                if size
            ]
            self._layout = (first, stop), Layout.of([(str(k), (size,)) for k, size in enumerate(sizes)])
        return self._layout[1]


def _averaged(payloads: Sequence[Vector], out: Vector) -> bool:
    """Write the mean with a compiled kernel, and return whether there is one for so many values.

    It is the same number as that of `add`. It needs finite values; a mean of other values is not finite, as loss
    scaling expects.
    """
    if not enough(len(payloads) * out.size):
        return False
    layout = Layout.of([("", (out.size,))])
    ones = np.ones((len(payloads), 1), np.bool_)
    try:
        average(Updates(layout, payloads, ones, to=Destination(out=out)))
    except NotFiniteError:
        return False
    return True
