"""The `[[sweep]]` tables: the product of all of them; inside one, keys move together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
        key: the key it sets.
        value: what it sets it to; a table replaces the whole table of the base.
        place: where the value stands in the file.
    """

    key: KeyPath
    value: Any
    place: Path


Axis = tuple[tuple[Assignment, ...], ...]
"""What one `[[sweep]]` table goes through: at each step, the assignments that are made together."""


def read_sweep(sweep: object, replaced: tuple[KeyPath, ...] = ()) -> tuple[list[Axis], list[Problem]]:
    """Read the `sweep` of an experiment file.

    Args:
        sweep: what the file has there.
        replaced: keys whose sweep is dropped, with that of the keys below them, because they are given otherwise.

    Returns:
        The axes, mended as far as possible where there are problems, so that their values can be checked too; and
        the problems.
    """
    if not isinstance(sweep, list) or not all(isinstance(table, dict) for table in sweep):
        return [], [Problem(("sweep",), 'expects tables: write [[sweep]], and below it "some.key" = [first, second]')]
    axes, problems = [], []
    seen: list[KeyPath] = []
    for number, table in enumerate(sweep):
        place: Path = ("sweep", number)
        columns = []
        keys = list(assignments(table, place))
        if not keys:
            problems.append(Problem(place, "an empty [[sweep]]: give it keys, such as seed = [1, 2, 3], or remove it"))
        for key, values, where in keys:
            problem = _misuse(key, values, where, seen)
            seen.append(key)
            if problem:
                problems.append(problem)
            if any(key[: len(parent)] == parent for parent in replaced) or values == []:
                continue
            values = values if isinstance(values, list) else [values]
            columns.append([Assignment(key, value, (*where, i)) for i, value in enumerate(values)])
        lengths = {len(column) for column in columns}
        if len(lengths) > 1:
            counts = ", ".join(f"{dotted(column[0].key)} has {len(column)}" for column in columns)
            message = f"keys of one [[sweep]] move together and need as many values each, but {counts}"
            message += "; put keys that vary independently into tables of their own"
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
    """Yield key, value and place of what a table says, written `"a.b" = …`, `a.b = …` or as a table.

    Args:
        table: what the file has.
        place: where it has it.
        whole: which tables inside it are values by themselves.
    """
    for name, value in table.items():
        parts = tuple(name.split("."))
        if isinstance(value, dict) and value and not whole(value):
            for key, inner, where in assignments(value, (*place, name), whole):
                yield (*parts, *key), inner, where
        else:
            yield parts, value, (*place, name)


def _misuse(key: KeyPath, values: object, where: Path, seen: list[KeyPath]) -> Problem | None:
    if key == ("name",):
        return Problem(where, "the name cannot be swept: all points of a file belong to one experiment")
    if key[0] in ("sweep", "exclude", "include"):
        return Problem(where, f"a sweep has values for the keys of a run, and {key[0]} is none")
    if not isinstance(values, list):
        message = f"a sweep goes through a list of values: write [{quote(values)}, …] or move it out of [[sweep]]"
        return Problem(where, message)
    if not values:
        return Problem(where, "an empty list gives no points: give it values or remove it", stands_for=(key,))
    if key in seen:
        return Problem(where, f"{dotted(key)} is swept twice")
    if any(other[: len(key)] == key for other in seen):
        return Problem(where, f"{dotted(key)} comes after a sweep of keys inside it and would undo that: put it first")
    return None
