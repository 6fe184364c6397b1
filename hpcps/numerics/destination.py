"""The result of an operation on updates, and where it is written."""

from __future__ import annotations

from dataclasses import dataclass

from hpcps.numerics.layout import Mask, Vector


class NotFiniteError(ValueError):
    """Updates that were not known to be finite are not."""


@dataclass(frozen=True)
class Destination:
    """Where the result of an operation is written, and with how many threads.

    Attributes:
        base: the vector `[d]` to which the rounded result is added; by default none.
        out: the vector `[d]` for the result; by default a new one. It may be the base if the updates are `checked`.
        threads: the maximum number of threads; the result does not depend on it.
    """

    base: Vector | None = None
    out: Vector | None = None
    threads: int = 1

    def cut(self, columns: slice) -> Destination:
        """Return the destination of a range of coordinates."""
        base, out = (None if vector is None else vector[columns] for vector in (self.base, self.out))
        return Destination(base, out, self.threads)

    def into(self, out: Vector) -> Destination:
        """Return this destination with another vector for the result."""
        return Destination(self.base, out, self.threads)


NOWHERE = Destination()
"""A new array, one thread."""


@dataclass(frozen=True)
class Combined:
    """The result of an operation, or of a rule, on n updates.

    Attributes:
        update: the combined update `[d]`, finite; or, if there was a base, the sum of the base and the update.
        finite: whether `update` is finite; it may not be if the base is not, or if the sum overflows.
        accepted: the (update, block) pairs in it, `[n, B]`; none if there were too few updates for the rule.
        acceptance_known: whether the rule states `accepted`; if not, it is all pairs, and records say null.
    """

    update: Vector
    finite: bool
    accepted: Mask
    acceptance_known: bool = True
