"""Compressors that send a matrix of low rank."""

from __future__ import annotations

from math import isqrt
from typing import Literal, Self

import numpy as np
from pydantic import Field

from hpcps.compression.base import Code, Compressor, Kept, coding_for, finite, require_size
from hpcps.numerics.layout import Vector
from hpcps.registry.config import MOST


class PowerSGD(Compressor):
    """Two matrices of few columns, whose product is near the block M, by a step of the power method on each update.

    P = M Q, its columns made orthonormal; Q = Mᵀ P; P and then Q are sent, float32, and P Qᵀ is decoded. Q is kept for
    the next update (warm start). M has the first dimension of the block's tensor as rows; a block with one dimension,
    and one that P and Q would not make smaller, is sent as it is. Each worker takes the step on its own update, so that
    each update can be judged; in the paper all take it on their mean. (Vogels et al., "PowerSGD: practical low-rank
    gradient compression for distributed optimization", 2019.)
    """

    kind: Literal["powersgd"] = "powersgd"
    rank: int = Field(4, ge=1, le=1024, description="Columns of P and of Q.")
    rows: int = Field(
        0,
        ge=0,
        le=MOST,
        description="Rows of M; 0: the first dimension of the tensor, or for values without a shape, the root of their "
        "number. Zeros fill the last row.",
    )
    seed: int = Field(1, ge=1, le=2**32 - 1, description="Seed of the first Q.")

    def obstacle_without_shapes(self) -> str:
        return "" if self.rows else "needs `rows` in a script, as tensors are exchanged without their shapes"

    def for_block(self, shape: tuple[int, ...]) -> Self:
        if self.rows or not shape:
            return self
        return self.model_copy(update={"rows": max(shape[0], 1) if len(shape) > 1 else 1})

    def _shape(self, n: int) -> tuple[int, int, int]:
        """Return the rows and columns of M, and the columns of P; 0 if n values are sent as they are."""
        rows = min(self.rows or isqrt(n), n) or 1
        columns = -(-n // rows)
        rank = min(self.rank, rows, columns)
        return rows, columns, rank if rank * (rows + columns) < n else 0

    def most_bytes(self, n: int) -> int:
        rows, columns, rank = self._shape(n)
        return 4 * (rank * (rows + columns) or n)

    def write(self, values: Vector, code: Code, kept: Kept) -> int:
        size, (rows, columns, rank) = self.most_bytes(len(values)), self._shape(len(values))
        sent = code[:size].view(np.float32)
        if not rank:
            sent[:] = values
        elif not finite(values):
            sent[:] = np.nan
        else:
            rest = rows * columns - len(values)
            matrix = (np.pad(values, (0, rest)) if rest else values).reshape(rows, columns)
            before, loops = kept.get("q"), coding_for(len(values))
            with np.errstate(over="ignore", invalid="ignore"):
                p = _orthonormal(loops.product(matrix, self._start(columns, rank) if before is None else before))
                q = loops.transposed_product(matrix, p)
            sent[: rows * rank], sent[rows * rank :] = p.ravel(), q.ravel()
            if np.isfinite(q).all() and q.any():  # zero would find nothing in the next update
                kept["q"] = q
        return size

    def _start(self, columns: int, rank: int) -> Vector:
        drawn = np.random.SFC64([self.seed, columns]).random_raw(columns * rank) >> np.uint64(40)
        return (drawn.astype(np.float32) * np.float32(2.0**-23) - 1).reshape(columns, rank)

    def read(self, code: Code, values: Vector) -> None:
        require_size(code, self.most_bytes(len(values)))
        sent, (rows, columns, rank) = code.view(np.float32), self._shape(len(values))
        if not rank:
            values[:] = sent
            return
        p, q = sent[: rows * rank].reshape(rows, rank), sent[rows * rank :].reshape(columns, rank)
        with np.errstate(over="ignore", invalid="ignore"):
            coding_for(len(values)).multiply_out(p, q, values)


def _orthonormal(matrix: Vector) -> Vector:
    """Return orthonormal columns `[m, r]` that span the columns of a matrix `[m, r]`, by Householder reflections."""
    rest = matrix.T.astype(np.float64, order="C")
    columns, reflections = np.eye(*rest.shape), []
    for k in range(len(rest)):
        v = rest[k, k:].copy()
        v[0] += np.copysign(np.sqrt((v * v).sum()), v[0])
        if square := (v * v).sum():
            v *= np.sqrt(2 / square)
        rest[k:, k:] -= (rest[k:, k:] * v).sum(axis=1, keepdims=True) * v
        reflections.append(v)
    for k, v in reversed(list(enumerate(reflections))):
        columns[k:, k:] -= (columns[k:, k:] * v).sum(axis=1, keepdims=True) * v
    return columns.T.astype(np.float32)
