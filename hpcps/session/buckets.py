"""Buckets: the parts of tensors that an aggregator combines, in a row in one buffer of each process.

Small tensors of one type and reduction that are declared one after another share a bucket, so one message carries many
of them. A message names a span: slots of a bucket in a row. The spans of the workers may differ, as they send what they
have: the aggregator combines the slots that all have sent.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache

import numpy as np

from hpcps.numerics.layout import Mask, Vector
from hpcps.session.elements import Bytes
from hpcps.session.sharding import Sharding
from hpcps.session.tensors import Declaration, TensorPart

ID = "session"
"""The run id of messages."""
_BUCKET, _SHARED_BUCKET = 1 << 16, 1 << 18
"""Float32 that a bucket of small tensors takes: between hosts, and between processes that share memory."""
PARTITION = 3 << 18
"""Bytes of a partition between hosts, so that sending, combining and receiving overlap."""
_SHARED_PARTITION, _COMBINED = 1 << 23, 1 << 25
"""Between processes that share memory: the most bytes of a partition, because there a message costs more time than it
hides; and the most bytes that an aggregator combines at once, of all workers together."""


def partition(workers: int, shared_memory: bool) -> int:
    """Return the most bytes of a partition. Between processes that share memory, a smaller tensor has one aggregator.

    Args:
        workers: the number of workers.
        shared_memory: whether all processes share memory.
    """
    return min(_SHARED_PARTITION, _COMBINED // workers) if shared_memory else PARTITION


class Placement:
    """Chooses the bucket of each tensor, in the order of declaration, and divides it."""

    def __init__(self, workers: int, sharding: Sharding, shared_memory: bool) -> None:
        """Begin without buckets.

        Args:
            workers: the number of workers.
            sharding: which aggregator combines what.
            shared_memory: whether all processes share memory.
        """
        self._sharding, self._shared_memory = sharding, shared_memory
        self._partition = partition(workers, shared_memory)
        self._buckets = 0
        self._open: dict[tuple[str, str], tuple[int, int]] = {}

    def place(self, declaration: Declaration) -> Declaration:
        """Return a declaration with its parts and bucket: that of the last tensor like it, if there is room."""
        kind = declaration.dtype, json.dumps(declaration.reduction, sort_keys=True)
        number, room = self._open.get(kind, (0, 0)) if declaration.small else (0, 0)
        if room < max(declaration.elements, 1):
            number, room = self._buckets, _SHARED_BUCKET if self._shared_memory else _BUCKET
            self._buckets += 1
        if declaration.small:
            self._open[kind] = number, room - declaration.elements
        parts = 1
        if not (declaration.small or declaration.whole):
            if self._shared_memory and self._sharding.even:
                parts = -(-4 * declaration.elements // self._partition)
            else:  # each aggregator receives its share
                parts = self._sharding.parts(4 * declaration.elements, self._partition)
        return replace(declaration, bucket=number, parts=parts)


@lru_cache
def all_of(slots: int) -> Mask:
    """Return the mask of so many slots, all of them set."""
    return np.ones(slots, np.bool_)


class Bucket:
    """The parts of tensors that one aggregator combines, in slots.

    Attributes:
        number: its number, in the order of declaration of its first tensor. A large tensor has a bucket of this number
            at each of its aggregators.
        parts: the part of each slot.
        edges: the first element of each slot, and the end of the last.
        capacity: the elements of its buffer.
    """

    def __init__(self, first: TensorPart) -> None:
        """Begin an empty bucket for a tensor and those after it."""
        tensor = first.tensor
        self.number = tensor.declaration.bucket
        own = [part.elements for part in tensor.parts if part.aggregator == first.aggregator]
        self.capacity = _SHARED_BUCKET if tensor.small else sum(own)
        self.parts: list[TensorPart] = []
        self.edges = [0]

    def add(self, part: TensorPart) -> None:
        """Give the next slot to a part."""
        part.slot = len(self.parts)
        self.parts.append(part)
        self.edges.append(self.edges[-1] + part.elements)

    def elements(self, first: int, stop: int) -> slice:
        """Return the elements of a span of slots in the buffer."""
        return slice(self.edges[first], self.edges[stop])

    def bytes_of(self, slot: int, elements: Vector) -> Bytes:
        """Return the bytes of a slot in its elements, without those that fill the last one."""
        columns = self.parts[slot].columns
        return elements.view(np.uint8)[: columns.stop - columns.start]
