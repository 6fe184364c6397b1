"""FLTrust."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from hpcps.numerics.blocks import Float64
from hpcps.numerics.layout import Vector
from hpcps.numerics.updates import Updates
from hpcps.rules.base import Need
from hpcps.rules.context import Context
from hpcps.rules.weighted import Compares, Weighted


class Fltrust(Weighted):
    """The mean of the updates, scaled to the norm of the validator's own update and weighted by their similarity to it.

    An update's weight is its cosine with the validator's own update; those with a negative one do not count. If none
    counts, the result is zero. After Cao, Fang, Liu and Gong, "FLTrust: Byzantine-robust federated learning via trust
    bootstrapping", NDSS 2021.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"reference"})
    compares: ClassVar[Compares] = "reference"

    kind: Literal["fltrust"] = "fltrust"

    def row(self, updates: Updates, context: Context) -> Vector | None:
        return context.reference

    def weights(self, products: Float64, n: int) -> Float64:
        norms, found = np.sqrt(np.diagonal(products)), np.zeros(n + 1)
        filled = (norms[:n] > 0) & (norms[n] > 0)
        cosines = np.zeros(n)
        cosines[filled] = np.maximum(products[n, :n][filled] / norms[n] / norms[:n][filled], 0.0)
        if (total := cosines.sum()) > 0:
            found[:n][filled] = cosines[filled] / total * norms[n] / norms[:n][filled]
        return found
