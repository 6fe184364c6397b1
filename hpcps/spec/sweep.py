"""The `[[sweep]]` tables: points are their product; the keys of one table vary together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product, zip_longest
from typing import Any

from hpcps.spec.locate import Path
from hpcps.spec.problems import Problem, dotted, quote

KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class Assignment:
    """One value that a sweep or an `[[include]]` gives to one key.

    Attributes:
        key: the key that it sets.
        value: the value; a table replaces the whole table of the base.
        place: the path of the value in the file.
    """

    key: KeyPath
    value: Any
    place: Path


Axis = tuple[tuple[Assignment, ...], ...]
"""The steps of one `[[sweep]]` table: each has the assignments that are made together."""


def read_sweep(sweep: object, replaced: tuple[KeyPath, ...] = ()) -> tuple[list[Axis], list[Problem]]:
    """Read the `sweep` of an experiment file.

    Args:
        sweep: the value in the file.
        replaced: keys that are set otherwise; their sweeps, and those of keys below them, are dropped.

    Returns:
        The axes and the problems. Axes with problems are repaired as far as possible, so that their values can be
        checked too.
    """
    if not isinstance(sweep, list) or not all(isinstance(table, dict) for table in sweep):
        return [], [Problem(("sweep",), 'expects tables: write [[sweep]], and below it "some.key" = [first, second]')]
    axes, problems = [], []
    seen: dict[KeyPath, bool] = {}
    for number, table in enumerate(sweep):
        place: Path = ("sweep", number)
        columns = []
        keys = list(assignments(table, place))
        if not keys:
            problems.append(Problem(place, "an empty [[sweep]]: give it keys, such as seed = [1, 2, 3], or remove it"))
        for key, values, where in keys:
            problem = _misuse(key, values, where, seen)
            seen |= {key[:depth]: False for depth in range(1, len(key)) if key[:depth] not in seen} | {key: True}
            if problem:
                problems.append(problem)
            if any(key[: len(parent)] == parent for parent in replaced) or values == []:
                continue
            values = values if isinstance(values, list) else [values]
            columns.append([Assignment(key, value, (*where, i)) for i, value in enumerate(values)])
        lengths = {len(column) for column in columns}
        if len(lengths) > 1:
            counts = ", ".join(f"{dotted(column[0].key)} has {len(column)}" for column in columns)
            message = f"keys of one [[sweep]] vary together and need lists of equal length, but {counts}"
            message += "; put keys that vary independently into separate [[sweep]] tables"
            problems.append(Problem(place, message, stands_for=tuple(column[0].key for column in columns)))
        if columns:
            axes.append(tuple(tuple(filter(None, step)) for step in zip_longest(*columns)))
    return axes, problems


def expand(axes: list[Axis]) -> Iterator[tuple[Assignment, ...]]:
    """Yield the assignments of every point; the last table varies fastest."""
    for steps in product(*axes):
        yield tuple(assignment for step in steps for assignment in step)


def assignments(
    table: dict[str, Any], place: Path, whole: Callable[[object], object] = lambda value: False
) -> Iterator[tuple[KeyPath, Any, Path]]:
    """Yield key, value and place of each assignment in a table, written `"a.b" = …`, `a.b = …` or as a table.

    Args:
        table: the table in the file.
        place: its path in the file.
        whole: tells whether a table inside it is one value.
    """
    for name, value in table.items():
        parts = tuple(name.split("."))
        if isinstance(value, dict) and value and not whole(value):
            for key, inner, where in assignments(value, (*place, name), whole):
                yield (*parts, *key), inner, where
        else:
            yield parts, value, (*place, name)


def _misuse(key: KeyPath, values: object, where: Path, seen: Mapping[KeyPath, bool]) -> Problem | None:
    if key in (("name",), ("plugins",)):
        return Problem(where, f"the {key[0]} cannot be swept: all points of a file belong to one experiment")
    if key[0] in ("sweep", "exclude", "include", "search"):
        return Problem(where, f"a sweep has values for the keys of a run, and {key[0]} is not a key of a run")
    if not isinstance(values, list):
        message = f"a sweep needs a list of values: write [{quote(values)}, …] or move the key out of [[sweep]]"
        return Problem(where, message)
    if not values:
        return Problem(where, "an empty list makes no points: add values or remove the key", stands_for=(key,))
    if seen.get(key):
        return Problem(where, f"{dotted(key)} is swept twice")
    if key in seen:
        return Problem(where, f"{dotted(key)} follows a sweep of keys inside it and would replace them: put it first")
    return None
