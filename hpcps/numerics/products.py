"""Inner products and squared norms of updates and a reference vector, per block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpcps.numerics.blocks import Float64
from hpcps.numerics.layout import Mask


@dataclass(frozen=True)
class Products:
    """Sums over each block in float64, where products of two float32 are exact and neither overflow nor underflow.

    Attributes:
        inner: <u, v> of each update u: `[n, B]`.
        squares: |u|^2: `[n, B]`. Finite if and only if all of the block's float32 values are.
        own: |v|^2: `[B]`.
    """

    inner: Float64
    squares: Float64
    own: Float64


Accepts = Callable[[Products], Mask]
"""Returns the (update, block) pairs `[n, B]` that a rule accepts."""
