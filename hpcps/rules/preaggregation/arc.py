"""Adaptive robust clipping."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from hpcps.numerics.blocks import Float64
from hpcps.rules.preaggregation.base import Compares, DecidingPreAggregator, TolerantPreAggregator


class Arc(DecidingPreAggregator, TolerantPreAggregator):
    """Adaptive robust clipping: scales the k updates with the largest norms down to the next largest norm.

    k is 2 f (n - f) / n, rounded down. After Allouah, Guerraoui, Gupta, Jellouli, Rizk and Stephan, "Adaptive gradient
    clipping for robust federated learning", ICLR 2025.
    """

    compares: ClassVar[Compares] = "norms"

    kind: Literal["arc"] = "arc"

    def unable(self, n: int, f: int) -> str:
        return f"arc needs more than f updates, and f = {f} of {n}" if f >= n else ""

    def weights(self, products: Float64, f: int, random: np.random.Generator | None) -> Float64:
        n = len(products)
        norms = np.sqrt(np.maximum(np.diagonal(products), 0.0))
        largest = np.sort(norms)[n - 1 - 2 * f * (n - f) // n]
        return np.diag(np.divide(largest, norms, out=np.ones(n), where=norms > largest))
