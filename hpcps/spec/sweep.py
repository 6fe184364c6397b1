"""The tables that make the points of a file: `[[sweep]]`, `[[exclude]]` and `[[include]]`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, zip_longest
from typing import Any

from hpcps.registry.similarity import nearest
from hpcps.spec.keys import conditions, root
from hpcps.spec.locate import Path
from hpcps.spec.problems import Problem, dotted, quote
from hpcps.spec.tree import Tree, get, kind_of, matches

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


@dataclass(frozen=True)
class Inclusion:
    """One `[[include]]` table.

    Attributes:
        made: the values that replace those of the base.
        label: its label; empty for a label made from the values that differ.
    """

    made: tuple[Assignment, ...]
    label: str = ""

    @property
    def curve(self) -> dict[str, str]:
        """The values that distinguish its curve from others: all except the seed."""
        return {dotted(a.key): repr(a.value) for a in self.made if a.key != ("seed",)}


def read_include(tables: object) -> tuple[list[Inclusion], list[Problem]]:
    """Read the `include` of an experiment file; return the valid tables and the problems.

    A table with a kind or name is one value and replaces the base's table. In any other table each key is a value.
    """
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        return [], [Problem(("include",), 'expects tables: write [[include]], and below it "some.key" = value')]
    found: list[Inclusion] = []
    problems = []
    curves: dict[str, list[dict[str, str]]] = {}
    for number, table in enumerate(tables):
        place: Path = ("include", number)
        label = table.get("label", "")
        if not isinstance(label, str) or ("label" in table and not label.strip()):
            problems.append(Problem((*place, "label"), f"expects a text, got {quote(label)}"))
            label = ""
        values = {name: value for name, value in table.items() if name != "label"}
        made = []
        for key, value, where in assignments(values, place, kind_of):
            if key in (("name",), ("plugins",)):
                message = f"the {key[0]} cannot change: all points of a file belong to one experiment"
                problems.append(Problem(where, message))
            else:
                made.append(Assignment(key, value, where))
        if not values:
            problems.append(Problem(place, "an empty [[include]]: give it the keys that differ from the base"))
        inclusion = Inclusion(tuple(made), label)
        others = curves.setdefault(label, [])
        if label and any(other != inclusion.curve for other in others):
            message = f"{quote(label)} is already the label of another point, which differs in more than the seed"
            problems.append(Problem((*place, "label"), message))
        if inclusion.curve not in others[:1]:
            others.append(inclusion.curve)
        found.append(inclusion)
    return found, problems


@dataclass(frozen=True)
class Exclusion:
    """One `[[exclude]]` table.

    Attributes:
        place: its path in the file.
        conditions: the values that a point must all have; a list contains alternatives.
    """

    place: Path
    conditions: tuple[Assignment, ...]


_SHOWN = 10
"""The values of a key that a message lists."""


class Points:
    """The points of a sweep, which tells which of them exclusions exclude.

    A file may have thousands of both, so the points with each value of a key are found once.
    """

    def __init__(self, trees: Sequence[Tree]) -> None:
        """Take the trees of the points."""
        self._trees = trees
        self._columns: dict[KeyPath, _Column] = {}

    def excluded(self, exclusion: Exclusion) -> frozenset[int]:
        """Return the numbers of the points that an exclusion excludes."""
        first, *others = (self._column(each.key).matching(each.value) for each in exclusion.conditions)
        return first.intersection(*others)

    def idle(self, exclusion: Exclusion) -> Problem:
        """Return the problem that no point matches, with a condition that no point satisfies if there is one."""
        for condition in exclusion.conditions:
            column = self._column(condition.key)
            if not column.matching(condition.value):
                what = f"no point of the sweep has {dotted(condition.key)} = {quote(condition.value)}: it is "
                return Problem(condition.place, what + column.shown())
        return Problem(exclusion.place, "no point of the sweep has all of these values: correct or remove the table")

    def _column(self, key: KeyPath) -> _Column:
        if key not in self._columns:
            self._columns[key] = _Column([value_of(tree, key) for tree in self._trees])
        return self._columns[key]


class _Column:
    """The values of a key, one for each point."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values
        self._of: dict[Any, list[int]] = {}
        self._matching: dict[Any, frozenset[int]] = {}
        self._others: list[int] = []  # those that only `matches` can compare
        for number, value in enumerate(values):
            kind = kind_of(value) if isinstance(value, dict) else value
            if _is_plain(kind):
                self._of.setdefault((isinstance(kind, bool), kind), []).append(number)
            if not _is_plain(value):
                self._others.append(number)

    def matching(self, wanted: Any) -> frozenset[int]:
        """Return the numbers of the points whose value matches; a list contains alternatives."""
        if not _is_plain(wanted):
            return self._compared(wanted)
        plain = isinstance(wanted, bool), wanted
        if plain not in self._matching:
            self._matching[plain] = self._compared(wanted)
        return self._matching[plain]

    def _compared(self, wanted: Any) -> frozenset[int]:
        choices = [wanted, *(wanted if isinstance(wanted, list) else ())]
        found: set[int] = set()
        for choice in choices:
            if _is_plain(choice):
                found.update(self._of.get((isinstance(choice, bool), choice), ()))
            else:
                found.update(number for number in self._others if matches(self._values[number], choice))
        return frozenset(number for number in found if any(matches(self._values[number], each) for each in choices))

    def shown(self) -> str:
        """Return the values, for a message."""
        different = list(dict.fromkeys(quote(value) for value in self._values if value is not None))
        more = f", … ({len(different):,} values)" if len(different) > _SHOWN else ""
        return f"{', '.join(different[:_SHOWN])}{more}" or "not set"


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float)


def read_exclude(tables: object) -> tuple[list[Exclusion], list[Problem]]:
    """Read the `exclude` of an experiment file; return the valid tables and the problems."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        return [], [Problem(("exclude",), 'expects tables: write [[exclude]], and below it "some.key" = value')]
    if not tables:
        return [], []
    known = conditions()
    found, problems = [], []
    for number, table in enumerate(tables):
        place: Path = ("exclude", number)
        wanted = [Assignment(*each) for each in assignments(table, place)]
        unknown = [condition for condition in wanted if ".".join(condition.key) not in known]
        if not wanted:
            problems.append(Problem(place, 'an empty [[exclude]]: give it keys, such as "attack.kind" = "none"'))
        for condition in unknown:
            guess = nearest(".".join(condition.key), known)
            message = f"unknown key {dotted(condition.key)}" + (f": did you mean {guess}?" if guess else "")
            problems.append(Problem(condition.place, message))
        if wanted and not unknown:
            found.append(Exclusion(place, tuple(wanted)))
    return found, problems


def value_of(tree: Tree, path: Sequence[str]) -> Any:
    """Return a point's value, or the default if the point does not set it; None if there is neither."""
    table = root()
    for depth, part in enumerate(path):
        key = table.keys.get(part)
        value = get(tree, path[: depth + 1])
        if key is None or not key.tables:
            return get(tree, path) if key is None or value is not None else key.default
        if not key.tagged:
            table = key.tables[0]
            continue
        value = key.default if value is None else value
        inside = get(value, path[depth + 1 :]) if isinstance(value, dict) else None
        of_kind = key.table(value.get("kind", "")) if isinstance(value, dict) else None
        if inside is not None or of_kind is None or depth + 1 == len(path):
            return inside
        table = of_kind
    return get(tree, path)
