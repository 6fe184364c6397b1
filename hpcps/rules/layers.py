"""A rule that decides on each block after it has bounded whole updates."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.numerics import arrays
from hpcps.numerics.blocks import Float64
from hpcps.numerics.layout import Mask
from hpcps.numerics.operations import factors_to_bound, screen, weighted_sum
from hpcps.numerics.updates import Combined, NotFiniteError, Updates
from hpcps.registry.config import LARGEST_FACTOR
from hpcps.rules.base import Granularity, Rule
from hpcps.rules.context import NO_CONTEXT, Context


class Lasa(Rule):
    """Layer-adaptive sparsified aggregation: per block, the mean of the updates that are ordinary there.

    Updates longer than the median norm are scaled down to it. Of each scaled update, the values of largest magnitude
    remain, the share 1 - sparsity of all, for two measures in each block: its norm, and the mean sign of its values
    that are not zero (0 if there are none). An update is ordinary if both are less than `norm_bound` and `sign_bound`
    standard deviations of the n measures away from their median; a measure that equals the median always is. If no
    update is, all are. The mean is that of the scaled updates with all their values. After Xu, Zhang and Hu, "Achieving
    Byzantine-resilient federated learning via layer-adaptive sparsified model aggregation", WACV 2025, whose authors'
    code leaves biases dense.
    """

    unweighted: ClassVar[str] = "it counts updates in medians of measures, and no weighted form is standard"
    granularity: ClassVar[Granularity] = "vector"
    checks: ClassVar[bool] = True

    kind: Literal["lasa"] = "lasa"
    sparsity: float = Field(0.3, ge=0, lt=1, description="Share of the values that the measures leave out.")
    norm_bound: float = Field(
        1.0, gt=0, le=LARGEST_FACTOR, description="Largest distance of norms to the median, in standard deviations."
    )
    sign_bound: float = Field(
        1.0,
        gt=0,
        le=LARGEST_FACTOR,
        description="Largest distance of mean signs to the median, likewise.",
    )

    def combine(self, updates: Updates, context: Context = NO_CONTEXT) -> Combined:
        if not updates.finite and screen(updates).any():
            raise NotFiniteError
        n, layout = len(updates), updates.layout
        whole, norms, signs = np.empty(n), np.zeros((n, len(layout.blocks))), np.zeros((n, len(layout.blocks)))
        for row in range(n):
            one = updates.select(np.array([row]))
            values = arrays.on_host(one.tile(slice(0, layout.size)))[0].astype(np.float64)
            whole[row] = np.sqrt((values * values).sum())
            values[~_largest(np.abs(values), int((1 - self.sparsity) * layout.size))] = 0.0
            for index, block in enumerate(layout.blocks):
                part = values[block.offset : block.stop]
                norms[row, index] = np.sqrt((part * part).sum())
                signs[row, index] = np.sign(part).sum() / max(np.count_nonzero(part), 1)
        factors = factors_to_bound(whole, float(np.median(whole)))
        ordinary = _near(norms * factors[:, None], self.norm_bound) & _near(signs, self.sign_bound)
        ordinary[:, ~ordinary.any(axis=0)] = True
        return weighted_sum(updates, np.where(ordinary, factors[:, None] / ordinary.sum(axis=0), 0.0))


def _largest(sizes: Float64, count: int) -> Mask:
    """Return which of some sizes `[d]` are the largest `count`; of equal ones, the first."""
    if not count:
        return np.zeros(len(sizes), np.bool_)
    least = np.partition(sizes, len(sizes) - count)[len(sizes) - count]
    chosen: Mask = sizes > least
    chosen[np.flatnonzero(sizes == least)[: count - int(chosen.sum())]] = True
    return chosen


def _near(measures: Float64, bound: float) -> Mask:
    """Return which measures `[n, B]` are near to the median of their column."""
    away = np.abs(measures - np.median(measures, axis=0))
    near: Mask = (away < bound * measures.std(axis=0)) | (away == 0)
    return near
