"""The tensors of a session: their declarations, the parts that each holder combines, and how they are combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from hpcps.errors import SpecError
from hpcps.numerics.layout import Layout, Vector
from hpcps.numerics.operations import average
from hpcps.numerics.updates import Destination, NotFiniteError, Updates
from hpcps.protocol.messages import Peer
from hpcps.protocol.partitioning import Bounds, Partition, Partitioning
from hpcps.registry import Config
from hpcps.rules import Rule
from hpcps.rules.combining import combine_received
from hpcps.rules.context import NO_CONTEXT
from hpcps.session.elements import FLOATS, Bytes, add, size_of, to_float32, write

_SMALL = 1 << 16
"""Bytes up to which one holder combines the whole tensor: the messages of more holders take longer than the work."""
_PARTITION = 1 << 22
"""Bytes of a partition, so that combining overlaps copying."""

Reduction = str | Mapping[str, Any]
"""How the tensors of all processes are combined: `sum`, `mean`, or the table of a rule."""


def rule_of(reduction: Reduction, workers: int) -> Rule | None:
    """Return the rule of a reduction; None for a sum or mean.

    Raises:
        SpecError: there is no such rule, its keys are wrong, or a session cannot use it with so many workers.
    """
    if reduction in ("sum", "mean"):
        return None
    from hpcps.spec.schema import Validation  # here, because its import takes long

    rule = Validation(rule=reduction).rule  # type: ignore[arg-type]  # its constructor words mistakes
    if not isinstance(rule, Rule):
        raise SpecError(f"rule {rule.kind} is for asynchronous training: a script exchanges its tensors synchronously")
    if rule.requires:
        raise SpecError(f"rule {rule.title} needs {', '.join(sorted(rule.requires))}, which a script cannot give to it")
    if rule.scope == "vector":
        raise SpecError(
            f"rule {rule.title} sees whole gradients, but a script exchanges them tensor by tensor: use a rule that "
            "sees coordinates or blocks, such as trimmed_mean or median; `hpcps components rules` says what each sees"
        )
    if reason := rule.contradiction() or rule.reason_against(workers):
        raise SpecError(f"rule {rule.title}: {reason}")
    return rule


def table_of(rule: object) -> Reduction:
    """Return a rule, given by its name, its table or itself, as a table of JSON values.

    Raises:
        SpecError: it is none of these.
    """
    if isinstance(rule, str):
        return {"kind": rule}
    if isinstance(rule, Config):
        return rule.model_dump(mode="json", exclude_none=True)
    if isinstance(rule, Mapping):
        return {str(key): value for key, value in rule.items()}
    raise SpecError(f"rule must be the name, the table or an object of a rule, such as 'median', not {rule!r}")


@dataclass(frozen=True)
class Declaration:
    """A tensor that all processes exchange under the same key.

    Attributes:
        key: its number in the order of declaration.
        name: its name.
        dtype: the type of its elements, one of `elements.TYPES`.
        blocks: the number of elements of each of its blocks; most tensors are one block.
        reduction: how the tensors of all processes are combined.
    """

    key: int
    name: str
    dtype: str
    blocks: tuple[int, ...]
    reduction: Reduction = "mean"

    @property
    def size(self) -> int:
        """The number of its elements."""
        return sum(self.blocks)

    def to_note(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    @staticmethod
    def from_note(note: Mapping[str, Any]) -> Declaration:
        """Read what `to_note` returned."""
        return Declaration(**{**note, "blocks": tuple(note["blocks"])})

    def __str__(self) -> str:
        what = self.reduction if isinstance(self.reduction, str) else f"rule {self.reduction['kind']}"
        return f"'{self.name}', {self.size} x {self.dtype}, {what}"

    def difference(self, other: Declaration) -> str:
        """Return in which words two declarations with the same key differ; empty if they are equal."""
        if self == other:
            return ""
        return str(self) if str(self) != str(other) else f"{self}, blocks {self.blocks}, {self.reduction}"


@dataclass(frozen=True)
class TensorPart:
    """A partition of a tensor.

    Attributes:
        holder: the process that combines it.
        number: its number among those of the holder.
        bounds: its elements.
        words: its size in a message, in float32.
        offset: its first word in a buffer of all partitions, each of which begins at a cache line.
    """

    holder: Peer
    number: int
    bounds: Bounds
    words: int
    offset: int


class Tensor:
    """A declared tensor, divided among the holders.

    Attributes:
        declaration: its declaration.
        parts: its partitions, those of a holder in order.
        words: the size of a buffer of all partitions, in float32.
    """

    def __init__(self, declaration: Declaration, holders: Sequence[Peer], workers: int) -> None:
        """Divide a tensor.

        Raises:
            SpecError: its rule cannot be used.
        """
        self.declaration = declaration
        self._workers = workers
        self._rule = rule_of(declaration.reduction, workers)
        self._layout = Layout.of([(str(k), (size,)) for k, size in enumerate(declaration.blocks)])
        self._item = size_of(declaration.dtype)
        parts, self.words = [], 0
        for holder, slices in self._divide(holders):
            for number, (start, stop) in enumerate(slices):
                words = -(-(stop - start) * self._item // 4)
                parts.append(TensorPart(holder, number, (start, stop), words, self.words))
                self.words += -(-words // 16) * 16
        self.parts = tuple(parts)

    def _divide(self, holders: Sequence[Peer]) -> list[tuple[Peer, tuple[Bounds, ...]]]:
        size, whole = self._layout.size, self._rule is not None and self._rule.scope == "block"
        one = size * self._item <= _SMALL or len(holders) == 1
        bounds = ((0, size),) if one else self._layout.bounds(len(holders), whole=whole)
        first = self.declaration.key % len(holders) if one else 0
        slices = Partitioning(self._layout, bounds, 0, _PARTITION // self._item, whole=whole).updates
        return [
            (holders[first + k], own)
            for k, own in enumerate(slices)
            if one or bounds[k][0] < bounds[k][1]  # a shard of whole blocks may have none
        ]

    @cached_property
    def holders(self) -> tuple[Peer, ...]:
        """The processes that combine its partitions."""
        return tuple(dict.fromkeys(part.holder for part in self.parts))

    def of(self, holder: Peer) -> tuple[TensorPart, ...]:
        """Return the partitions that a holder combines."""
        return tuple(part for part in self.parts if part.holder == holder)

    def columns(self, part: TensorPart) -> slice:
        """Return the bytes of a partition in the tensor."""
        return slice(part.bounds[0] * self._item, part.bounds[1] * self._item)

    def bytes_of(self, part: TensorPart, words: Vector) -> Bytes:
        """Return the bytes of a partition in the words of its message, without those that fill the last word."""
        return words.view(np.uint8)[: (part.bounds[1] - part.bounds[0]) * self._item]

    def combine(self, part: TensorPart, payloads: Sequence[Vector], out: Vector) -> None:
        """Combine the payloads of a partition, in the order of the workers, and write the words of the result."""
        declaration, rows = self.declaration, [self.bytes_of(part, payload) for payload in payloads]
        target = self.bytes_of(part, out)
        if self._rule is None and not self._averaged(part, payloads, out):
            add(rows, declaration.dtype, len(rows) if declaration.reduction == "mean" else 1, target)
        elif self._rule is not None:
            layout = Partition.of(self._layout, part.bounds).layout
            values = [to_float32(row, declaration.dtype) for row in rows]
            sent = np.ones((len(rows), len(layout.blocks)), np.bool_)
            result: Vector = np.empty(layout.size, np.float32) if declaration.dtype != "float32" else out
            combine_received(self._rule, layout, values, sent, NO_CONTEXT, Destination(out=result))
            if result is not out:
                write(result, declaration.dtype, target)

    def _averaged(self, part: TensorPart, payloads: Sequence[Vector], out: Vector) -> bool:
        """Write the mean as experiments compute it, and return whether this was possible.

        It is the same number as that of `add`, and faster where there are compiled kernels. It needs finite values; a
        mean of other values is not finite, as loss scaling expects.
        """
        if (self.declaration.dtype, self.declaration.reduction) != ("float32", "mean") or not part.words:
            return False
        layout = Layout.of([("", (part.words,))])
        ones = np.ones((len(payloads), 1), np.bool_)
        try:
            average(Updates(layout, payloads, ones, to=Destination(out=out)))
        except NotFiniteError:
            return False
        return True


def declared(
    key: int, name: str, dtype: str, shape: Sequence[int], reduction: Reduction, blocks: Sequence[int] | None = None
) -> Declaration:
    """Return the declaration of a tensor.

    Raises:
        SpecError: its type cannot be combined in this way.
    """
    if reduction != "sum" and dtype not in FLOATS:
        what = "the mean" if reduction == "mean" else f"a rule ({_kind(reduction)})"
        raise SpecError(f"tensor '{name}' is {dtype}: {what} is for floats; use average=False for the sum")
    sizes = (prod(shape),) if blocks is None else tuple(int(size) for size in blocks)
    if not isinstance(reduction, str) and "kind" not in reduction:
        raise SpecError(f"rule {dict(reduction)!r} has no kind")
    return Declaration(key, name, dtype, sizes, reduction)


def _kind(reduction: Reduction) -> object:
    return reduction if isinstance(reduction, str) else reduction.get("kind")
