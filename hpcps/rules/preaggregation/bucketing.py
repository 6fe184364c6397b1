"""Bucketing."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.numerics.blocks import Float64
from hpcps.registry.config import MOST_ROLES
from hpcps.rules.preaggregation.base import Compares, Need, TolerantPreAggregator


class Bucketing(TolerantPreAggregator):
    """Puts the updates into buckets in random order, and replaces each bucket by its mean; the last one may be smaller.

    The number of Byzantine updates that the rule expects stays the same, so there must be more than 2 f buckets. After
    Karimireddy, He and Jaggi, "Byzantine-robust learning on heterogeneous datasets via bucketing", ICLR 2022.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"random"})
    compares: ClassVar[Compares] = "nothing"

    kind: Literal["bucketing"] = "bucketing"
    size: int = Field(2, ge=1, le=MOST_ROLES, description="Number of updates in a bucket.")

    def remaining(self, n: int) -> int:
        return -(-n // self.size)

    def unable(self, n: int, f: int) -> str:
        buckets = self.remaining(n)
        if 2 * f < buckets:
            return ""
        return f"bucketing needs more than 2 f buckets, and f = {f} with {buckets} buckets of {n}"

    def weights(self, products: Float64, f: int, random: np.random.Generator | None) -> Float64:
        assert random is not None, "bucketing needs random numbers"
        n = len(products)
        buckets = np.arange(n) // self.size
        found = np.zeros((self.remaining(n), n))
        found[buckets, random.permutation(n)] = 1 / np.bincount(buckets)[buckets]
        return found
