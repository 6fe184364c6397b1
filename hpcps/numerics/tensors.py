"""The operations on updates with torch, for rows that are tensors; `operations` describes each.

The results are near those of `definitions`: sums are float64, in an order of torch's choice. Temporary tensors are
small, because an operation computes one range of coordinates after the other. It waits for the device once, at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from hpcps.numerics.blocks import LARGEST, Accepts, Float64, Products
from hpcps.numerics.definitions import SLIVER
from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.numerics.updates import NotFiniteError, Updates

TILE = 1 << 19
"""Elements of a range over all rows: so that temporary tensors take at most 64 MiB."""


class TensorWriter:
    """Writes a result range by range, as `definitions.Writer` does, and collects on the device what is not finite."""

    def __init__(self, updates: Updates) -> None:
        """Write to the destination of the updates."""
        out = updates.empty(updates.layout.size) if updates.to.out is None else updates.to.out
        self.out: torch.Tensor = out  # type: ignore[assignment]
        self._base: torch.Tensor | None = updates.to.base  # type: ignore[assignment]
        self._known_finite = updates.finite
        self._good: torch.Tensor | None = None

    def put(self, columns: slice, values: torch.Tensor, read: torch.Tensor | None = None) -> None:
        """Write the values `[t]` of a range of coordinates.

        Args:
            columns: the range.
            values: the values.
            read: what they were computed from, if that must be finite.
        """
        target = self.out[columns]
        if read is not None and not self._known_finite:
            self._note(0, read)
        if self._base is None:
            target.copy_(values)
            return
        torch.add(self._base[columns], values.to(torch.float32), out=target)
        self._note(1, target)

    def _note(self, which: int, values: torch.Tensor) -> None:
        """Note on the device whether values are finite: 0: that were read, 1: that were written."""
        if self._good is None:
            self._good = torch.ones(2, dtype=torch.bool, device=values.device)
        self._good[which] &= values.isfinite().all()

    @property
    def written(self) -> tuple[Vector, bool]:
        """Return what was written, and whether it is finite.

        Raises:
            NotFiniteError: something that was read is not finite.
        """
        read, finite = (True, True) if self._good is None else self._good.tolist()
        if not read:
            raise NotFiniteError
        return self.out, finite  # type: ignore[return-value]


def put(updates: Updates, values: Vector) -> tuple[Vector, bool]:
    """Write finite values of the host, `[d]`, or a single one for all coordinates."""
    writer, size = TensorWriter(updates), updates.layout.size
    whole = torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(writer.out.device)
    writer.put(slice(0, size), whole.expand(size))
    return writer.written


def screen(updates: Updates) -> Mask:
    good = torch.ones(updates.sent.shape, dtype=torch.bool, device=_device(updates))
    for block, _, rows in _pieces(updates):
        good[:, block] &= rows.isfinite().all(dim=1)
    return _on_host(~good)  # type: ignore[return-value]


def products(updates: Updates, v: Vector | None) -> Products:
    n, blocks = updates.sent.shape
    sums = torch.zeros((2 * n + 1, blocks), dtype=torch.float64, device=_device(updates))
    for block, columns, rows in _pieces(updates):
        theirs = rows.double()
        sums[n : 2 * n, block] += theirs.square().sum(dim=1)
        if v is not None:
            mine = v[columns].double()  # type: ignore[attr-defined]
            sums[:n, block] += theirs @ mine
            sums[2 * n, block] += mine @ mine
    found = _on_host(sums)
    return Products(found[:n], found[n : 2 * n], found[2 * n])


def gram(updates: Updates) -> Float64:
    m, blocks = updates.sent.shape
    sums = torch.zeros((blocks, m, m), dtype=torch.float64, device=_device(updates))
    for block, _, rows in _pieces(updates):
        wide = rows.double()
        sums[block] += wide @ wide.T
    return _on_host((sums + sums.transpose(1, 2)) / 2)


def average(updates: Updates) -> tuple[Vector, bool]:
    return _per_coordinate(updates, lambda rows: rows.sum(dim=0, dtype=torch.float64) / len(rows))


def mean_of_ranks(updates: Updates, low: int, high: int) -> tuple[Vector, bool]:
    return _per_coordinate(updates, lambda rows: _middle(_sorted(rows), low, high))


def mean_around_trimmed_mean(updates: Updates, b: int) -> tuple[Vector, bool]:
    def mean(rows: torch.Tensor) -> torch.Tensor:
        keep, ascending = len(rows) - b, _sorted(rows)
        centre = _middle(ascending, b, keep)
        total = ascending[b:keep].sum(dim=0, dtype=torch.float64)
        for low, high in zip(ascending[:b], ascending[keep:], strict=True):
            total += torch.where(centre - low > high - centre, high, low)
        return total / keep

    return _per_coordinate(updates, mean)


def mean_around_median(updates: Updates, middle: tuple[int, int], keep: int) -> tuple[Vector, bool]:
    def mean(rows: torch.Tensor) -> torch.Tensor:
        ascending, n = _sorted(rows), len(rows)
        centre = _middle(ascending, *middle)
        total = torch.zeros_like(centre)
        moved = [centre - ascending[k] > ascending[k + keep] - centre for k in range(n - keep)]
        for k, row in enumerate(ascending):
            outside = torch.zeros_like(centre, dtype=torch.bool)
            if k < n - keep:
                outside |= moved[k]
            if k >= keep:
                outside |= ~moved[k - keep]
            total += row.masked_fill(outside, 0.0)
        return total / keep

    return _per_coordinate(updates, mean)


def weighted_median(updates: Updates, lower: bool) -> tuple[Vector, bool]:
    return _per_coordinate(updates, lambda rows: _median(*_by_value(updates, rows), lower))


def mean_of_middle(updates: Updates, trim: float) -> tuple[Vector, bool]:
    n = len(updates)
    return _per_coordinate(updates, lambda rows: _between(*_by_value(updates, rows), trim * n, n - trim * n))


def mean_of_nearest(updates: Updates, drop: float, middle: str) -> tuple[Vector, bool]:
    n = len(updates)

    def nearest(rows: torch.Tensor) -> torch.Tensor:
        values, weights = _by_value(updates, rows)
        if middle == "trimmed":
            centre = _between(values, weights, drop * n, n - drop * n)
        else:
            centre = _median(values, weights, middle == "lower")
        order = (values - centre).abs().sort(dim=0, stable=True).indices
        return _between(values.gather(0, order), weights.gather(0, order), 0.0, n - drop * n)

    return _per_coordinate(updates, nearest)


def _by_value(updates: Updates, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the values in ascending order, and their weights: `[n, t]` each, in float64."""
    values, order = rows.double().sort(dim=0, stable=True)
    return values, _there(updates.relative_weights, updates)[order]


