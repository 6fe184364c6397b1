"""The tensors of a session: their declarations, and the parts in which they are combined."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import inf, prod
from pathlib import Path
from types import FrameType
from typing import Any

from hpcps.errors import RunError, SpecError
from hpcps.numerics.layout import Layout
from hpcps.protocol.messages import Declare, Peer
from hpcps.protocol.partitioning import Bounds
from hpcps.rules import Rule
from hpcps.session.elements import COPIED, FLOATS, TYPES, size_of
from hpcps.session.reduction import COPIES, GATHER, Reduction, compresses
from hpcps.session.sharding import Sharding

SMALL = 1 << 16
"""Bytes up to which tensors travel together."""

_LIBRARIES = sys.stdlib_module_names | {"hpcps", "torch", "jax", "optax", "tensorflow", "keras", "mxnet"}


def script_line(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Return the first line of these that is not in hpcps, a framework or the standard library; empty without one."""
    for frame, line in frames:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES:
            return f"{Path(frame.f_code.co_filename).name}, line {line}"
    return ""


@dataclass(frozen=True)
class Declaration:
    """A tensor that all processes exchange under the same key.

    Attributes:
        name: its name.
        dtype: the type of its elements, one of `elements.TYPES`; for `COPIES`, also one of `elements.COPIED`.
        shapes: the shape of each of its blocks; most tensors are one block.
        reduction: how the tensors of all processes are combined.
        whole: whether one aggregator combines all of it at once, also if it could be divided.
        key: its number in the order of declaration. The first declaration chooses it and all that follows.
        bucket: the number of its bucket: a small tensor shares one with others, a large tensor has its own.
        parts: the number of its parts.
        line: the line of the script that declared it, for messages.
    """

    name: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    reduction: Reduction = "mean"
    whole: bool = False
    key: int = field(default=0, compare=False)
    bucket: int = field(default=0, compare=False)
    parts: int = field(default=1, compare=False)
    line: str = field(default="", compare=False)

    @cached_property
    def blocks(self) -> tuple[int, ...]:
        """The number of elements of each of its blocks."""
        return tuple(map(prod, self.shapes))

    @cached_property
    def size(self) -> int:
        """The number of its elements."""
        return sum(self.blocks)

    @cached_property
    def elements(self) -> int:
        """Its size in a message, in elements of float32."""
        return elements_of(self.size, self.dtype)

    @property
    def small(self) -> bool:
        """Whether one aggregator combines all of it, with other tensors."""
        return not self.whole and self.size * size_of(self.dtype) <= SMALL

    def check(self) -> None:
        """Check that tensors of its type can be combined in this way.

        Raises:
            SpecError: they cannot.
        """
        kind = self.reduction if isinstance(self.reduction, str) else self.reduction.get("kind")
        if kind is None:
            raise SpecError(f"rule {self.reduction!r} has no kind")
        if kind in COPIES:
            return
        if self.dtype in COPIED:
            reason = f"only a broadcast or an allgather takes it: convert it to one of {', '.join(TYPES)}"
            if self.dtype.startswith("complex"):
                reason = f"{reason}; a complex number is two real ones"
        elif kind not in ("sum", "min", "max", "product") and self.dtype not in FLOATS:
            what = "the mean" if self.reduction == "mean" else f"a rule ({kind})"
            reason = f"{what} is for floats; use average=False for the sum"
        elif compresses(self.reduction) and self.dtype != "float32":
            reason = "compressors are for float32; Compression.fp16 takes others"
        else:
            return
        raise SpecError(f"tensor '{self.name}' is {self.dtype}: {reason}")

    def message(self) -> Declare:
        """Return the message that declares it."""
        return Declare(**{each.name: getattr(self, each.name) for each in fields(self)})

    @staticmethod
    def of(message: Declare) -> Declaration:
        """Return what a message declares."""
        return Declaration(**{each.name: getattr(message, each.name) for each in fields(Declaration)})

    def __str__(self) -> str:
        what = self.reduction if isinstance(self.reduction, str) else f"rule {self.reduction['kind']}"
        rows = "rows of " if self.reduction == GATHER else ""
        return f"'{self.name}', {rows}{self.size} x {self.dtype}, {what}"

    def difference(self, other: Declaration) -> str:
        """Describe this declaration if it differs from another of the same key or name; empty if they are equal."""
        if self == other:
            return ""
        text = str(self)
        if text == str(other):
            text += self._shape_beside(other) if self.shapes != other.shapes else f", {self.reduction}"
        return f"{text}, in {self.line}" if self.line else text

    def _shape_beside(self, other: Declaration) -> str:
        """Describe the first shape that another declaration does not have."""
        if len(self.shapes) != len(other.shapes):
            return f", {len(self.shapes)} tensors"
        k = next(k for k, both in enumerate(zip(self.shapes, other.shapes, strict=True)) if both[0] != both[1])
        which = f"tensor {k} of {len(self.shapes)} in it " if len(self.shapes) > 1 else ""
        return f", {which}of the shape {list(self.shapes[k])}"


