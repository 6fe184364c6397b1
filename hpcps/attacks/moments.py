"""The mean, the standard deviation and the distances of the honest updates, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpcps.numerics.blocks import Float64
from hpcps.numerics.layout import Layout, Vector
from hpcps.numerics.operations import gram
from hpcps.numerics.updates import Updates

_STRIP = 1 << 20
"""Elements of a strip, over all rows: 8 MiB in float64."""
_COLUMNS = 1 << 11
"""The minimum number of columns of a strip."""


@dataclass(frozen=True)
class Moments:
    """The mean and the standard deviation of rows, per coordinate.

    Attributes:
        mean: `[d]`.
        deviation: `[d]`, from the sum of squares divided by h - 1; zero for one row. It is exactly zero where all rows
            have the same value.
    """

    mean: Float64
    deviation: Float64

    @classmethod
    def of(cls, rows: Vector) -> Moments:
        """Return the moments of rows `[h, d]`, h > 0. No copy of all rows is made."""
        h, d = rows.shape
        mean, deviation = np.empty(d), np.zeros(d)
        for columns in strips(h, d):
            values = rows[:, columns].astype(np.float64)
            mean[columns] = values.sum(axis=0) / h
            if h > 1:
                values -= mean[columns]
                np.multiply(values, values, out=values)
                deviation[columns] = np.sqrt(values.sum(axis=0) / (h - 1))
        return cls(mean, deviation)


def strips(rows: int, size: int) -> Iterator[slice]:
    """Divide `size` coordinates into ranges of which `rows` rows take a few megabytes."""
    step = max(_COLUMNS, _STRIP // max(rows, 1))
    for start in range(0, size, step):
        yield slice(start, min(start + step, size))


def centred_products(rows: Vector, mean: Float64, unit: float, extra: Vector | None = None) -> Float64:
    """Return the inner products of the rows' differences to their mean: `[h, h]`, or `[h + 1, h + 1]` with one more.

    The differences are rounded to float32 after the mean is subtracted. So the distances of rows that are close to each
    other have a relative error of 1e-7, however far the rows are from zero.

    Args:
        rows: `[h, d]` float32, all finite.
        mean: their mean `[d]`.
        unit: a power of 2 by which the differences are divided, near the largest of them, so that all fit float32.
        extra: one more vector `[d]`, which becomes the last row and column; it is not centred.
    """
    h, d = rows.shape
    m = h if extra is None else h + 1
    total = np.zeros((m, m))
    for columns in strips(h, d):
        differences = ((rows[:, columns] - mean[columns]) / unit).astype(np.float32)
        layout = Layout.of([("", (columns.stop - columns.start,))])
        total += gram(Updates.of(differences, layout), None if extra is None else extra[columns])[0]
    return total


def power_of_two(size: float) -> float:
    """Return the smallest power of 2 above a size; 1 for the size 0."""
    return float(np.ldexp(1.0, int(np.frexp(size)[1]))) if size > 0 else 1.0
