"""Compares two results, and says on which inputs they differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from comparison.inputs import GROUPS, Input
from comparison.ours import Result

EQUAL = 2e-6
"""The largest difference of equal results, in units of the largest value: our results are float32."""
MOMENTS = 0.05
"""The same for moments of 20,000 random numbers."""
EXCEPTIONS = ("ties", "identical", "few", "huge")
"""Groups of inputs on which a library may differ without computing something else."""


def difference(ours: Any, theirs: Any, each: Input, moments: bool = False) -> float:
    """Return the largest difference, in units of the largest value; infinite if there is no number."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return 0.0 if a.shape == b.shape and np.array_equal(a, b, equal_nan=True) else float("inf")
    scale = max(1.0 if moments else each.scale, float(np.abs(a).max(initial=0.0)))
    return float(np.abs(a - b).max(initial=0.0)) / scale


def compare(
    inputs: Sequence[Input], ours: Sequence[Result], theirs: Sequence[dict[str, Any]], form: str
) -> dict[str, Any]:
    """Return what the data file holds of a pair.

    Args:
        inputs: the inputs.
        ours: our results, or why there is none.
        theirs: the answers of the library.
        form: the form of the pair.

    Returns:
        `verdict`: `equal`, `different`, or `not compared` if no input suits both; `largest`: the largest difference
        where they are equal; `inputs`: the number of inputs compared; `unlike`: of each group with a difference, how
        many inputs differ and the smallest of them with both results; `refused`: of each group, what the library
        refuses and we do not, and why; `nan`: what it does with a row of NaN; `repeats`: the largest difference of two
        equal calls; `changes`: whether it changes its input.
    """
    limit = MOMENTS if form == "moments" else EQUAL
    found: dict[str, Any] = {"largest": 0.0, "inputs": 0, "unlike": {}, "refused": {}, "repeats": 0.0}
    for each, own, other in zip(inputs, ours, theirs, strict=True):
        if isinstance(own, str):
            continue
        if each.group == "NaN":
            found.setdefault("nan", _nan(other))
            continue
        if "error" in other:
            found["refused"].setdefault(each.group, {"count": 0, "input": each.name, "error": other["error"]})[
                "count"
            ] += 1
            continue
        found["inputs"] += 1
        found["changes"] = found.get("changes", False) or other["changed"]
        value, again = np.asarray(other["value"], np.float64), np.asarray(other["again"], np.float64)
        if form == "moments":
            found["largest"] = max(found["largest"], difference(own, value, each, moments=True))
            continue
        found["repeats"] = max(found["repeats"], difference(value, again, each))
        apart = difference(own, value, each)
        if apart <= limit:
            found["largest"] = max(found["largest"], apart)
            continue
        first = {
            "count": 0,
            "input": each.name,
            "rows": each.rows.tolist(),
            "f": each.f,
            "ours": np.asarray(own, np.float64).tolist(),
            "theirs": value.tolist(),
        }
        found["unlike"].setdefault(each.group, first)["count"] += 1
    if form == "moments":
        different = found["largest"] > limit
    else:
        different = any(group not in EXCEPTIONS for group in found["unlike"])
    found["verdict"] = "not compared" if not found["inputs"] else "different" if different else "equal"
    assert set(found["unlike"]) <= set(GROUPS)
    return found


def _nan(answer: dict[str, Any]) -> str:
    if "error" in answer:
        return "error"
    return "finite" if np.isfinite(np.asarray(answer["value"], np.float64)).all() else "NaN"
