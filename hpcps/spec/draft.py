"""The points of an experiment file before they are validated: the product, less what is excluded, and inclusions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from hpcps.spec import presets
from hpcps.spec.mistakes import Change, Mistakes
from hpcps.spec.overrides import Override
from hpcps.spec.problems import Problem
from hpcps.spec.sweep import Assignment, Axis, Inclusion, Points, expand, read_exclude, read_include, read_sweep
from hpcps.spec.tree import Tree, put

MOST_POINTS = 100_000
"""The most points that a file may make, including those that it excludes; hpcps can check them in a minute."""


@dataclass(frozen=True)
class Draft:
    """A point before it is validated.

    Attributes:
        tree: its values, including those of its preset.
        made: the values from the sweep or from an `[[include]]`.
        changes: all changes to the base; later ones override earlier ones.
        included: the `[[include]]` that it comes from, or None.
        plain: its values without those of its preset.
    """

    tree: Tree
    made: tuple[Assignment, ...]
    changes: tuple[Change, ...]
    included: Inclusion | None
    plain: Tree

    def changed(self, changes: Sequence[Change], made: tuple[Assignment, ...] | None = None) -> Draft:
        """Return this point with further changes to its values.

        Args:
            changes: the changes, which override its own.
            made: the values from a sweep; by default the same as here. With them it is in no `[[include]]`.
        """
        if made is None:
            return _draft(self.plain, self.made, changes, self.included, self.changes)
        return _draft(self.plain, made, changes, earlier=self.changes)


def drafts_of(tables: Tree, over: Sequence[Override], mistakes: Mistakes) -> list[Draft]:
    """Remove sweep, exclusions and inclusions from the tables; return all points that they make from the base."""
    swept = tables.pop("sweep", [])
    exclusions, wrong_exclusions = read_exclude(tables.pop("exclude", []))
    inclusions, wrong_inclusions = read_include(tables.pop("include", []))
    axes, problems = read_sweep(swept, tuple(override.key for override in over))
    for problem in (*problems, *wrong_exclusions, *wrong_inclusions):
        mistakes.add(problem)
    if _count(axes) + len(inclusions) > MOST_POINTS:
        what = f"it makes more than {MOST_POINTS:,} points: sweep fewer values, or use several files"
        mistakes.add(Problem(("sweep",), what))
        mistakes.stop()
    product = [_draft(tables, made, (*made, *over)) for made in expand(axes)]
    if exclusions:
        # If an exclusion matches no point only because of --set, the file has no mistake.
        whole = product
        if over:
            axes, _ = read_sweep(swept)
            whole = [_draft(tables, made, made) for made in expand(axes)] if _count(axes) <= MOST_POINTS else []
        points = Points([draft.tree for draft in whole])
        for exclusion in exclusions if whole else ():
            if not points.excluded(exclusion):
                mistakes.add(points.idle(exclusion))
        if over:
            points = Points([draft.tree for draft in product])
        excluded = frozenset[int]().union(*map(points.excluded, exclusions))
        product = [draft for number, draft in enumerate(product) if number not in excluded]
    # The values of an [[include]] define its point, so they override --set.
    included = [_draft(tables, each.made, (*over, *each.made), each) for each in inclusions]
    if not product and not included:
        mistakes.add(Problem(("exclude",), "every point of the sweep is excluded: nothing is left to run"))
    return product + included


def _count(axes: Sequence[Axis]) -> int:
    return prod(map(len, axes))


def _draft(
    base: Tree,
    made: tuple[Assignment, ...],
    changes: Iterable[Change],
    included: Inclusion | None = None,
    earlier: tuple[Change, ...] = (),
) -> Draft:
    tree, changes = base, tuple(changes)
    for change in changes:
        tree = put(tree, change.key, change.value)
    return Draft(presets.expand(tree), made, (*earlier, *changes), included, tree)
