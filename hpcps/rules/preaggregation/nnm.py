"""Nearest-neighbour mixing."""

from __future__ import annotations

from typing import Literal

import numpy as np

from hpcps.numerics.blocks import Float64
from hpcps.numerics.gram import squared_distances
from hpcps.rules.preaggregation.base import DecidingPreAggregator, TolerantPreAggregator


class Nnm(DecidingPreAggregator, TolerantPreAggregator):
    """Nearest-neighbour mixing: each update becomes the mean of the n - f updates nearest to it, itself among them.

    Of updates at the same distance, the first are taken. After Allouah, Farhadkhani, Guerraoui, Gupta, Pinot and
    Stephan, "Fixing by mixing: a recipe for optimal Byzantine ML under heterogeneity", AISTATS 2023.
    """

    kind: Literal["nnm"] = "nnm"

    def unable(self, n: int, f: int) -> str:
        return f"nnm needs more than f updates, and f = {f} of {n}" if f >= n else ""

    def weights(self, products: Float64, f: int, random: np.random.Generator | None) -> Float64:
        n = len(products)
        distances = squared_distances(products)
        np.fill_diagonal(distances, -1.0)  # an update is its own nearest, also among equal ones
        found = np.zeros((n, n))
        np.put_along_axis(found, np.argsort(distances, axis=1, kind="stable")[:, : n - f], 1 / (n - f), axis=1)
        return found
