"""The `[[include]]` and `[[exclude]]` tables: points outside the product, and points that are removed from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcps.registry.similarity import nearest
from hpcps.spec.keys import conditions, root
from hpcps.spec.locate import Path
from hpcps.spec.problems import Problem, dotted, quote
from hpcps.spec.sweep import Assignment, assignments
from hpcps.spec.tree import Tree, get, kind_of, matches


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

    def fits(self, tree: Tree) -> bool:
        """Tell whether it excludes a point."""
        return all(_holds(value_of(tree, condition.key), condition.value) for condition in self.conditions)

    def idle(self, trees: Sequence[Tree]) -> Problem:
        """Return the problem that no point matches, with a condition that no point satisfies if there is one."""
        for condition in self.conditions:
            values = [value_of(tree, condition.key) for tree in trees]
            if not any(_holds(value, condition.value) for value in values):
                there = ", ".join(dict.fromkeys(quote(value) for value in values if value is not None)) or "not set"
                what = f"no point of the sweep has {dotted(condition.key)} = {quote(condition.value)}: it is {there}"
                return Problem(condition.place, what)
        return Problem(self.place, "no point of the sweep has all of these values: correct or remove the table")


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


def _holds(value: Any, wanted: Any) -> bool:
    if matches(value, wanted):
        return True
    return isinstance(wanted, list) and any(matches(value, choice) for choice in wanted)
