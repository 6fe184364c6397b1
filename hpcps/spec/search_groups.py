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
from hpcps.spec.search import (
    DraftedGroup,
    GridSearch,
    HalvingSearch,
    RandomSearch,
    Search,
    TpeSearch,
    extremes,
    missing_optuna,
    read_search,
    with_further,
)
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
        space: the list or range of each searched key, by its dotted key.
        proposals: the file with the configurations that `tpe` has proposed so far.
        proposed: their values by dotted key, in order, with those that were proposed again.
        result: the file with the result.
        chosen: the content of that file; None before the search.
    """

    per: Mapping[str, Any]
    label: str
    members: frozenset[int]
    configurations: tuple[Configuration, ...]
    search: Search
    space: Mapping[str, Any]
    proposals: Path
    proposed: tuple[Mapping[str, Any], ...]
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
    def to_propose(self) -> int:
        """The number of configurations that `tpe` proposes next, from the scores of those that are known."""
        search = self.search
        return min(search.batch, search.proposals - len(self.proposed)) if isinstance(search, TpeSearch) else 0

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about a search that cannot propose any configuration here, or has fewer configurations or rungs than
        its table seems to ask for.
        """
        search, count = self.search, len(self.configurations)
        found = []
        if self.to_propose and (missing := missing_optuna()):
            found.append(missing)
        if isinstance(search, RandomSearch | HalvingSearch) and search.samples is not None and count < search.samples:
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
    if search is None or problems:
        return []
    whole = drafted
    if isinstance(search, TpeSearch):
        # A proposal may have any value, so the ends are checked too: a mistake must not appear after hours.
        whole = [with_further(search, group, drafts, extremes(group)) for group in drafted]
    known = [
        made[: len(group.configurations)]
        for group, made in zip(drafted, _configurations_of(whole, try_runs), strict=False)
    ]
    if not known:
        return []
    folder = (results or Path()) / known[0][0].rungs[0][0].run.name
    spaces = [{dotted(key): values for key, values, _ in group.keys} for group in drafted]
    files = [_proposals_file(folder, search, *each) for each in zip(spaces, known, strict=True)]
    proposed: list[list[Mapping[str, Any]]] = [[] for _ in drafted]
    if isinstance(search, TpeSearch) and results is not None:
        proposed = [_read_proposals(*each)[: search.proposals] for each in zip(files, spaces, strict=True)]
        further = zip(drafted, proposed, strict=True)
        known = _configurations_of([with_further(search, group, drafts, values) for group, values in further], try_runs)
    groups = []
    for group, configurations, space, proposals, values in zip(drafted, known, spaces, files, proposed, strict=True):
        file = _result_file(folder, search, configurations)
        chosen = None if results is None else _read_result(file, configurations)
        members, label = frozenset(group.members), _label_of(group.per)
        groups.append(
            SearchGroup(
                group.per, label, members, configurations, search, space, proposals, tuple(values), file, chosen
            )
        )
    return groups


def _configurations_of(
    drafted: Sequence[DraftedGroup], try_runs: Callable[[Sequence[Draft]], list[Point]]
) -> list[tuple[Configuration, ...]]:
    """Return the configurations of each group, or none if there are mistakes in their runs."""
    points = iter(made := try_runs([run for group in drafted for run in group.runs]))
    found = []
    for group in drafted if made else ():
        configurations = []
        for values, rungs in group.configurations:
            # Points that differ only in keys that the search sets, such as epochs, are one run.
            once = [{point.run_id: point for point in islice(points, len(runs))} for runs in rungs]
            named = {dotted(each.key): each.value for each in values}
            configurations.append(Configuration(named, tuple(tuple(runs.values()) for runs in once)))
        found.append(tuple(configurations))
    return found


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
    # A search by `tpe` that is extended has no result until its last proposal is executed.
    return _named(folder / "chosen", search, configurations, [search.samples] if isinstance(search, TpeSearch) else [])


def _proposals_file(
    folder: Path, search: Search, space: Mapping[str, Any], configurations: Sequence[Configuration]
) -> Path:
    """Return the file with the proposals of a group; its name depends on all that the first one depends on.

    It does not depend on the number of proposals, so more `samples` continue a search.
    """
    seed = None if isinstance(search, GridSearch) else search.seed
    return _named(folder / "proposals", search, configurations, [repr(dict(space)), seed])


def _named(folder: Path, search: Search, configurations: Sequence[Configuration], more: list[object]) -> Path:
    runs = [[[point.run_id for point in rung] for rung in each.rungs] for each in configurations]
    text = json.dumps([search.kind, search.score, search.over, runs, *more])
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:10]}.json"


def _read_proposals(file: Path, space: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Read the configurations that were proposed so far: their values by dotted key.

    Raises:
        SpecError: the file is damaged.
    """
    if not file.exists():
        return []
    try:
        found = read_json(file)
    except InputError as error:
        raise SpecError(f"{error}: delete it, and search again") from error
    entries: list[Mapping[str, Any]] = found if isinstance(found, list) and found else [{}]
    if not all(_is_proposal(entry, space) for entry in entries):
        raise SpecError(f"{file}: not the proposals of this search: delete it, and search again")
    return entries


def _is_proposal(entry: object, space: Mapping[str, Any]) -> bool:
    """Return whether an entry has a value for each searched key: one of its list, or any in place of one of a range."""
    return (
        isinstance(entry, dict)
        and entry.keys() == space.keys()
        and all(not isinstance(values, list) or entry[key] in values for key, values in space.items())
    )


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
