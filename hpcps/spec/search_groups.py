"""The groups of points for which a search chooses values, and the files with its results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from hpcps.errors import InputError, SpecError
from hpcps.inputs import read_json
from hpcps.spec.draft import Draft
from hpcps.spec.mistakes import Mistakes
from hpcps.spec.overrides import Override
from hpcps.spec.point import Point
from hpcps.spec.problems import dotted, quote
from hpcps.spec.search import GridSearch, HalvingSearch, Search, read_search
from hpcps.spec.sweep import Assignment
from hpcps.spec.tree import kind_of


@dataclass(frozen=True)
class Configuration:
    """One value for each searched key, and the runs that try them.

    Attributes:
        values: the values by dotted key.
        rungs: the runs of each rung: one for each point of the group and each seed. Only `halving` has several rungs.
    """

    values: Mapping[str, Any]
    rungs: tuple[tuple[Point, ...], ...]


@dataclass(frozen=True)
class SearchGroup:
    """The points for which values are chosen together.

    Attributes:
        per: the values of the keys of `per` that they share.
        label: these values as a short name; empty if the search is not separate by any key.
        members: their indices.
        configurations: the values to try.
        search: the table of the file.
        result: the file with the result.
        chosen: the content of that file; None before the search.
    """

    per: Mapping[str, Any]
    label: str
    members: frozenset[int]
    configurations: tuple[Configuration, ...]
    search: Search
    result: Path
    chosen: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """The name of the experiment of its runs."""
        return self.configurations[0].rungs[0][0].run.name

    @property
    def without_result(self) -> Path:
        """The file that exists if the search was executed, and chose nothing because all of its runs were lost."""
        return self.result.with_suffix(".lost")

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about a search that has fewer configurations or rungs than its table seems to ask for."""
        search, count = self.search, len(self.configurations)
        found = []
        if not isinstance(search, GridSearch) and search.samples is not None and count < search.samples:
            found.append(
                f"[search] has {count} different configurations, fewer than samples = {search.samples}, because equal "
                "ones are one: give it more values, or a range"
            )
        if isinstance(search, HalvingSearch) and len(self.sizes) == 1:
            found.append(
                f"[search] has a single rung, because the number of configurations, {count}, is not greater than "
                f"factor = {search.factor}: give it more configurations, or use a lower factor or another kind"
            )
        return tuple(found)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of configurations of each rung."""
        count = len(self.configurations)
        return self.search.sizes(count) if isinstance(self.search, HalvingSearch) else (count,)


def load_groups(
    table: object,
    drafts: Sequence[Draft],
    over: Sequence[Override],
    results: Path | None,
    mistakes: Mistakes,
    try_runs: Callable[[Sequence[Draft]], list[Point]],
) -> list[SearchGroup]:
    """Return the groups for which the `[search]` of a file chooses values; none if there are mistakes in the search.

    Args:
        table: its value in the file.
        drafts: the points of the file.
        over: the values of `--set`.
        results: the folder of all results; None: results of an earlier search are not read.
        mistakes: gets the mistakes.
        try_runs: returns the runs of the search, or none if there are mistakes in them.

    Raises:
        SpecError: the result of an earlier search is damaged.
    """
    search, drafted, problems = read_search(table, drafts, over)
    for problem in problems:
        mistakes.add(problem)
    made = try_runs([run for group in drafted for _, rungs in group.configurations for runs in rungs for run in runs])
    if search is None or problems or not made:
        return []
    points, groups = iter(made), []
    for group in drafted:
        configurations = []
        for values, rungs in group.configurations:
            # Points that differ only in keys that the search sets, such as epochs, are one run.
            once = [{point.run_id: point for point in islice(points, len(runs))} for runs in rungs]
            named = {dotted(each.key): each.value for each in values}
            configurations.append(Configuration(named, tuple(tuple(runs.values()) for runs in once)))
        file = _result_file((results or Path()) / made[0].run.name, search, configurations)
        chosen = None if results is None else _read_result(file, configurations)
        members, label = frozenset(group.members), _label_of(group.per)
        groups.append(SearchGroup(group.per, label, members, tuple(configurations), search, file, chosen))
    return groups


def with_chosen(drafts: Sequence[Draft], groups: Iterable[SearchGroup]) -> list[Draft]:
    """Return the points of a file with the values that were chosen for them."""
    found = list(drafts)
    for group in groups:
        values = group.chosen["values"] if group.chosen else {}
        changes = [Assignment(tuple(key.split(".")), v, ("search", "values", key)) for key, v in values.items()]
        for member in group.members if changes else ():
            found[member] = found[member].changed(changes)
    return found


def _label_of(per: Mapping[str, Any]) -> str:
    """Return the values of the keys of `per` as a short text."""
    parts = []
    for value in per.values():
        if isinstance(value, dict):
            others = (f"{name} {quote(inner)}" for name, inner in value.items() if name not in ("kind", "name"))
            parts.append(" ".join([str(kind_of(value)), *others]))
        else:
            parts.append(value if isinstance(value, str) else quote(value))
    return " · ".join(parts)


def _result_file(folder: Path, search: Search, configurations: Sequence[Configuration]) -> Path:
    """Return the file with the result of a group; its name depends on all that the choice depends on."""
    runs = [[[point.run_id for point in rung] for rung in each.rungs] for each in configurations]
    text = json.dumps([search.kind, search.score, search.over, runs])
    return folder / "chosen" / f"{hashlib.sha256(text.encode()).hexdigest()[:10]}.json"


def _read_result(file: Path, configurations: Sequence[Configuration]) -> Mapping[str, Any] | None:
    """Read the result of a group; None before the search.

    Raises:
        SpecError: the file is damaged.
    """
    if not file.exists():
        return None
    try:
        found = read_json(file)
    except InputError as error:
        raise SpecError(f"{error}: delete it, and search again") from error
    values = found.get("values") if isinstance(found, dict) else None
    if not any(values == each.values for each in configurations) or not isinstance(found.get("runs"), list):
        raise SpecError(f"{file}: not a result of this search: delete it, and search again")
    result: Mapping[str, Any] = found
    return result
