"""The `[[include]]` tables: further points, one each, outside the product."""

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
        made: the values that the point has in place of the base's.
        label: what it is called; empty to say what sets it apart.
    """

    made: tuple[Assignment, ...]
    label: str = ""

    @property
    def curve(self) -> dict[str, str]:
        """What tells its curve from another's: all but the seed."""
        return {dotted(a.key): repr(a.value) for a in self.made if a.key != ("seed",)}


def read_include(tables: object) -> tuple[list[Inclusion], list[Problem]]:
    """Read the `include` of an experiment file: what can be understood of it, and the problems.

    A table that says its kind or name is a value, which replaces the base's table; of any other each key is.
    """
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        return [], [Problem(("include",), 'expects tables: write [[include]], and below it "some.key" = value')]
    found: list[Inclusion] = []
    problems = []
    for number, table in enumerate(tables):
        place: Path = ("include", number)
        label = table.get("label", "")
        if not isinstance(label, str) or ("label" in table and not label.strip()):
            problems.append(Problem((*place, "label"), f"expects a text, got {quote(label)}"))
            label = ""
        values = {name: value for name, value in table.items() if name != "label"}
        made = []
        for key, value, where in assignments(values, place, kind_of):
            if key == ("name",):
                message = "the name cannot change: all points of a file belong to one experiment"
                problems.append(Problem(where, message))
            else:
                made.append(Assignment(key, value, where))
        if not values:
            problems.append(Problem(place, "an empty [[include]]: give it the keys that set the point apart"))
        inclusion = Inclusion(tuple(made), label)
        if any(label and other.label == label and other.curve != inclusion.curve for other in found):
            message = f"{quote(label)} is another point's label already, which differs in more than the seed"
            problems.append(Problem((*place, "label"), message))
        found.append(inclusion)
    return found, problems
