"""Builds runs from their tables and lists their problems; what the points of a file share is validated once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from itertools import takewhile
from typing import Any, TypeVar

from pydantic import ValidationError

from hpcps.registry import Config
from hpcps.spec.checks import contradictions
from hpcps.spec.locate import Path
from hpcps.spec.problems import Problem, translate, translate_all
from hpcps.spec.schema import Run
from hpcps.spec.tree import Tree, copied, get, put, remove

T = TypeVar("T")


class Shared:
    """The valid tables of a file's points, which many points of a sweep have in common, and what follows from them.

    Attributes:
        tables: the valid tables by name and content.
    """

    def __init__(self) -> None:
        self.tables: dict[Hashable, Config] = {}
        self._results: dict[Hashable, tuple[Config, Any]] = {}

    def of(self, table: Config, key: Hashable, make: Callable[[], T]) -> T:
        """Return what `make` returned the first time for this table, which is compared by its identity, and key."""
        # The table is kept, so that no other one gets its id.
        known = self._results.get((id(table), key)) or self._results.setdefault((id(table), key), (table, make()))
        result: T = known[1]
        return result


PLACEHOLDERS: dict[tuple[str, ...], object] = {
    ("name",): "unnamed",
    ("topology", "workers"): 1,
    ("model", "name"): "mlp",
    ("data", "name"): "digits",
    ("train", "epochs"): 1,
}
"""A valid value for every required key, to check the other keys of a file without it."""


def validate(tree: Tree, shared: Shared | None = None) -> tuple[Run | None, list[Problem]]:
    """Build a run from its tables.

    Args:
        tree: the tables.
        shared: what it has in common with other points of its file.

    Returns:
        The run, and all problems: those of single keys, and contradictions between keys that are valid. There is no
        run if the value of a key is wrong.
    """
    run, problems = _build(tree, shared or Shared())
    if run is not None:
        return run, contradictions(run)
    failed = [problem.path for problem in problems]
    mended = _mend(tree, problems)
    if mended is not None:
        problems += [
            problem
            for problem in contradictions(mended)
            if not any(_related(path, bad) for path in (problem.path, *problem.involves) for bad in failed)
        ]
    return None, problems


def _build(tree: Tree, shared: Shared) -> tuple[Run | None, list[Problem]]:
    # The defaults of some tables follow from the topology. A text distinguishes 1 from 1.0 and true.
    topology = repr(tree.get("topology"))
    keys = {name: (name, repr(value), topology) for name, value in tree.items() if isinstance(value, dict)}
    known = {name: shared.tables[key] for name, key in keys.items() if key in shared.tables}
    try:
        run = Run.model_validate({**tree, **known})
        shared.tables |= {key: getattr(run, name) for name, key in keys.items()}
        return run, []
    except ValidationError as error:
        found = translate_all(error.errors(include_url=False), translate)
        # pydantic reports a value that fits none of several types once for each of them.
        found = list({problem.path: problem for problem in reversed(found)}.values())[::-1]
    meant = {path for problem in found for path in problem.stands_for}
    return None, [problem for problem in found if not (problem.missing and problem.path in meant)]


def _mend(tree: Tree, problems: list[Problem]) -> Run | None:
    """Remove wrong keys, add placeholders for required keys, and build a run from the result."""
    tree = copied(tree)
    for _ in range(4):  # keys that depend on a removed key may become wrong, at most up to the top level
        for problem in problems:
            names = tuple(map(str, takewhile(lambda part: isinstance(part, str), problem.path)))
            if not problem.missing or len(names) < len(problem.path):  # a list is removed as a whole
                remove(tree, names)
            elif names not in PLACEHOLDERS:
                remove(tree, names[:-1])
        for path, value in PLACEHOLDERS.items():
            if get(tree, path) is None:
                tree = put(tree, path, value)
        run, problems = _build(tree, Shared())
        if run is not None:
            return run
    return None


def _related(one: Path, other: Path) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