def _median(values: torch.Tensor, weights: torch.Tensor, lower: bool) -> torch.Tensor:
    half, passed = len(values) / 2, weights.cumsum(dim=0)
    first = (passed < half * (1 - SLIVER)).sum(dim=0)
    last = first if lower else (passed <= half * (1 + SLIVER)).sum(dim=0)
    return (values.gather(0, first[None])[0] + values.gather(0, last[None])[0]) / 2


def _between(values: torch.Tensor, weights: torch.Tensor, low: float, high: float) -> torch.Tensor:
    after = weights.cumsum(dim=0)
    part = after.clamp(max=high) - (after - weights).clamp(min=low)
    part = part.masked_fill(part <= SLIVER * len(values), 0.0)
    return (part * values).sum(dim=0) / part.sum(dim=0)


def vote(updates: Updates, step: float) -> tuple[Vector, bool]:
    return _per_coordinate(updates, lambda rows: rows.sign().sum(dim=0).sign().double() * step)


def mean_by_agreement(updates: Updates, threshold: float) -> tuple[Vector, bool]:

    def mean(rows: torch.Tensor) -> torch.Tensor:
        found = rows.sum(dim=0, dtype=torch.float64) / len(rows)
        return torch.where(rows.sign().sum(dim=0).abs() >= threshold, found, -found)

    return _per_coordinate(updates, mean)


