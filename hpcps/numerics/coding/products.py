"""Products of a matrix and matrices of few columns, whose sums have a fixed order.

The bits of numpy's product of matrices depend on the number of threads and on the processor, so a run would have other
results over MPI than in one process.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcps.numerics.coding.rounding import TILE
from hpcps.numerics.layout import Vector


def _parts(rows: int, columns: int) -> Iterator[slice]:
    """Yield slices of the rows of a matrix that fit the cache."""
    at_once = max(1, TILE // columns)
    for row in range(0, rows, at_once):
        yield slice(row, min(row + at_once, rows))


def product(matrix: Vector, right: Vector) -> Vector:
    """Return M `[m, n]` times a matrix `[n, r]`, float32; the sum of each row is numpy's, in pairs."""
    rows, transposed = len(matrix), right.T.copy()
    result = np.empty((rows, len(transposed)), np.float32)
    for part in _parts(*matrix.shape):
        for k, column in enumerate(transposed):
            result[part, k] = (matrix[part] * column).sum(axis=1)
    return result


def transposed_product(matrix: Vector, left: Vector) -> Vector:
    """Return Mᵀ, of M `[m, n]`, times a matrix `[m, r]`, float32; a part's rows are added one by one."""
    result = np.zeros((left.shape[1], matrix.shape[1]), np.float32)
    for part in _parts(*matrix.shape):
        for k, total in enumerate(result):
            total += (matrix[part] * left[part, k : k + 1]).sum(axis=0)
    return result.T


def multiply_out(p: Vector, q: Vector, values: Vector) -> None:
    """Write P `[m, r]` times Qᵀ, of Q `[n, r]`, row by row into values; the last row may be longer than these."""
    columns, transposed = len(q), q.T.copy()
    for part in _parts(len(p), columns):
        total = p[part, :1] * transposed[0]
        for k in range(1, len(transposed)):
            total += p[part, k : k + 1] * transposed[k]
        decoded = values[part.start * columns : part.stop * columns]
        decoded[:] = total.reshape(-1)[: len(decoded)]
