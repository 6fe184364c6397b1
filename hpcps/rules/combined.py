"""The result of a rule, and the array that it is written to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.layout import Mask, Vector
from hpcps.rules.context import Context


@dataclass(frozen=True)
class Combined:
    """The result of a rule on n updates.

    Attributes:
        update: the combined update `[d]`, finite; or, if there was a base, the sum of the base and the update.
        finite: whether `update` is finite; it may not be if the base is not, or if the sum overflows.
        accepted: the (update, block) pairs in it, `[n, B]`; none if there were too few updates for the rule.
    """

    update: Vector
    finite: bool
    accepted: Mask


class Destination:
    """Writes a combined update range by range: rounds it to float32, and adds it to the base if there is one."""

    def __init__(self, size: int, context: Context) -> None:
        """Take the arguments of `Rule.combine`.

        Args:
            size: d.
            context: its `out` is where the result is written, and its `base` what it is added to.
        """
        self._base = context.base
        self._out: Vector = np.empty(size, np.float32) if context.out is None else context.out
        self._finite = True

    def put(self, columns: slice, values: NDArray[Any]) -> None:
        """Write the values `[t]` of the combined update in a range of coordinates; they are finite."""
        target = self._out[columns]
        if self._base is None:
            target[:] = values
            return
        np.add(self._base[columns], values.astype(np.float32), out=target)
        self._finite = self._finite and bool(np.isfinite(target).all())

    def zero(self) -> None:
        """Write a combined update that is zero everywhere."""
        self.put(slice(0, len(self._out)), np.zeros(1, np.float32))

    def combined(self, accepted: Mask) -> Combined:
        """Return the result after every range is written."""
        return Combined(self._out, self._finite, accepted)
