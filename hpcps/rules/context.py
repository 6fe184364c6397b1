"""What a rule may use in addition to the updates."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.registry.config import MOST_ROLES


class Arrays(UserDict[str, NDArray[Any]]):
    """Arrays by name; values are copied when they are set, so that a checkpoint holds the complete state of a rule."""

    def __init__(self, *, writable: bool = True) -> None:
        """Create an empty collection; it is not writable for rules that do not declare `state`."""
        super().__init__()
        self._writable = writable

    def __setitem__(self, name: str, value: Any) -> None:
        """Store a copy of an array, a number or a list of numbers.

        Raises:
            TypeError: a numpy array of numbers cannot hold the value, or the collection is not writable.
        """
        if not self._writable:
            raise TypeError('a rule that keeps arrays must declare it: needs = frozenset({"state"})')
        copy = np.array(value, order="C")
        if copy.dtype.hasobject or not isinstance(name, str):
            raise TypeError(f"state[{name!r}] cannot be kept: names must be strings, and values arrays of numbers")
        super().__setitem__(name, copy)

    def setdefault(self, name: str, default: Any = None) -> NDArray[Any]:
        """Return the array of a name; store a copy of the default first if there is none."""
        if name not in self:
            self[name] = default
        return self[name]


@dataclass(frozen=True)
class Context:
    """What a rule may use in addition to the updates: what it lists in its `needs`; the rest is None or empty.

    Attributes:
        reference: the validator's own update of this round, `[d]`; a tensor if the updates are.
        loss: a function of a vector `[d]` on the host: it adds the vector to the model of this round and returns the
            mean loss on a batch of the validator's shard. All calls of a round use the same batch.
        random: the combiner's random generator, which checkpoints save.
        state: arrays by name that the rule keeps from one round to the next, and which checkpoints save. Values are
            copied when they are set; the copies may be changed in place.
        weights: how much each update counts, `[n]` float64 with the sum n, for `Rule.aggregate` of a rule that is
            `weighted`; all are 1 in a run without weights.
    """

    reference: Vector | None = None
    loss: Callable[[Vector], float] | None = None
    random: np.random.Generator | None = None
    state: MutableMapping[str, NDArray[Any]] = field(default_factory=Arrays)
    weights: NDArray[np.float64] | None = None

    def cut(self, columns: slice) -> Context:
        """Return the context of a range of coordinates."""
        return replace(self, reference=None if self.reference is None else self.reference[columns])


@dataclass(frozen=True, kw_only=True)
class AsyncContext(Context):
    """What an asynchronous rule may use in addition to the update.

    Attributes:
        layout: the blocks of the d elements.
        sent: the blocks that the worker sent, `[B]`; no others are applied.
    """

    layout: Layout
    sent: Mask


NO_CONTEXT = Context()
"""An empty context."""


Tolerance = Annotated[int, Field(ge=0, le=MOST_ROLES)] | Annotated[float, Field(ge=0, lt=0.5)]
"""A number of Byzantine updates, or their share among those of a combiner."""

DEFAULT = 0.2
"""The share that rules tolerate by default; it is ZenoPS's."""


def count(share: int | float, n: int) -> int:
    """Return the number of n updates that a number or a share means; a share is rounded down."""
    if isinstance(share, int):
        return share
    return int(Decimal(repr(share)) * n)  # in binary floating point 0.29 * 100 is less than 29
