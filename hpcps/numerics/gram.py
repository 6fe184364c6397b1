"""Inner products of all pairs of updates, per block."""

from __future__ import annotations

import numpy as np

from hpcps.numerics.blocks import Float64
from hpcps.numerics.engines import engine
from hpcps.numerics.layout import Vector
from hpcps.numerics.mixture import Mixture, mixed_products
from hpcps.numerics.operations import products
from hpcps.numerics.updates import Updates


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
    if isinstance(updates, Mixture) and len(updates.weights) == 1:
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
    weights = mixture.weights
    if extra is None:
        return weights, gram(mixture.updates) if mixture.products is None else mixture.products
    wider = np.zeros((len(weights), weights.shape[1] + 1, weights.shape[2] + 1))
    wider[:, :-1, :-1], wider[:, -1, -1] = weights, 1
    return wider, gram(mixture.updates, extra)


def squared_distances(products: Float64) -> Float64:
    """Return the squared distances of all pairs of rows from their inner products `[..., m, m]`.

    The error is about 1e-15 times the rows' squared norms; the distance of equal rows is exactly 0.
    """
    squares = np.diagonal(products, axis1=-2, axis2=-1)
    return np.maximum(squares[..., :, None] + squares[..., None, :] - 2 * products, 0.0)
