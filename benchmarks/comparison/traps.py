"""Mistakes of libraries that a user may not notice: what was measured, in sentences."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcps.rules import Caf, Krum

sys.path.append(str(Path(__file__).parents[1] / "peers"))
import library_traps as inputs

TRAPS = {
    "byzfl": [
        "byzfl_krum",
        "byzfl_offset",
        "byzfl_start",
        "byzfl_arc",
        "byzfl_memory",
        "byzfl_changes",
        "byzfl_nan",
        "byzfl_caf",
    ],
    "byzpy": ["byzpy_krum", "byzpy_offset", "byzpy_arc", "byzpy_arrays", "byzpy_caf"],
    "flwr": ["flwr_krum", "flwr_offset", "flwr_list"],
}
"""The measurements of each library, functions of `peers/library_traps.py`."""

LARGE = 16 * 25_000_000 * 4 / 1e9
"""The size of 16 updates of 25 million float32, in GB."""


def sentences(answers: Mapping[str, Mapping[str, Any]], pairs: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Return rows of the table: the library, the trap, and what was measured.

    Args:
        answers: what the functions of `TRAPS` returned, by library.
        pairs: the compared pairs of rules.
    """
    measured = {name: value for each in answers.values() for name, value in each.items()}
    whole = inputs.krum_inputs()
    two, one = (_krum(whole, neighbours) for neighbours in ("n-f-2", "n-f-1"))
    offset = inputs.offset_inputs()
    exact = _krum(offset.astype(np.float64), "n-f-1", exact=True), _krum(offset.astype(np.float64), "n-f-2", exact=True)
    rows = [
        [
            "ByzFL, ByzPy",
            "Krum counts n - f - 1 neighbours, where the paper counts n - f - 2.",
            f"Of {len(one):,} random inputs (n = 10, f = 2, 10 elements), the two choose differently in "
            f"{_apart(one, two):,}. ByzFL and ByzPy differ from `n-f-1` in {_apart(measured['byzfl_krum'], one)} and "
            f"{_apart(measured['byzpy_krum'], one)}, "
            f"Flower differs from `n-f-2` in {_apart(measured['flwr_krum'], two)}.",
        ],
        [
            "ByzPy, Flower (`serverapp`)",
            "Krum computes distances as |x|² + |y|² − 2 x·y in float32, which is imprecise if the updates are longer "
            "than they are apart.",
            f"Of {len(offset)} float32 inputs with values around 1000 ± 0.1 (n = 10, f = 2, 100 elements), another "
            f"update than with exact arithmetic is chosen in {_apart(measured['byzpy_offset'], exact[0])} (ByzPy) and "
            f"{_apart(measured['flwr_offset'], exact[1])} (Flower); in {_apart(measured['byzfl_offset'], exact[0])} by "
            f"ByzFL with torch, and in {_apart(_krum(offset, 'n-f-1'), exact[0])} and "
            f"{_apart(_krum(offset, 'n-f-2'), exact[1])} by hpcps with either number of neighbours.",
        ],
        [
            "ByzFL, ByzPy",
            "One long update can keep `CAF` in its loop: the largest square that it divides by is also taken over "
            "updates whose weight is already 0.",
            f"8 updates of 3 elements, one of them 1e10, f = 1: after {inputs.PATIENCE} s, ByzFL has "
            f"{'' if measured['byzfl_caf'] else 'not '}returned, ByzPy has {'' if measured['byzpy_caf'] else 'not '}"
            f"returned. hpcps returns in {_milliseconds():.0f} ms or less.",
        ],
        [
            "ByzFL",
            "`NNM` returns a row of NaN.",
            f"With one row of NaN among 8, at positions 0 to 7: {', '.join(map(str, measured['byzfl_nan']))} "
            "of the 8 rows that it returns are NaN.",
        ],
        [
            "ByzFL",
            "`NNM` copies n - f rows for each of the n.",
            f"It allocates {measured['byzfl_memory']:.1f} times its input (n = 16, f = 3): "
            f"{measured['byzfl_memory'] * LARGE:.1f} GB for 16 updates of 25 million float32.",
        ],
        [
            "ByzFL",
            "Pre-aggregators write into the array that they are given.",
            f"{' and '.join(measured['byzfl_changes'])} change their input.",
        ],
        [
            "ByzFL, ByzPy",
            "`ARC` computes the number of updates that it cuts, ⌊2 f (n - f) / n⌋, with floating-point numbers.",
            f"With n = 242 and f = 33 the number is {2 * 33 * (242 - 33) // 242}; ByzFL cuts {measured['byzfl_arc']}, "
            f"ByzPy {measured['byzpy_arc']}.",
        ],
        [
            "ByzFL",
            "`CenteredClipping` takes no first vector.",
            f"`m = numpy.zeros(3)`: TypeError: {measured['byzfl_start']}.",
        ],
        [
            "ByzPy",
            "Pre-aggregators take numpy arrays in their types, not in fact.",
            f"`ARC`: TypeError: {measured['byzpy_arrays']}.",
        ],
        [
            "Flower",
            "`aggregate_bulyan` takes the results out of the list that it is given.",
            f"Of 11 results (f = 2), {measured['flwr_list']} are left in it.",
        ],
    ]
    unrepeatable = [each for each in pairs.values() if each["repeats"] > 0]
    rows += [
        [
            each["library"],
            f"`{each['call'].split(':')[1]}` draws from a global random generator.",
            f"Two calls with the same input differ by up to {each['repeats']:.2g} times its largest value.",
        ]
        for each in unrepeatable
    ]
    return rows


def _krum(inputs: Any, neighbours: str, exact: bool = False) -> list[int]:
    """Return which update Krum chooses: that of hpcps, or one with distances from differences in float64."""
    if not exact:
        rule = Krum(f=2, neighbours=neighbours)  # type: ignore[arg-type]
        return [_chosen(rows, rule(rows)) for rows in inputs]
    count = inputs.shape[1] - 2 - (2 if neighbours == "n-f-2" else 1)
    found = []
    for rows in inputs:
        distances = np.sort(((rows[:, None] - rows[None]) ** 2).sum(axis=2), axis=1)
        found.append(int(distances[:, 1 : count + 1].sum(axis=1).argmin()))
    return found


def _milliseconds() -> float:
    """Return the time of our CAF on the input that others do not end on, rounded up."""
    began = time.perf_counter()
    Caf(f=1)(inputs.caf_input())
    return float(np.ceil(100 * (time.perf_counter() - began)) * 10)


def _chosen(rows: Any, result: Any) -> int:
    return int(np.abs(rows.astype(np.float32) - np.asarray(result, np.float32)).sum(axis=1).argmin())


def _apart(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(x != y for x, y in zip(a, b, strict=True))
