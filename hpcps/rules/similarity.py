"""A rule that gives less weight to workers whose updates resemble those of others."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.numerics import arrays
from hpcps.numerics.blocks import LARGEST, Float64
from hpcps.numerics.operations import cosines, weighted_sum, whole_gram, zero_result
from hpcps.numerics.updates import Combined, Updates
from hpcps.registry.config import LARGEST_FACTOR
from hpcps.rules.base import Granularity, Need, Rule
from hpcps.rules.context import NO_CONTEXT, Context


class FoolsGold(Rule):
    """The mean of the updates, weighted less the more similar a worker's updates are to those of another worker.

    With c_ij the cosine of the histories of two workers and v_i the largest c_ij over j, c_ij is multiplied by
    v_i / v_j where v_i < v_j and 0 < v_j ("pardoning"; by 0 if v_i < 0). The weight 1 - max c_ij, limited to 0 to 1, is
    divided by the largest weight; a weight w above 0.99 becomes 0.99. Then w becomes
    confidence (ln(w / (1 - w)) + 0.5), limited to 0 to 1. A zero history has the weight 0. If all weights are 0, the
    result is zero, otherwise the sum is divided by the sum of weights; the paper's is not. After Fung, Yoon and
    Beschastnikh, "The limitations of federated learning in sybil settings", RAID 2020.
    """

    unweighted: ClassVar[str] = "it computes weights of its own"
    granularity: ClassVar[Granularity] = "vector"
    needs: ClassVar[frozenset[Need]] = frozenset({"state"})

    kind: Literal["foolsgold"] = "foolsgold"
    memory: Literal["run", "round"] = Field(
        "run",
        description="The history of a worker: `run`: the sum of its updates since the number of workers changed, for "
        "which the combiner keeps n vectors; `round`: its update of the round.",
    )
    confidence: float = Field(1.0, gt=0, le=LARGEST_FACTOR, description="The factor of the logit, κ.")

    def combine(self, updates: Updates, context: Context = NO_CONTEXT) -> Combined:
        weights = similarity_weights(whole_gram(updates if self.memory == "round" else self._history(updates, context)))
        weights = _confident(weights, self.confidence)
        if not weights.any():
            return zero_result(updates)
        return weighted_sum(updates, weights / weights.sum())

    def _history(self, updates: Updates, context: Context) -> Updates:
        """Add the updates to the sums of the workers, and return these."""
        rows = arrays.on_host(updates.tile(slice(0, updates.layout.size)))
        kept = context.state.setdefault("history", np.zeros_like(rows))
        if kept.shape != rows.shape:
            context.state["history"] = np.zeros_like(rows)
            kept = context.state["history"]
        with np.errstate(over="ignore"):
            kept += rows
        np.clip(kept, -LARGEST, LARGEST, out=kept)
        return Updates.of(kept, updates.layout)


def similarity_weights(products: Float64) -> Float64:
    """Return the weights 1 - max c_ij `[n]`, limited to 0 to 1, from inner products `[n, n]`; 0 for zero rows."""
    n, similar = len(products), cosines(products)
    np.fill_diagonal(similar, -np.inf)
    largest = similar.max(axis=1)
    if n > 1:
        behind = (largest[:, None] < largest) & (largest > 0)
        similar *= np.where(behind, np.maximum(largest, 0.0)[:, None] / np.where(largest > 0, largest, 1.0), 1.0)
        largest = np.where(np.eye(n, dtype=np.bool_), -np.inf, similar).max(axis=1)
    found: Float64 = np.where(np.diagonal(products) > 0, np.clip(1 - largest, 0.0, 1.0), 0.0)
    return found


def _confident(weights: Float64, confidence: float) -> Float64:
    """Return weights of 0 to 1 after they are divided by the largest, and pass the logit: 0 to 1."""
    if not (most := weights.max(initial=0.0)) > 0:
        return weights
    shares = np.minimum(weights / most, 0.99)
    with np.errstate(divide="ignore"):
        found: Float64 = np.clip(confidence * (np.log(shares / (1 - shares)) + 0.5), 0.0, 1.0)
    return found
