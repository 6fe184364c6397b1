"""What a rule makes of the updates of a round, and where it puts that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcps.layout import Mask, Vector


@dataclass(frozen=True)
class Combined:
    """What a rule made of n updates.

    Attributes:
        update: the combined update `[d]`, finite; or, if there was a base, the base with the update added.
        finite: whether all of `update` is finite; a base that is not stays so, and a sum may overflow.
        accepted: which (update, block) pairs entered it, `[n, B]`; none if the rule gives up for want of updates.
    """

    update: Vector
    finite: bool
    accepted: Mask


class Destination:
    """Where a combined update goes, range by range: rounded to float32, and added to a base if there is one."""

    def __init__(self, size: int, base: Vector | None, out: Vector | None) -> None:
        """Take what `Rule.combine` was given.

        Args:
            size: d.
            base: what the combined update is added to `[d]`.
            out: where the result goes `[d]`; may be the base itself.
        """
        self._base = base
        self._out: Vector = np.empty(size, np.float32) if out is None else out
        self._finite = True

    def put(self, columns: slice, values: NDArray[Any]) -> None:
        """Take the combined update's values `[t]` of a range of coordinates; they are finite."""
        target = self._out[columns]
        if self._base is None:
            target[:] = values
            return
        np.add(self._base[columns], values.astype(np.float32), out=target)
        self._finite = self._finite and bool(np.isfinite(target).all())

    def zero(self) -> None:
        """Take a combined update that is zero everywhere."""
        self.put(slice(0, len(self._out)), np.zeros(1, np.float32))

    def combined(self, accepted: Mask) -> Combined:
        """Return it, now that every range has come."""
        return Combined(self._out, self._finite, accepted)
