"""The same value in place of every element: zero, a value that is not a number, infinity."""

from __future__ import annotations

from math import inf, nan
from typing import ClassVar, Literal

from hpcps.attacks.base import Attack, Need
from hpcps.attacks.context import AttackContext
from hpcps.numerics.layout import Vector


class ConstantAttack(Attack):
    """Every element of u becomes `value`."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    value: ClassVar[float]

    def corrupt(self, block: Vector, context: AttackContext) -> None:
        block[:] = self.value


class Zero(ConstantAttack):
    """u becomes 0: the block counts as sent, and pulls what is combined to zero.

    A block that is skipped is zero too, but rules and records know that it was not sent.
    """

    kind: Literal["zero"] = "zero"
    value: ClassVar[float] = 0.0


class Nan(ConstantAttack):
    """Every element of u becomes NaN.

    No value of such a block reaches a model: the combiner rejects the block and treats it as skipped.
    """

    kind: Literal["nan"] = "nan"
    value: ClassVar[float] = nan


class Infinite(ConstantAttack):
    """Every element of u becomes +infinity, as in ByzFL's `Inf`.

    No value of such a block reaches a model: the combiner rejects the block and treats it as skipped.
    """

    kind: Literal["infinite"] = "infinite"
    value: ClassVar[float] = inf
