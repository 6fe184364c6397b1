"""Sums of float32 vectors that do not depend on the order of addition.

Every block of n vectors has a common unit, a power of two. The values of the block are rounded to whole numbers of
units, so small that every sum of n of them is at most 2^53. Such sums are exact in float64, in any order and grouping.
Values of at least 2^-(29 - ceil(log2 n)) of the largest one of the block are not rounded at all: their 24 bits are
whole numbers of units.

The method is the one-bin case of reproducible summation (Demmel and Nguyen, "Parallel Reproducible Summation", IEEE
Transactions on Computers, 2015), with a bin for each block.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.blocks import TILE
from hpcps.numerics.layout import Layout, Vector

_LEAST = -149
"""The exponent of the smallest float32: that of blocks without any other value than 0."""


def exponents(layout: Layout, vector: Vector) -> NDArray[np.int64]:
    """Return the smallest e for each block `[B]` for which all its values, which are finite, are below 2^e."""
    largest = np.zeros(len(layout.blocks))
    for number, block in enumerate(layout.blocks):
        part = vector[block.offset : block.stop]
        if part.size:
            largest[number] = max(part.max(), -part.min())
    found = np.frexp(largest)[1].astype(np.int64)
    return np.where(largest > 0, found, _LEAST)


def to_units(layout: Layout, vector: Vector, common: NDArray[np.int64], count: int, out: NDArray[np.float64]) -> None:
    """Round the values of a vector `[d]` to whole numbers of units, to the nearest, ties to even.

    Args:
        layout: the blocks.
        vector: the vector.
        common: the largest of the exponents of all vectors, by block `[B]`.
        count: n, the number of vectors.
        out: gets the numbers of units `[d]`.
    """
    scales = [_scale(exponent, count) for exponent in common.tolist()]
    for block, start, stop in layout.segments(TILE).tolist():
        units = np.multiply(vector[start:stop], scales[block], out=out[start:stop], dtype=np.float64)
        np.rint(units, out=units)


def add_mean(
    layout: Layout, total: NDArray[np.float64], common: NDArray[np.int64], count: int, divisor: int, model: Vector
) -> None:
    """Add the mean of vectors to a model: their exact sum, divided in float64, then rounded to float32.

    Args:
        layout: the blocks.
        total: the sum of the numbers of units `[d]`.
        common: as in `to_units`.
        count: as in `to_units`.
        divisor: the number by which the sum is divided.
        model: the model `[d]`.
    """
    # A scale is a power of two: it does not change how the quotient is rounded.
    divisors = [_scale(exponent, count) * divisor for exponent in common.tolist()]
    for block, start, stop in layout.segments(TILE).tolist():
        model[start:stop] += (total[start:stop] / divisors[block]).astype(np.float32)


def _scale(exponent: int, count: int) -> float:
    """Return the number of units of 1: n values below 2^exponent add up to at most 2^53 units."""
    return 2.0 ** (53 - (count - 1).bit_length() - exponent)
