"""A compressor that sends the largest coefficients of a discrete cosine transform."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self

import numpy as np
from pydantic import Field

from hpcps.compression.base import Code, DecayingCompressor, ErrorDecay, Kept, coding_for, finite, require_size
from hpcps.compression.sparse import ShareOrNumber, share_count
from hpcps.numerics.blocks import Float64, rounded
from hpcps.numerics.layout import Vector
from hpcps.registry.config import MOST


class DeMo(DecayingCompressor):
    """The largest coefficients of the cosine transform of each tile of a block.

    The block is a matrix with the first dimension of its tensor as rows, and one row if it has one dimension. It is cut
    into tiles of at most `chunk` rows and columns, row of tiles by row of tiles. Of the orthonormal DCT-II of a tile
    along both dimensions, the k coefficients of largest magnitude are sent; of equal ones, the first. The encoding is
    the indices of all tiles within their tiles, ascending, uint16, an even number of them; then the coefficients,
    float32. Of the error, the share `error_decay` stays in the residual, which is the decaying momentum of DeMo. DeMo's
    learning rule also takes the sign of the combined update, which no key here does. (Peng, Quesnelle, Kingma, "DeMo:
    decoupled momentum optimization", 2024, arXiv 2411.19870.)
    """

    kind: Literal["demo"] = "demo"
    k: ShareOrNumber = Field(
        32, gt=0, le=1 << 16, description="Coefficients that are sent of a tile: a whole number, or a share below 1."
    )
    chunk: int = Field(64, ge=2, le=256, description="Largest number of rows and of columns of a tile.")
    rows: int = Field(
        0,
        ge=0,
        le=MOST,
        description="Rows of the block; 0: the first dimension of the tensor, or one for values without a shape. "
        "Zeros fill the last row.",
    )
    error_decay: ErrorDecay = 0.999

    def for_block(self, shape: tuple[int, ...]) -> Self:
        if self.rows or len(shape) < 2:
            return self
        return self.model_copy(update={"rows": max(shape[0], 1)})

    def part_size(self, n: int) -> int:
        """See `SparseCompressor.part_size`: of a tile."""
        rows, columns = self._shape(n)
        return min(rows, self.chunk) * min(columns, self.chunk)

    def _shape(self, n: int) -> tuple[int, int]:
        """Return the rows and columns of the matrix."""
        rows = min(self.rows or 1, n) or 1
        return rows, -(-n // rows)

    def _tiles(self, n: int) -> Iterator[tuple[slice, slice, int]]:
        """Yield the rows and columns of each tile, and how many coefficients are sent of it."""
        rows, columns = self._shape(n)
        for top in range(0, rows, self.chunk):
            height = min(self.chunk, rows - top)
            for left in range(0, columns, self.chunk):
                width = min(self.chunk, columns - left)
                yield slice(top, top + height), slice(left, left + width), share_count(self.k, height * width)

    def _number(self, n: int) -> int:
        """Return how many coefficients are sent of n values."""
        return sum(count for _, _, count in self._tiles(n))

    def most_bytes(self, n: int) -> int:
        number = self._number(n)
        return 4 * -(-number // 2) + 4 * number

    def write(self, values: Vector, code: Code, kept: Kept) -> int:
        from scipy.fft import dctn

        n, size, number = len(values), self.most_bytes(len(values)), self._number(len(values))
        places, found = np.zeros(number + number % 2, np.uint16), np.empty(number, np.float32)
        matrix, filled = self._matrix(values), 0
        for down, across, count in self._tiles(n):
            pairs, part = np.empty((count, 2), np.uint32), slice(filled, filled + count)
            spectrum = rounded(dctn(matrix[down, across], norm="ortho")).ravel()
            coding_for(len(spectrum)).select_largest(spectrum.view(np.uint32), pairs)
            places[part], found[part] = pairs[:, 0], pairs[:, 1].copy().view(np.float32)
            filled += count
        if not finite(values):
            found[:] = np.nan
        code[: places.nbytes] = places.view(np.uint8)
        code[places.nbytes : size] = found.view(np.uint8)
        return size

    def read(self, code: Code, values: Vector) -> None:
        from scipy.fft import idctn

        n, number = len(values), self._number(len(values))
        require_size(code, self.most_bytes(n))
        split = 4 * -(-number // 2)
        places, found = code[:split].copy().view(np.uint16), code[split:].copy().view(np.float32)
        if places[number:].any():
            raise ValueError("bits after the last index")
        matrix, filled = self._matrix(np.zeros(n, np.float32)), 0
        for down, across, count in self._tiles(n):
            part, tile = slice(filled, filled + count), matrix[down, across]
            indices = places[part].astype(np.intp)
            if not ((indices[1:] > indices[:-1]).all() and indices[-1] < tile.size):
                raise ValueError("indices that do not ascend, or exceed their tile")
            spectrum = np.zeros(tile.size)
            spectrum[indices] = found[part]
            tile[:] = idctn(spectrum.reshape(tile.shape), norm="ortho")
            filled += count
        values[:] = rounded(matrix.ravel()[:n]) if finite(found) else np.float32(np.nan)

    def _matrix(self, values: Vector) -> Float64:
        """Return the values as a matrix of float64."""
        rows, columns = self._shape(len(values))
        filled = np.zeros(rows * columns)
        filled[: len(values)] = values
        return filled.reshape(rows, columns)
