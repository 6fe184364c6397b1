"""The operations on updates of which rules consist.

Measuring operations return small arrays on the host: `screen`, `products`, the Gram matrices, and `Updates.columns`.
Final operations write a result to the destination of the updates (`Updates.to`) in one pass: they reduce the updates,
add the base, and report whether the result is finite. They raise `NotFiniteError` for updates that are not finite,
unless these are known to be (`Updates.finite`); what is written then is undefined. `weighted_sum`, `scale` and `put` do
not look: their weights or values come from measured numbers, which are finite only if the updates are
(`finite_products`). `zero_result` is the result of too few updates.

Sums are float64, in the order of the updates, and are rounded once; on a device in an order of torch's choice.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from hpcps.numerics import definitions
from hpcps.numerics.blocks import Accepts, Float64, Products
from hpcps.numerics.definitions import require_finite
from hpcps.numerics.kernels import enough
from hpcps.numerics.layout import Mask, Vector
from hpcps.numerics.mixture import Mixture, by_parts, mixed_products, part_by_part
from hpcps.numerics.updates import Combined, NotFiniteError, Updates


def engine(updates: Updates) -> Any:
    """Return the module that computes with these updates, which may be a partition.

    `tensors` computes with torch where the updates or their destination are tensors. `kernels.engine`, with compiled
    kernels, does for large updates in memory, if numba is installed (`kernels.enough`); its results equal those of the
    definitions bit for bit. `definitions` computes everything else with numpy. All three have the operations that are
    called through this function.
    """
    if not updates.on_host:
        from hpcps.numerics import tensors

        return tensors
    if not updates.lazy and len(updates) and enough(len(updates) * updates.layout.size):
        from hpcps.numerics.kernels import engine as kernels

        return kernels
    return definitions


def _by_weight(updates: Updates) -> Any:
    """Return the module that sorts values and adds their weights; there are no compiled kernels for this."""
    if updates.on_host:
        return definitions
    from hpcps.numerics import tensors

    return tensors


def screen(updates: Updates) -> Mask:
    """Find the used blocks that hold a NaN or an infinity: `[n, B]`."""
    refused: Mask = engine(updates).screen(updates)
    return refused


def products(updates: Updates, v: Vector | None = None) -> Products:
    """Return the products of each update with `v` `[d]`, per block.

    All sums have the same order, so an update that equals v has equal sums.

    Args:
        updates: n updates of d elements.
        v: `[d]`, where the updates are; its values need not be finite; by default zero, for the squared norms alone.
    """
    found: Products = engine(updates).products(updates, v)
    return found


def gram(updates: Updates, extra: Vector | None = None) -> Float64:
    """Return the inner products of all pairs of updates, per block: `[B, m, m]`, symmetric.

    Products of two float32 are exact in float64, and neither overflow nor underflow. All sums have the same order, so
    equal updates have equal products.

    Args:
        updates: n updates of d elements, all finite.
        extra: one more vector `[d]`, which becomes the last row and column; m is then n + 1, otherwise n.
    """
    if isinstance(updates, Mixture):
        return mixed_products(*_extended(updates, extra))
    wider = updates.with_row(extra)
    found: Float64 = engine(wider).gram(wider)
    return found


def whole_gram(updates: Updates, extra: Vector | None = None) -> Float64:
    """Return the inner products of all pairs of whole updates: `[m, m]`; see `gram`."""
    if isinstance(updates, Mixture) and len(updates.mixing) == 1:
        weights, products = _extended(updates, extra)
        return mixed_products(weights[0], over_blocks(products))
    return over_blocks(gram(updates, extra))


def norms_gram(updates: Updates) -> Float64:
    """Return the squared norms of the updates, per block, as diagonal matrices: `[B, n, n]`.

    This takes a small part of the time of `gram`.
    """
    squares = products(updates).squares
    found = np.zeros((squares.shape[1], len(updates), len(updates)))
    found[:, np.arange(len(updates)), np.arange(len(updates))] = squares.T
    return found


def reference_gram(updates: Updates, reference: Vector) -> Float64:
    """Return the squared norms of the updates and of a reference `[d]`, and their inner products with it, per block.

    Returns:
        What `gram` returns with the reference as the extra vector, but zero for pairs of updates: `[B, n + 1, n + 1]`.
    """
    sums, n = products(updates, reference), len(updates)
    found = np.zeros((len(sums.own), n + 1, n + 1))
    found[:, np.arange(n), np.arange(n)] = sums.squares.T
    found[:, n, :n] = found[:, :n, n] = sums.inner.T
    found[:, n, n] = sums.own
    return found


def over_blocks(products: Float64) -> Float64:
    """Return the sum of the inner products of blocks `[B, m, m]`, in the order of the blocks: `[m, m]`."""
    whole = np.zeros(products.shape[1:])
    for block in products:
        whole += block
    return whole


def _extended(mixture: Mixture, extra: Vector | None) -> tuple[Float64, Float64]:
    """Return the weights of a mixture and the inner products of its updates, each with one more row if there is one."""
    weights = mixture.mixing
    if extra is None:
        return weights, gram(mixture.updates) if mixture.products is None else mixture.products
    wider = np.zeros((len(weights), weights.shape[1] + 1, weights.shape[2] + 1))
    wider[:, :-1, :-1], wider[:, -1, -1] = weights, 1
    return wider, gram(mixture.updates, extra)


def finite_products(products: Float64, updates: Updates) -> Float64:
    """Return the inner products `[…, m, m]`, of which the first rows are those of the updates.

    The square of an update is finite if and only if its values are.

    Raises:
        NotFiniteError: the updates are not finite.
    """
    require_finite(np.diagonal(products, axis1=-2, axis2=-1)[..., : len(updates)], updates)
    return products


def squared_distances(products: Float64) -> Float64:
    """Return the squared distances of all pairs of rows from their inner products `[..., m, m]`.

    The error is about 1e-15 times the rows' squared norms; the distance of equal rows is exactly 0.
    """
    squares = np.diagonal(products, axis1=-2, axis2=-1)
    return np.maximum(squares[..., :, None] + squares[..., None, :] - 2 * products, 0.0)


def cosines(products: Float64) -> Float64:
    """Return the cosines of all pairs of rows `[n, n]` from their inner products `[n, n]`; 0 for zero rows."""
    norms = np.sqrt(np.diagonal(products))
    unit = np.divide(1.0, norms, out=np.zeros(len(norms)), where=norms > 0)
    found: Float64 = products * np.outer(unit, unit)
    return found


def factors_to_bound(norms: Float64, most: float) -> Float64:
    """Return the factors that scale rows with longer norms `[n]` down to `most`: 1 for the others, also for zero."""
    factors: Float64 = np.divide(most, norms, out=np.ones(len(norms)), where=norms > most)
    return factors


def zero_result(updates: Updates) -> Combined:
    """Write zero, with nothing accepted: the result for too few updates, which are screened all the same."""
    if not updates.finite and screen(updates).any():
        raise NotFiniteError
    return put(updates, np.zeros(1, np.float32), np.zeros(updates.sent.shape, np.bool_))


def put(updates: Updates, values: Vector, accepted: Mask) -> Combined:
    """Write finite values of the host, `[d]` or `[1]`, as the result of updates of which these pairs are accepted."""
    if updates.on_host:
        return Combined(*definitions.put(updates, values), accepted)
    from hpcps.numerics import tensors

    return Combined(*tensors.put(updates, values), accepted)


def average(updates: Updates) -> Combined:
    """Write the mean; the weighted mean of updates that have weights."""
    if updates.weights is not None:
        if not updates.finite and screen(updates).any():
            raise NotFiniteError
        return weighted_sum(updates, updates.relative_weights / len(updates))
    if isinstance(updates, Mixture):
        return weighted_sum(updates, np.full(updates.sent.shape, 1 / len(updates)))
    if not len(updates):
        return zero_result(updates)
    return _all_accepted(updates, engine(updates).average(updates))


@by_parts
def mean_of_ranks(updates: Updates, low: int, high: int) -> Combined:
    """Write, per coordinate, the mean of the sorted values of ranks `low` to `high` (exclusive); 0 is the smallest.

    If these are all ranks, the values are added in the order of the updates, unsorted.
    """
    if high - low == len(updates):
        return average(updates)
    return _all_accepted(updates, engine(updates).mean_of_ranks(updates, low, high))


@by_parts
def mean_around_trimmed_mean(updates: Updates, b: int) -> Combined:
    """Write, per coordinate, the mean of the n - b values nearest to the mean without the b smallest and b largest.

    Of two values at the same distance, the smaller is kept.
    """
    if b == 0:
        return average(updates)
    return _all_accepted(updates, engine(updates).mean_around_trimmed_mean(updates, b))


@by_parts
def mean_around_median(updates: Updates, middle: tuple[int, int], keep: int) -> Combined:
    """Write, per coordinate, the mean of the `keep` values nearest to the median; of equally near ones, the smaller.

    The median is the mean of the sorted values of ranks `middle[0]` to `middle[1]` (exclusive), one or two.
    """
    return _all_accepted(updates, engine(updates).mean_around_median(updates, middle, keep))


@by_parts
def weighted_median(updates: Updates, *, lower: bool) -> Combined:
    """Write, per coordinate, the sorted value at which the cumulative weight passes one half of the sum of weights.

    Where it meets one half, the result is the mean of that value and the next one, or that value if `lower`.
    """
    return _all_accepted(updates, _by_weight(updates).weighted_median(updates, lower))


@by_parts
def mean_of_middle(updates: Updates, trim: float) -> Combined:
    """Write, per coordinate, the weighted mean without the smallest and the largest values, by weight.

    Args:
        updates: updates that have weights.
        trim: the share of the sum of weights that is dropped at each end, below one half. A value that is dropped in
            part counts with the rest of its weight.
    """
    if trim == 0:
        return average(updates)
    return _all_accepted(updates, _by_weight(updates).mean_of_middle(updates, trim))


@by_parts
def mean_of_nearest(updates: Updates, drop: float, middle: Literal["trimmed", "mean", "lower"]) -> Combined:
    """Write, per coordinate, the weighted mean of the values nearest to a middle, by weight.

    Args:
        updates: updates that have weights.
        drop: the share of the sum of weights that is dropped: that of the farthest values. Of equally near ones, the
            larger is dropped first.
        middle: `trimmed`: the mean without the share `drop` at each end; else the weighted median, see
            `weighted_median`.
    """
    if drop == 0:
        return average(updates)
    return _all_accepted(updates, _by_weight(updates).mean_of_nearest(updates, drop, middle))


@by_parts
def vote(updates: Updates, step: float) -> Combined:
    """Write, per coordinate, a step in the direction of most signs; zero if they are even."""
    return _all_accepted(updates, engine(updates).vote(updates, step)) if len(updates) else zero_result(updates)


@by_parts
def mean_by_agreement(updates: Updates, threshold: float) -> Combined:
    """Write the mean, with its sign flipped where the absolute value of the sum of the signs is below a threshold."""
    if not len(updates):
        return zero_result(updates)
    return _all_accepted(updates, engine(updates).mean_by_agreement(updates, threshold))


def weighted_sum(updates: Updates, weights: Float64, extra: Vector | None = None) -> Combined:
    """Write the sum of the updates times their weights, rounded to float32 and limited to the largest float32.

    Args:
        updates: n updates, all finite.
        weights: the weight of each update in each block: `[n, B]`, or `[n]` in all blocks; finite. An update of weight
            0 is not read; it is not accepted. With an extra vector: `[n + 1, B]` or `[n + 1]`.
        extra: one more vector `[d]`, which is added last.
    """
    n, blocks = updates.sent.shape
    if weights.ndim == 1:
        weights = np.repeat(weights[:, None], blocks, axis=1)
    accepted = weights[:n] != 0
    if isinstance(updates, Mixture):
        mixed, updates = updates.mixing, updates.updates
        each = np.zeros((len(updates), blocks))
        for row in range(n):
            each += mixed[:, row].T * weights[row]
        weights = np.concatenate((each, weights[n:]))
    rows = updates.with_row(extra)
    update, finite = engine(rows).weighted_sum(rows, weights)
    return Combined(update, finite, accepted)


def mean_of_accepted(updates: Updates, v: Vector, accepts: Accepts, *, zeros: bool) -> Combined:
    """Write, per block, the mean of the updates that a rule accepts by their products with a vector; zero if none is.

    Args:
        updates: the updates.
        v: the vector `[d]`, where the updates are; its values need not be finite.
        accepts: the decision of the rule.
        zeros: whether it accepts zero updates, such as skipped blocks.
    """

    def checked(found: Products) -> Mask:
        require_finite(found.squares, updates)
        with np.errstate(invalid="ignore", over="ignore"):
            return accepts(found)

    def mean(part: Updates, columns: slice) -> Combined:
        update, finite, accepted = engine(part).mean_of_accepted(part, v[columns], checked, zeros)
        return Combined(update, finite, accepted)

    return part_by_part(updates, mean, whole=True)


def scale(update: Updates, factors: Float64) -> Vector:
    """Write a single update whose blocks are multiplied by factors `[B]`; skipped blocks are zero.

    The products are float64 and are rounded once.
    """
    written: Vector = engine(update).scale(update, factors)
    return written


def _all_accepted(updates: Updates, written: tuple[Vector, bool]) -> Combined:
    return Combined(*written, np.ones(updates.sent.shape, np.bool_))
