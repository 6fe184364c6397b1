"""The points of an experiment file before they are validated: the product, less what is excluded, and inclusions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass

from hpcps.spec import presets
from hpcps.spec.exclude import read_exclude
from hpcps.spec.include import Inclusion, read_include
from hpcps.spec.mistakes import Change, Mistakes
from hpcps.spec.overrides import Override
from hpcps.spec.problems import Problem
from hpcps.spec.sweep import Assignment, expand, read_sweep
from hpcps.spec.tree import Tree, put


@dataclass(frozen=True)
class Draft:
    """A point before it is validated.

    Attributes:
        tree: its values, with its preset's.
        made: what the sweep, or an `[[include]]`, gave it.
        changes: all that was put over the base, the last one on top.
        included: the `[[include]]` that it is from, or None.
    """

    tree: Tree
    made: tuple[Assignment, ...]
    changes: tuple[Change, ...]
    included: Inclusion | None = None


def drafts_of(tables: Tree, over: Sequence[Override], mistakes: Mistakes) -> list[Draft]:
    """Take sweep, exclusions and inclusions out of the tables; return all points that they make of the rest."""
    swept = tables.pop("sweep", [])
    exclusions, wrong_exclusions = read_exclude(tables.pop("exclude", []))
    inclusions, wrong_inclusions = read_include(tables.pop("include", []))
    axes, problems = read_sweep(swept, tuple(override.key for override in over))
    for problem in (*problems, *wrong_exclusions, *wrong_inclusions):
        mistakes.add(problem)
    product = [_draft(tables, made, (*made, *over)) for made in expand(axes)]
    if exclusions:
        # What --set leaves nothing to exclude of is no mistake of the file.
        whole = product
        if over:
            whole = [_draft(tables, made, made) for made in expand(read_sweep(swept)[0])]
        trees = [draft.tree for draft in whole]
        for exclusion in exclusions:
            if not any(map(exclusion.fits, trees)):
                mistakes.add(exclusion.idle(trees))
        product = [draft for draft in product if not any(exclusion.fits(draft.tree) for exclusion in exclusions)]
    # What an included point is made of is what it is for: that goes over --set.
    included = [_draft(tables, each.made, (*over, *each.made), each) for each in inclusions]
    if not product and not included:
        mistakes.add(Problem(("exclude",), "every point of the sweep is excluded: nothing is left to run"))
    return product + included


def _draft(
    base: Tree, made: tuple[Assignment, ...], changes: Iterable[Change], included: Inclusion | None = None
) -> Draft:
    tree, changes = deepcopy(base), tuple(changes)
    for change in changes:
        put(tree, change.key, deepcopy(change.value))
    presets.expand(tree)
    return Draft(tree, made, changes, included)