def weighted_sum(updates: Updates, weights: Float64) -> tuple[Vector, bool]:
    writer, there = TensorWriter(updates), _there(weights, updates)
    for block, columns, rows in _pieces(updates):
        writer.put(columns, _rounded(there[:, block] @ rows.double()))
    return writer.written


def mean_of_accepted(updates: Updates, v: Vector, accepts: Accepts, zeros: bool) -> tuple[Vector, bool, Mask]:
    accepted = accepts(products(updates, v))
    weights = accepted / np.maximum(accepted.sum(axis=0), 1)
    return *weighted_sum(updates, weights), accepted


def scale(update: Updates, factors: Float64) -> Vector:
    writer = TensorWriter(update)
    for block, columns, rows in _pieces(update):
        writer.put(columns, rows[0].double() * factors[block])
    return writer.written[0]


def mix(updates: Updates, weights: Float64, columns: slice, out: Vector) -> None:
    """Compute a range of coordinates of weighted sums of updates; see `mixture.Mixture`.

    Args:
        updates: the n updates.
        weights: the weight of each update in each row: `[B or 1, m, n]`.
        columns: the range.
        out: output, `[m, t]`.
    """
    there = _there(weights, updates)
    for block, piece, rows in _pieces(updates, columns):
        target = out[:, piece.start - columns.start : piece.stop - columns.start]
        target.copy_(_rounded(there[block if len(there) > 1 else 0] @ rows.double()))  # type: ignore[attr-defined]


def _per_coordinate(updates: Updates, combine: Callable[[torch.Tensor], torch.Tensor]) -> tuple[Vector, bool]:
    """Write `combine` of the rows `[n, t]` of each range of coordinates."""
    writer = TensorWriter(updates)
    for columns in _ranges(0, updates.layout.size, len(updates)):
        rows = _tile(updates, columns)
        writer.put(columns, combine(rows), rows)
    return writer.written


def _sorted(rows: torch.Tensor) -> torch.Tensor:
    return rows.sort(dim=0).values


def _middle(rows: torch.Tensor, low: int, high: int) -> torch.Tensor:
    """Return the mean of sorted rows of ranks `low` to `high` (exclusive), in float64."""
    return rows[low:high].sum(dim=0, dtype=torch.float64) / (high - low)


def _rounded(values: torch.Tensor) -> torch.Tensor:
    """Round to float32, and limit to the largest float32."""
    return values.clamp(-LARGEST, LARGEST).float()


def _pieces(updates: Updates, within: slice | None = None) -> Iterator[tuple[int, slice, torch.Tensor]]:
    """Return, in order, ranges of coordinates that lie in one block each, with its number and the rows `[n, t]`."""
    layout: Layout = updates.layout
    start, stop = (0, layout.size) if within is None else (within.start, within.stop)
    for number, block in enumerate(layout.blocks):
        for columns in _ranges(max(start, block.offset), min(stop, block.stop), len(updates)):
            yield number, columns, _tile(updates, columns)


def _ranges(start: int, stop: int, rows: int) -> Iterator[slice]:
    """Divide a range of coordinates so that `rows` rows of a part have at most `TILE` elements."""
    step = max(1, TILE // max(rows, 1))
    for begin in range(start, stop, step):
        yield slice(begin, min(begin + step, stop))


def _tile(updates: Updates, columns: slice) -> torch.Tensor:
    return updates.tile(columns)  # type: ignore[return-value]


def _there(values: Float64, updates: Updates) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(_device(updates))


def _device(updates: Updates) -> torch.device:
    example: Any = updates.empty(0)
    return example.device  # type: ignore[no-any-return]


def _on_host(values: torch.Tensor) -> Float64:
    """Return values on the host; this waits for the device."""
    return values.cpu().numpy()