@dataclass(eq=False)
class TensorPart:
    """A part of a tensor that is combined at once: a small tensor, or a partition of a large one.

    Attributes:
        tensor: the tensor.
        aggregator: the process that combines it.
        bounds: its elements.
        elements: its size in a message, in elements of float32.
        slot: its number in its bucket.
    """

    tensor: Tensor
    aggregator: Peer
    bounds: Bounds
    elements: int
    slot: int = 0

    @property
    def columns(self) -> slice:
        """Its bytes in the tensor."""
        item = size_of(self.tensor.declaration.dtype)
        return slice(self.bounds[0] * item, self.bounds[1] * item)

    def of(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """Return the part of what an exchange gives for its tensor; see `TensorExchange`."""
        return [tensors[0][self.columns]] if self.tensor.divided else tensors

    @property
    def blocks(self) -> Sequence[int]:
        """The number of elements of each block, or part of a block, in it."""
        tensor = self.tensor
        if self.bounds == (0, tensor.declaration.size):
            return tensor.declaration.blocks
        return [block.size for block in tensor.layout.restrict(*self.bounds).blocks]


class Tensor:
    """A declared tensor, divided among the aggregators.

    Attributes:
        declaration: its declaration.
        small: whether it is small, see `Declaration.small`.
        divided: whether it has several parts.
        rule: the rule that combines it; None if it has none.
        layout: its blocks.
        parts: its parts, those of an aggregator in order.
        exchange: its last exchange.
    """

    def __init__(self, declaration: Declaration, sharding: Sharding, rule: Rule | None) -> None:
        """Divide a tensor; for the rule see `rule_of`."""
        self.declaration, self.rule = declaration, rule
        self.small, self.divided = declaration.small, declaration.parts > 1
        self.exchange: TensorExchange | None = None
        self.layout = Layout.of([(str(k), (size,)) for k, size in enumerate(declaration.blocks)])
        dealt = sharding.deal(declaration.bucket, declaration.parts)
        sizes = [size for _, size in dealt]
        bounds = self.layout.bounds(sizes, whole=rule is not None and rule.scope == "block")
        self.parts = tuple(
            TensorPart(self, aggregator, (start, stop), elements_of(stop - start, declaration.dtype))
            for (aggregator, _), (start, stop) in zip(dealt, bounds, strict=True)
            if start < stop or declaration.parts == 1  # a part of whole blocks may have none
        )


class TensorExchange:
    """One exchange of a tensor.

    Attributes:
        tensor: the tensor.
        source: the tensors that it consists of, as `Copies` copies them, or, if it is divided, only its bytes; None if
            this worker gives none. They must not change before the exchange is done.
        target: gets the result, in the same form; it may be the source.
        began: when it began, in seconds.
        left: the number of parts whose result has not come.
        error: why there will be no result; None if there is one, or may be.
        waiting_for: the workers that have not sent the tensor, as far as an aggregator has said.
        asked: when its aggregators were asked for them, in seconds.
        call: the number of the call of the script that gave a tensor of this form without a name; 0 if it has a name.
        absent: the blocks that this worker does not have, whose values are zero.
        unused: the blocks that no worker has, when the result has come.
        deferred: whether parts of the result are kept until `write` writes them, so that no other thread changes the
            target while the script may look at it. Otherwise each is written when it comes.
        deferred_writes: what writes the parts that are kept, until `write` has done so.
        priority: how urgent it is; larger numbers are sent first.
    """

    unused: Sequence[int] = ()
    error: BaseException | None = None
    waiting_for: tuple[str, ...] = ()
    left: int
    deferred: bool
    deferred_writes: list[Callable[[], None]]
    asked = -inf
    _then: Callable[[], None] | None = None

    def __init__(
        self,
        tensor: Tensor,
        source: Any,
        target: Any,
        began: float,
        call: int = 0,
        absent: Sequence[int] = (),
        deferred: bool = False,
        priority: int = 0,
    ) -> None:
        """Begin an exchange.

        Raises:
            RunError: the tensor is being exchanged, or its last result is kept, whose memory the next one needs.
        """
        last = tensor.exchange
        if last is not None and last.error is None and (last.left or last.deferred_writes):
            first = "step or synchronize its optimizer" if last.deferred else "synchronize its handle"
            raise RunError(f"tensor '{tensor.declaration.name}' is being exchanged: {first} first")
        self.tensor, self.source, self.target, self.began, self.call = tensor, source, target, began, call
        self.absent, self.deferred, self.priority = absent, deferred, priority
        self.deferred_writes = []
        self.left = len(tensor.parts)
        tensor.exchange = self  # complete, as another thread may look at it

    @property
    def done(self) -> bool:
        """Whether the result has come, or will not come."""
        return not self.left or self.error is not None

    def then(self, call: Callable[[], None]) -> None:
        """Call a function when the exchange is done; at once if it is."""
        if self.done:
            call()
        else:
            self._then = call

    def take(self, write: Callable[[], None]) -> None:
        """Take a part of the result, which a function writes to the target."""
        if self.deferred:
            self.deferred_writes.append(write)
        else:
            write()

    def write(self) -> None:
        """Write the parts that were kept."""
        if self.deferred_writes:
            for write in self.deferred_writes:
                write()
            self.deferred_writes = []

    def end(self, error: BaseException | None = None) -> None:
        """Count a part as done, or end with an error; call what waits for the end."""
        if self.error is not None:
            return
        self.left, self.error = self.left - 1, error
        if not self.left or error is not None:
            self.source = self.target = None
            if self._then is not None:
                self._then()


def elements_of(size: int, dtype: str) -> int:
    """Return the size of elements in a message, in elements of float32."""
    return -(-size * size_of(dtype) // 4)
