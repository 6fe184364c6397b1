"""Rules that average the largest cluster of the updates: by their signs, or by the angles between them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hpcps.numerics import arrays
from hpcps.numerics.blocks import Float64
from hpcps.numerics.layout import Mask
from hpcps.numerics.operations import (
    cosines,
    factors_to_bound,
    finite_products,
    norms_gram,
    over_blocks,
    weighted_sum,
    whole_gram,
    zero_result,
)
from hpcps.numerics.updates import Combined, Updates
from hpcps.registry.config import LARGEST_FACTOR
from hpcps.rules.base import Granularity, Need, Rule
from hpcps.rules.context import NO_CONTEXT, Context

MOST_SHIFTS = 300
"""The largest number of steps of the mean shift; it takes a few."""

CLOSE = 1 + 1e-9
"""Factor on the bandwidth, so that rounding does not decide on points at this distance."""


class SignGuard(Rule):
    """The mean of the updates with ordinary norms and ordinary signs, scaled down to the median norm.

    A norm is ordinary from `low` to `high` times the median norm. The signs of an update are its shares of positive,
    zero and negative values among random coordinates. Mean shift clusters these shares; its bandwidth is the mean
    distance of an update to the (n // 2)-th nearest of the others. The largest cluster is ordinary; of equal ones, that
    of the first update. If no update has both, the result is zero. After Xu, Huang, Song and Lan, "Byzantine-robust
    federated learning through collaborative malicious gradient filtering", ICDCS 2022, whose authors' code counts signs
    in a range of consecutive coordinates; the variants Sim and Dist also compare the updates with each other.
    """

    unweighted: ClassVar[str] = "it counts updates in clusters, and no weighted form of that is standard"
    granularity: ClassVar[Granularity] = "vector"
    checks: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({"random"})

    kind: Literal["signguard"] = "signguard"
    low: float = Field(0.1, ge=0, le=1, description="Smallest ordinary norm, in units of the median norm.")
    high: float = Field(3.0, ge=1, le=LARGEST_FACTOR, description="Largest ordinary norm, in units of the median norm.")
    share: float = Field(0.1, gt=0, le=1, description="Share of the coordinates of which signs are counted.")

    def combine(self, updates: Updates, context: Context = NO_CONTEXT) -> Combined:
        size, random = updates.layout.size, context.random
        assert random is not None, "signguard needs random numbers"
        norms = _norms(updates)
        middle = np.median(norms)
        count = min(size, max(1, int(self.share * size)))
        columns = np.sort(random.choice(size, count, replace=False, shuffle=False))
        signs = np.sign(updates.columns(columns))
        shares = np.array([(signs == sign).sum(axis=1) / max(count, 1) for sign in (1, 0, -1)]).T
        kept = (self.low * middle <= norms) & (norms <= self.high * middle) & largest_cluster(shares)
        if not kept.any():
            return zero_result(updates)
        return weighted_sum(updates, np.where(kept, factors_to_bound(norms, float(middle)) / kept.sum(), 0.0))


class Flame(Rule):
    """The mean of the largest cluster of the updates by their angles, scaled down to the median norm, plus noise.

    HDBSCAN clusters the updates by their cosine distances 1 - cos(x, y), with clusters of at least n // 2 + 1 updates,
    one of which may be the only cluster; the distance of a zero update to any other one is 1. If there is no cluster,
    the result is zero. Each coordinate gets noise from N(0, (noise S)^2), S the median norm of all updates. After
    Nguyen et al., "FLAME: taming backdoors in federated learning", USENIX Security 2022, which adds the noise to the
    model.
    """

    unweighted: ClassVar[str] = "it counts updates in clusters, and no weighted form of that is standard"
    granularity: ClassVar[Granularity] = "vector"
    checks: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({"random"})

    kind: Literal["flame"] = "flame"
    noise: float = Field(
        0.001, ge=0, le=LARGEST_FACTOR, description="Standard deviation of the noise, in units of the median norm."
    )

    def obstacle(self) -> str:
        if find_spec("sklearn") is None:
            return "needs the package scikit-learn, which is not installed: pip install 'hpcps[flame]'"
        return ""

    def combine(self, updates: Updates, context: Context = NO_CONTEXT) -> Combined:
        random = context.random
        assert random is not None, "flame needs random numbers"
        products = finite_products(whole_gram(updates), updates)
        norms = np.sqrt(np.diagonal(products))
        kept, middle = _densest_half(products), float(np.median(norms))
        drawn = random.standard_normal(updates.layout.size, dtype=np.float32) if self.noise else None
        if not kept.any():
            return zero_result(updates)
        weights = np.where(kept, factors_to_bound(norms, middle) / kept.sum(), 0.0)
        if drawn is None:
            return weighted_sum(updates, weights)
        row = drawn if updates.on_host else arrays.like(updates.empty(0), drawn)
        return weighted_sum(updates, np.append(weights, self.noise * middle), row)


def _norms(updates: Updates) -> Float64:
    """Return the norms of whole updates `[n]`."""
    products = whole_gram(updates) if updates.lazy else over_blocks(norms_gram(updates))
    found: Float64 = np.sqrt(np.diagonal(finite_products(products, updates)))
    return found


def largest_cluster(points: Float64) -> Mask:
    """Return which points `[n, k]` are in the largest cluster of a mean shift with a flat kernel: `[n]`.

    From each point, the mean of the points within the bandwidth is taken until it stays. Of the means within the
    bandwidth of each other, that of most points remains, and each point belongs to the nearest that remains.
    """
    n = len(points)
    bandwidth = np.sort(_distances(points, points), axis=1)[:, n // 2].mean() * CLOSE
    modes = points.copy()
    for _ in range(MOST_SHIFTS):
        near = _distances(modes, points) <= bandwidth
        # A mean of points far from each other may be far from all of them.
        shifted = np.where(near.any(axis=1)[:, None], near @ points / np.maximum(near.sum(axis=1), 1)[:, None], modes)
        if np.array_equal(shifted, modes):
            break
        modes = shifted
    sizes, left = (_distances(modes, points) <= bandwidth).sum(axis=1), np.ones(n, np.bool_)
    for mode in np.argsort(-sizes, kind="stable"):
        if left[mode]:
            left &= _distances(modes, modes[mode : mode + 1])[:, 0] > bandwidth
            left[mode] = True
    remaining = np.flatnonzero(left)
    labels: NDArray[np.intp] = np.argmin(_distances(points, modes[remaining]), axis=1)
    counts = np.bincount(labels)
    members: Mask = labels == labels[np.argmax(counts[labels])]
    return members


def _distances(points: Float64, others: Float64) -> Float64:
    """Return the distances of points `[n, k]` to others `[m, k]`: `[n, m]`."""
    found: Float64 = np.sqrt(((points[:, None] - others) ** 2).sum(axis=2))
    return found


def _densest_half(products: Float64) -> Mask:
    """Return which updates are in the largest cluster by cosines `[n]`, from their inner products."""
    n = len(products)
    if n == 1:
        return np.ones(1, np.bool_)
    from sklearn.cluster import HDBSCAN

    away = np.clip(1 - cosines(products), 0.0, 2.0)
    np.fill_diagonal(away, 0.0)
    clusters = HDBSCAN(
        metric="precomputed", min_cluster_size=n // 2 + 1, min_samples=1, allow_single_cluster=True, copy=True
    )
    labels = clusters.fit(away).labels_
    members: Mask = (labels >= 0) & (labels == np.bincount(labels + 1, minlength=2)[1:].argmax())
    return members
