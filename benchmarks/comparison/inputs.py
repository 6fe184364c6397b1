"""The common inputs: rows of updates, most of them small enough to print."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]

GROUPS = {
    "small": "integers from -99 to 99, all different, 3 to 15 updates of 2 elements, f from 1 to 3",
    "normal": "7 to 16 updates of 6 elements from N(1, 1), f from 1 to 3",
    "f = 0": "the same kinds with f = 0",
    "ties": "integers from -1 to 1, so that values, norms and distances are equal",
    "identical": "all updates are equal",
    "few": "one or two updates, f = 0",
    "huge": "values near 1e30, whose squares are not float32 numbers",
    "NaN": "one update is NaN, f of the others may be attackers too",
}
"""The groups of inputs, and what they are."""

SIZES = [(4, 1), (5, 1), (6, 1), (7, 1), (7, 2), (8, 2), (9, 2), (11, 2), (12, 3), (15, 3)]
"""Numbers of updates, and how many of them may be Byzantine."""

CHOSEN_TIES = np.array([[1, 0, 0], [0, 1, -1], [0, -1, 1], [1, 1, 1], [1, 1, 1], [1, -1, 1]], np.float64)
"""Updates at equal distances from the first one, of which a partial sort does not take the first ones."""


@dataclass(frozen=True)
class Input:
    """The updates that every library gets.

    Attributes:
        name: its name in messages.
        group: one of `GROUPS`.
        rows: the updates, `[n, d]`; float32 numbers in float64, so that nobody's rounding hides a definition.
        f: the number of Byzantine updates that the rule shall tolerate.
    """

    name: str
    group: str
    rows: Rows
    f: int

    @property
    def n(self) -> int:
        """The number of updates."""
        return len(self.rows)

    @property
    def attackers(self) -> int:
        """The number of Byzantine workers if the rows are honest updates."""
        return max(1, self.f)

    @property
    def scale(self) -> float:
        """The largest finite value, in units of which differences are given; 1 if all are zero."""
        finite = np.abs(self.rows[np.isfinite(self.rows)])
        return float(finite.max()) if finite.size and finite.max() > 0 else 1.0


def all_inputs() -> list[Input]:
    """Return the inputs, the smallest of each group first."""
    return [
        Input(f"{group}, n = {len(rows)}, f = {f}, {number}", group, rows.astype(np.float32).astype(np.float64), f)
        for number, (group, rows, f) in enumerate(_inputs())
    ]


def digest(inputs: list[Input]) -> str:
    """Return a hash of the inputs."""
    found = hashlib.sha256()
    for each in inputs:
        found.update(f"{each.name} {each.rows.shape} {each.f}".encode() + each.rows.tobytes())
    return found.hexdigest()[:16]


def _inputs() -> Iterator[tuple[str, Rows, int]]:
    random = np.random.default_rng(1)
    for n, f in SIZES:
        for _ in range(3):
            yield "small", _different(random, n), f
    for n, f in [(7, 1), (8, 2), (11, 2), (16, 3)]:
        yield "normal", random.normal(1, 1, (n, 6)), f
    for n in (3, 4, 5, 8):
        yield "f = 0", _different(random, n), 0
    yield "f = 0", random.normal(1, 1, (8, 6)), 0
    for n, f in SIZES:
        yield "ties", random.integers(-1, 2, (n, 3)).astype(np.float64), f
    yield "ties", CHOSEN_TIES, 1
    for n, f in [(20, 4), (24, 4)]:  # numpy's partial sort orders ties of more than 16 values otherwise than its sort
        yield "ties", random.integers(-1, 2, (n, 3)).astype(np.float64), f
    for n, f in [(4, 1), (7, 1), (8, 2)]:
        yield "identical", np.repeat(random.integers(1, 9, (1, 2)), n, axis=0).astype(np.float64), f
    for n in (1, 2):
        yield "few", _different(random, n), 0
    for n, f in [(7, 1), (8, 2)]:
        yield "huge", 1e28 * _different(random, n), f
    for n, f in [(7, 1), (8, 2)]:
        rows = _different(random, n)
        rows[n // 2] = np.nan
        yield "NaN", rows, f


def _different(random: np.random.Generator, n: int) -> Rows:
    return random.choice(np.arange(-99, 100), (n, 2), replace=False).astype(np.float64)
