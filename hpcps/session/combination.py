"""How the rows of a bucket become results: by an operation, or by a rule, with what it keeps from step to step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from hpcps.aggregation.rule_state import RuleState
from hpcps.numerics.kernels import enough
from hpcps.numerics.layout import Allocate, Layout, Vector
from hpcps.numerics.operations import average
from hpcps.numerics.updates import Destination, NotFiniteError, Updates
from hpcps.protocol.messages import Peer
from hpcps.rules.base import combine_received
from hpcps.rules.context import NO_CONTEXT, Context
from hpcps.session.buckets import Bucket
from hpcps.session.elements import OPERATIONS, reduce, size_of, to_float32, write
from hpcps.session.gathering import Gathering
from hpcps.session.reduction import GATHER, compresses, sent_with, simulated
from hpcps.session.tensors import Tensor

if TYPE_CHECKING:
    from hpcps.session.compressed import TensorDecoder, TensorEncoder
    from hpcps.session.whole import SimulatedAttack


class Combination:
    """Combines the rows of the slots of a bucket."""

    def __init__(self, bucket: Bucket, tensor: Tensor, workers: Sequence[Peer], allocate: Allocate) -> None:
        """Combine as the tensors of a bucket declare.

        Args:
            bucket: the bucket.
            tensor: one of its tensors.
            workers: all workers.
            allocate: returns memory to send from.
        """
        self._bucket, self._tensor, self._workers = bucket, tensor, len(workers)
        self._layout: tuple[tuple[int, int], Layout] | None = None
        self._kept: RuleState | None = None
        self._attack: SimulatedAttack | None = None
        self._decoder: TensorDecoder | None = None
        self._encoder: TensorEncoder | None = None
        gathers = tensor.declaration.reduction == GATHER
        self._gathering = Gathering(tensor.declaration, workers, allocate) if gathers else None
        if compresses(self._tensor.declaration.reduction):
            from hpcps.session.compressed import TensorDecoder, TensorEncoder

            self._decoder = TensorDecoder.of(self._tensor, "update")
            self._encoder = TensorEncoder.of(self._tensor, "model", allocate)

    def combine(self, first: int, stop: int, rows: Mapping[Peer, Vector], out: Vector) -> None:
        """Combine the rows of a span, in the order of the workers, and write the result.

        A worker that has joined has no row: it counts as zeros in a mean, and does not count in another operation.
        """
        if self._gathering is not None:
            self._gathering.join(rows)
            return
        if not out.size:
            return
        tensor, decode = self._tensor, self._decoder or _as_it_is
        payloads = [decode(worker, row) for worker, row in rows.items()]
        dtype, reduction = tensor.declaration.dtype, tensor.declaration.reduction
        if tensor.rule is not None or reduction == "mean":
            payloads += [np.zeros(out.size, np.float32)] * (self._workers - len(payloads))
        if tensor.rule is None and not ((dtype, reduction) == ("float32", "mean") and _averaged(payloads, out)):
            parts = [payload.view(np.uint8) for payload in payloads]
            # A broadcast has one row, and the first exchange of accumulated weights is a sum.
            operation = reduction if isinstance(reduction, str) and reduction in OPERATIONS else "sum"
            reduce(parts, dtype, operation, out.view(np.uint8))
        elif tensor.rule is not None:
            layout = self._layout_of(first, stop)
            values = [to_float32(payload.view(np.uint8), dtype) for payload in payloads]
            sent = np.ones((len(values), len(layout.blocks)), np.bool_)
            context = self._context(values, layout) if tensor.declaration.whole else NO_CONTEXT
            result: Vector = np.empty(layout.size, np.float32) if dtype != "float32" else out
            combine_received(tensor.rule, layout, values, sent, context, Destination(out=result))
            if result is not out:
                write(result, dtype, out.view(np.uint8))

    def sent(self, result: Vector) -> Vector:
        """Return what is sent of a result."""
        if self._gathering is not None:
            return self._gathering.result
        return result if self._encoder is None else self._encoder(result)

    def _context(self, values: list[Vector], layout: Layout) -> Context:
        """Return what the rule keeps from step to step; replace the updates of simulated attackers."""
        rule, reduction = self._tensor.rule, self._tensor.declaration.reduction
        assert rule is not None, "otherwise it would not be whole"
        seed = reduction["seed"] if simulated(reduction) else 0
        # The seeds are those of an experiment with one server.
        kept = self._kept = self._kept or RuleState(rule, seed, Peer("server", 0))
        if simulated(reduction):
            from hpcps.session.whole import SimulatedAttack, attack_of  # here, because their imports take long

            if self._attack is None:
                compressor = sent_with(reduction)
                attack = attack_of(reduction["attack"], compressor)
                self._attack = SimulatedAttack(attack, rule, seed, len(values), layout, compressor)
            values[:] = self._attack.replaced(values)
        return Context(random=kept.random, state=kept.arrays)

    def _layout_of(self, first: int, stop: int) -> Layout:
        """Return the blocks of a span; elements that fill the last float32 of a slot are a block of their own."""
        if self._layout is None or self._layout[0] != (first, stop):
            item = size_of(self._tensor.declaration.dtype)
            sizes = [
                size
                for part in self._bucket.parts[first:stop]
                for size in (*part.blocks, part.elements * 4 // item - (part.bounds[1] - part.bounds[0]))
                if size
            ]
            self._layout = (first, stop), Layout.of([(str(k), (size,)) for k, size in enumerate(sizes)])
        return self._layout[1]


def _as_it_is(sender: Peer, row: Vector) -> Vector:
    return row


@lru_cache(maxsize=1 << 10)
def _one_block(size: int) -> Layout:
    """Return the layout of a tensor."""
    return Layout.of([("", (size,))])


def _averaged(payloads: Sequence[Vector], out: Vector) -> bool:
    """Write the mean with a compiled kernel, and return whether there is one for so many values.

    It is the same number as that of `reduce`. It needs finite values; a mean of other values is not finite, as loss
    scaling expects.
    """
    if not enough(len(payloads) * out.size):
        return False
    layout = _one_block(out.size)
    ones = np.ones((len(payloads), 1), np.bool_)
    try:
        average(Updates(layout, payloads, ones, to=Destination(out=out)))
    except NotFiniteError:
        return False
    return True
