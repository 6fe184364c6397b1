"""Clipping to a fixed norm."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.numerics.blocks import Float64
from hpcps.registry.config import LARGEST_FACTOR
from hpcps.rules.preaggregation.base import Compares, DecidingPreAggregator


class Clipping(DecidingPreAggregator):
    """Scales the updates with a larger norm than the radius down to it.

    After Sun, Kairouz, Suresh and McMahan, "Can you really backdoor federated learning?", arXiv 1911.07963.
    """

    compares: ClassVar[Compares] = "norms"

    kind: Literal["clipping"] = "clipping"
    radius: float = Field(1.0, gt=0, le=LARGEST_FACTOR, description="The largest norm of an update.")

    def weights(self, products: Float64, f: int, random: np.random.Generator | None) -> Float64:
        norms = np.sqrt(np.maximum(np.diagonal(products), 0.0))
        return np.diag(self.radius / np.maximum(norms, self.radius))
