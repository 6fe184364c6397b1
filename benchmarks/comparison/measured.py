"""Runs the comparison, and describes our own results so that a test notices when they change."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np

from comparison import environment, ours
from comparison.inputs import Input, all_inputs, digest
from comparison.left_out import check
from comparison.libraries import LIBRARIES, Library
from comparison.pair import Pair, Values, values, written
from comparison.pairs import PAIRS
from comparison.traps import TRAPS, sentences
from comparison.verdict import compare
from hpcps.registry import installed


def measure(libraries: list[Library]) -> dict[str, Any]:
    """Run our components and those of the libraries, and return the content of the data file.

    Raises:
        MeasurementError: a library cannot be installed, or fails.
    """
    inputs = all_inputs()
    found: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("numpy", "torch", "scipy")},
        "libraries": {},
        "inputs": {"digest": digest(inputs), "count": len(inputs)},
        "ours": fingerprints(inputs),
        "pairs": {kind: {} for kind in PAIRS},
    }
    trapped: dict[str, Any] = {}
    for library in libraries:
        pairs = [(kind, pair) for kind, each in PAIRS.items() for pair in each if pair.library == library.name]
        calls = [
            {
                "id": f"{pair.id} | {each.name}",
                "call": pair.call,
                "arguments": values(pair.theirs, each),
                "input": "moments" if pair.form == "moments" else each.name,
                "form": pair.form,
            }
            for _, pair in pairs
            for each in suiting(pair, inputs)
        ]
        rows = {each.name: each.rows.tolist() for each in inputs} | {"moments": np.ones((4, 20_000)).tolist()}
        answer = environment.answers(
            library,
            {
                "inputs": rows,
                "calls": calls,
                "inventory": list(library.inventory),
                "traps": TRAPS.get(library.name, []),
            },
        )
        check(library.name, answer["inventory"], {pair.call.split(":")[1] for _, pair in pairs})
        found["libraries"][library.name] = {"version": library.version}
        for kind, pair in pairs:
            suited = suiting(pair, inputs)
            theirs = [answer[f"{pair.id} | {each.name}"] for each in suited]
            if pair.form == "moments":
                theirs = [{**each, "value": ours.moments(np.array(each["value"])).tolist()} for each in theirs]
            own = [ours.of_pair(kind, pair, each) for each in suited]
            defaults = {}
            if pair.default != pair.ours:
                usually = [
                    ours.result(kind, pair.component, values(pair.default, each), each, pair.form) for each in suited
                ]
                compared = compare(suited, usually, theirs, pair.form)
                kept = ("largest", "inputs", "unlike", "refused", "verdict")
                defaults = {"default": {"ours": written(pair.default), **{key: compared[key] for key in kept}}}
            found["pairs"][kind][pair.id] = {
                "component": pair.component,
                "library": pair.library,
                "call": pair.call,
                "theirs": written(pair.theirs),
                "ours": written(pair.ours),
                "form": pair.form,
                **compare(suited, own, theirs, pair.form),
                **defaults,
            }
        trapped[library.name] = answer.get("traps", {})
    found["traps"] = sentences(trapped, found["pairs"]["rules"])
    return found


def suiting(pair: Pair, inputs: list[Input]) -> list[Input]:
    """Return the inputs that a pair is compared on."""
    if pair.form == "moments":
        return inputs[:1]
    if pair.form == "reference":  # without the validator's own update there must be others
        return [each for each in inputs if each.n > 2]
    return inputs


def fingerprints(inputs: list[Input]) -> dict[str, dict[str, list[float | None]]]:
    """Return a number for each input, of each component with its usual keys, those of its pairs and their defaults.

    It is a weighted sum of the result, in units of the largest value of the input, and None if there is no result.
    """
    found: dict[str, dict[str, list[float | None]]] = {}
    for kind in PAIRS:
        for name in installed().of(kind):
            keyed: list[tuple[Values, str]] = [(usual(kind, name), "rows")]
            pairs = [pair for pair in PAIRS[kind] if pair.component == name and pair.form != "moments"]
            keyed += [(keys, pair.form) for pair in pairs for keys in (pair.ours, pair.default)]
            for keys, form in keyed:
                line = f"{kind} {name} {written(keys)} {form}"
                if line not in found:
                    found[line] = {"numbers": [_number(kind, name, keys, form, each) for each in inputs]}
    return found


def usual(kind: str, name: str) -> Values:
    """Return the keys of a component where it is not compared: f is that of the input."""
    return {"f": "=f"} if "f" in installed().of(kind)[name].model_fields else {}


def _number(kind: str, name: str, keys: Values, form: str, each: Input) -> float | None:
    if form == "reference" and each.n < 3:
        return None
    value = ours.result(kind, name, values(keys, each), each, form)
    if isinstance(value, str):
        return None
    weights = np.cos(np.arange(value.size))
    with np.errstate(invalid="ignore", over="ignore"):
        total = float(
            weights @ np.nan_to_num(np.asarray(value, np.float64).ravel() / each.scale, nan=7, posinf=9, neginf=-9)
        )
    return round(total, 5) + 0.0


def all_libraries() -> list[Library]:
    """Return the libraries that are compared."""
    return list(LIBRARIES.values())
