"""The `[[include]]` tables: each adds one point outside the product."""

from __future__ import annotations

from dataclasses import dataclass

from hpcps.spec.locate import Path
from hpcps.spec.problems import Problem, dotted, quote
from hpcps.spec.sweep import Assignment, assignments
from hpcps.spec.tree import kind_of


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
