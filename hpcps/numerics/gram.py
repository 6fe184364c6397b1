"""Inner products of all pairs of updates, per block."""

from __future__ import annotations

import numpy as np

from hpcps.numerics.blocks import SEGMENT, Float64, segment_sums
from hpcps.numerics.kernels import worthwhile
from hpcps.numerics.layout import Vector
from hpcps.numerics.mixture import Mixture, mixed_products
from hpcps.numerics.products import products
from hpcps.numerics.updates import Updates

STRETCH = 64 * SEGMENT
"""Elements of a stretch of a block, counted from the block's start. Its segments are added one by one; then the sums of
stretches are added one by one. Threads share the work by stretches, so their number does not change the result."""


def gram(updates: Updates, extra: Vector | None = None, threads: int = 1) -> Float64:
    """Return the inner products of all pairs of updates, per block: `[B, m, m]`, symmetric.

    Products of two float32 are exact in float64, and neither overflow nor underflow. All sums have the same order, so
    equal updates have equal products.

    Args:
        updates: n updates of d elements, all finite.
        extra: one more vector `[d]`, which becomes the last row and column; m is then n + 1, otherwise n.
        threads: the maximum number of threads; the result does not depend on it.
    """
    if isinstance(updates, Mixture):
        return mixed_products(*_extended(updates, extra, threads))
    if extra is not None:
        updates = Updates.join((updates, Updates.of(extra[None, :], updates.layout)))
    if worthwhile(updates):
        from hpcps.numerics.kernels import pairs

        return pairs.gram(updates, threads)
    m, layout = len(updates), updates.layout
    totals = np.zeros((len(layout.blocks), m, m))
    for index, block in enumerate(layout.blocks):
        for start in range(block.offset, block.stop, STRETCH):
            sums = np.zeros((m, m))
            for begin in range(start, min(start + STRETCH, block.stop), SEGMENT):
                rows = updates.tile(slice(begin, min(begin + SEGMENT, block.stop))).astype(np.float64)
                for row in range(m):
                    sums[row, row:] += segment_sums(rows[row:] * rows[row])[:, 0]
            totals[index] += sums
    return totals + np.triu(totals, 1).transpose(0, 2, 1)


def whole_gram(updates: Updates, extra: Vector | None = None, threads: int = 1) -> Float64:
    """Return the inner products of all pairs of whole updates: `[m, m]`; see `gram`."""
    if isinstance(updates, Mixture) and len(updates.weights) == 1:
        weights, products = _extended(updates, extra, threads)
        return mixed_products(weights[0], over_blocks(products))
    return over_blocks(gram(updates, extra, threads))


def norms_gram(updates: Updates, threads: int = 1) -> Float64:
    """Return the squared norms of the updates, per block, as diagonal matrices: `[B, n, n]`.

    This takes a small part of the time of `gram`.
    """
    squares = products(updates, np.zeros(updates.layout.size, np.float32), threads).squares
    found = np.zeros((squares.shape[1], len(updates), len(updates)))
    found[:, np.arange(len(updates)), np.arange(len(updates))] = squares.T
    return found


def reference_gram(updates: Updates, reference: Vector, threads: int = 1) -> Float64:
    """Return the squared norms of the updates and of a reference `[d]`, and their inner products with it, per block.

    Returns:
        What `gram` returns with the reference as the extra vector, but zero for pairs of updates: `[B, n + 1, n + 1]`.
    """
    sums, n = products(updates, reference, threads), len(updates)
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


def _extended(mixture: Mixture, extra: Vector | None, threads: int) -> tuple[Float64, Float64]:
    """Return the weights of a mixture and the inner products of its updates, each with one more row if there is one."""
    weights = mixture.weights
    if extra is None:
        return weights, gram(mixture.updates, None, threads) if mixture.products is None else mixture.products
    wider = np.zeros((len(weights), weights.shape[1] + 1, weights.shape[2] + 1))
    wider[:, :-1, :-1], wider[:, -1, -1] = weights, 1
    return wider, gram(mixture.updates, extra, threads)


def squared_distances(products: Float64) -> Float64:
    """Return the squared distances of all pairs of rows from their inner products `[..., m, m]`.

    The error is about 1e-15 times the rows' squared norms; the distance of equal rows is exactly 0.
    """
    squares = np.diagonal(products, axis1=-2, axis2=-1)
    return np.maximum(squares[..., :, None] + squares[..., None, :] - 2 * products, 0.0)
