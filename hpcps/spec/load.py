"""Reads an experiment file and expands it into its runs."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any, cast

from hpcps.errors import InputError, SpecError
from hpcps.inputs import MiB, parse_toml, printable, read_text
from hpcps.registry import Config, activate
from hpcps.spec.draft import Draft, drafts_of
from hpcps.spec.identity import run_id
from hpcps.spec.label import Labels
from hpcps.spec.locate import locate
from hpcps.spec.mistakes import Mistakes
from hpcps.spec.overrides import Candidate, Override, last_of_each, parse_override, selected, shortened
from hpcps.spec.plugins import components_of, plugins_named, plugins_of, registry_of, used
from hpcps.spec.point import Point
from hpcps.spec.problems import Problem, dotted, quote
from hpcps.spec.schema import Run
from hpcps.spec.search import missing_optuna
from hpcps.spec.search_groups import SearchGroup, load_groups, with_chosen
from hpcps.spec.sweep import KeyPath
from hpcps.spec.tree import Tree, get
from hpcps.spec.validate import Shared, validate
from hpcps.spec.warnings import warnings_of_run

MOST_BYTES = 2 * MiB
"""The largest experiment file."""
MOST_FAILING = 1_000
"""The most points with mistakes of which the mistakes are listed."""
MANY = 5_000
"""Points that take seconds to check."""


@dataclass(frozen=True)
class LoadedExperiment:
    """An experiment file, read and checked.

    Attributes:
        path: the file.
        name: the experiment's name.
        points: its runs: those of the product in its order, then the included ones. Points with mistakes are missing,
            which exist only if `--only` leaves them out.
        chosen: the points that `--only` selects, in the same order.
        count: the number of points of the file, with those that have mistakes.
        search: the groups of selected points for which the `[search]` of the file chooses values.
    """

    path: Path
    name: str
    points: tuple[Point, ...]
    chosen: tuple[Point, ...]
    count: int
    search: tuple[SearchGroup, ...] = ()

    def check_searched(self) -> None:
        """Check that the search of the file has chosen the values of all selected points.

        Raises:
            SpecError: it has not.
        """
        for lost in (True, False):
            left = [group for group in self.search if not group.chosen and group.without_result.exists() is lost]
            if not left:
                continue
            keys = list(left[0].configurations[0].values)
            where = "; ".join(group.label for group in left if group.label)
            what = f"{self.path}: the [search] of {', '.join(keys)} has no result"
            way = f"`hpcps search {self.path}`"
            said, do = (" yet", f"{way} makes it, with the same --set and --results")
            if lost:
                said, do = (
                    ", because all of its runs diverged or failed",
                    f"change its values, and execute {way} again",
                )
            raise SpecError(f"{what}{said}{where and f' for {where}'}: {do}; or give a value with --set {keys[0]}=…")

    def to_search(self) -> tuple[SearchGroup, ...]:
        """Return the groups of points for which values are to be chosen.

        Raises:
            SpecError: there are none, or Optuna is to propose values and is not installed.
        """
        if not self.search:
            raise SpecError(
                f"{self.path}: nothing to search: the file needs a [search] table, with keys that no --set and no "
                "[[include]] of the selected points sets"
            )
        if any(group.to_propose for group in self.search) and (missing := missing_optuna()):
            raise SpecError(f"{self.path}: {missing}")
        return self.search

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the selected points and of the search, each once."""
        return tuple(
            dict.fromkeys([*warnings_of(self.chosen), *(each for one in self.search for each in one.warnings)])
        )


def warnings_of(points: Iterable[Point]) -> tuple[str, ...]:
    """Return the warnings of these points, each once."""
    return tuple(dict.fromkeys(warning for point in points for warning in point.warnings))


def select(points: Sequence[Point], selectors: Sequence[str]) -> tuple[Point, ...]:
    """Return the points that all selectors match, in the order of the file; see `selected`."""
    indices = selected([Candidate(p.index, p.run_id, p.label, partial(_values, p.run)) for p in points], selectors)
    return tuple(point for point in points if point.index in indices)


def load_experiment(
    path: str | Path,
    overrides: Sequence[str] = (),
    content: str | None = None,
    only: Sequence[str] = (),
    results: Path | None = None,
) -> LoadedExperiment:
    """Read an experiment file, expand its sweep and check every point that is selected.

    Args:
        path: the TOML file.
        overrides: `key=value` texts that override the file; one for a swept key replaces the sweep of that key.
        content: the content of the file, which then need not exist.
        only: the selectors of points; mistakes in a sweep or an `[[include]]` that concern other points do not count.
        results: the folder of all results, in which a search has left the values that it chose; None: none are used.

    Raises:
        SpecError: the file cannot be read or has mistakes; the message lists all of them.
    """
    path = Path(path)
    text, tables = _read(path, content)
    lines = locate(text)
    mistakes = Mistakes(path, lines)
    over = _overrides(overrides, mistakes)
    activate(registry_of(path, tables, over, mistakes))
    search = tables.pop("search", None)
    drafts = drafts_of(tables, over, mistakes)
    if len(drafts) > MANY:
        print(f"hpcps: {path}: checking {len(drafts):,} points ...", file=sys.stderr, flush=True)
    shared = Shared()
    groups: list[SearchGroup] = []
    if search is not None:
        tried = partial(_tried, shared=shared, mistakes=mistakes, odd=Mistakes(path, lines))
        groups = load_groups(search, drafts, over, results, mistakes, tried)
        drafts = with_chosen(drafts, groups)
    outcomes: list[tuple[Run | None, list[Problem]]] = []
    failing = 0
    for draft in drafts:
        outcomes.append(validate(draft.tree, shared))
        failing += bool(outcomes[-1][1])
        if failing == MOST_FAILING and not only:  # more than a person reads, and each takes milliseconds
            break
    drafts = drafts[: len(outcomes)]
    runs = [run for run, _ in outcomes]
    wrong = {index for index, (_, problems) in enumerate(outcomes) if problems}
    chosen = frozenset(range(len(drafts)))
    if only and wrong:
        # If no point matches, the mistakes of all points are the likely cause.
        with suppress(SpecError):
            chosen = selected(_candidates(drafts, runs, wrong, shared), only)
    for index in sorted(chosen):
        for problem in outcomes[index][1]:
            mistakes.add(problem, drafts[index].changes, tables)
    _check_base(tables, mistakes)
    mistakes.stop()
    names = _labels(drafts, runs, shared)
    points = tuple(
        _point(index, run, names[index], drafts[index], shared, Mistakes(path, lines), tables)
        for index, run in enumerate(runs)
        if run is not None and index not in wrong
    )
    picked = tuple(point for point in points if point.index in chosen) if wrong else select(points, only)
    for group in groups:
        for point in points:
            if group.chosen and point.index in group.members:
                point.search.update({name: value for name, value in group.chosen.items() if name != "tried"})
    _reject_duplicates(picked, over, mistakes)
    wanted = tuple(group for group in groups if any(point.index in group.members for point in picked))
    return LoadedExperiment(path, picked[0].run.name, points, picked, len(drafts), wanted)


def _tried(drafts: Sequence[Draft], shared: Shared, mistakes: Mistakes, odd: Mistakes) -> list[Point]:
    """Return the runs of a search, or add all of their mistakes and return none; `odd` gets their warnings."""
    outcomes = [validate(draft.tree, shared) for draft in drafts]
    for draft, (_, problems) in zip(drafts, outcomes, strict=True):
        for problem in problems:
            mistakes.add(problem, draft.changes)
    runs = [run for run, problems in outcomes if run is not None and not problems]
    if len(runs) < len(drafts):
        return []
    made = zip(runs, _labels(drafts, runs, shared), drafts, strict=True)
    return [_point(index, run, label, draft, shared, odd) for index, (run, label, draft) in enumerate(made)]


def activate_plugins(path: str | Path) -> None:
    """Execute the plugins that an experiment file names and register their components; do not check the other keys.

    Raises:
        SpecError: the file cannot be read, or a plugin cannot be used.
    """
    path = Path(path)
    text, tables = _read(path)
    activate(registry_of(path, tables, (), Mistakes(path, locate(text))))


def _read(path: Path, content: str | None = None) -> tuple[str, Tree]:
    try:
        text = read_text(path, MOST_BYTES) if content is None else content
        return text, parse_toml(path, text)
    except InputError as error:
        raise SpecError(str(error)) from error


def peek(path: str | Path, overrides: Sequence[str] = ()) -> tuple[str, bool]:
    """Return an experiment's name, and whether it names plugins; execute nothing, and do not check the other keys.

    Raises:
        SpecError: the file cannot be read.
    """
    path = Path(path)
    text, tables = _read(path)
    over = _overrides(overrides, Mistakes(path, locate(text)))
    return str(tables.get("name", path.stem)), bool(plugins_named(tables, over))


def _point(
    index: int, run: Run, label: str, draft: Draft, shared: Shared, odd: Mistakes, base: Tree | None = None
) -> Point:
    entries = used(run)
    swept = {".".join(change.key): change.value for change in draft.made}
    for problem in (*warnings_of_run(run), *_replaced(run, draft, base or {})):
        odd.add(problem, draft.changes)
    facts = components_of(entries), plugins_of(entries)
    return Point(index, run, run_id(run, shared), label, swept, *facts, odd.messages())


def _replaced(run: Run, draft: Draft, base: Tree) -> Iterator[Problem]:
    """Yield a warning for each table of a sweep that drops keys of the base's table, which it could have, too."""
    for made in draft.made:
        whole = get(base, made.key)
        if not isinstance(whole, dict) or not isinstance(made.value, dict):
            continue
        component = reduce(lambda table, name: getattr(table, name, None), made.key, cast(object, run))
        fields = type(component).model_fields if isinstance(component, Config) else {}
        lost = [name for name in whole if name in fields and name not in (*made.value, "kind", "name")]
        if lost:
            said = ", ".join(f"{name} = {quote(whole[name])}" for name in lost)
            key = dotted(made.key)
            message = (
                f"replaces the whole table [{key}] of the file, so its {said} {'does' if len(lost) == 1 else 'do'} not "
                f"hold here: repeat {'it' if len(lost) == 1 else 'them'} in this table, or sweep single keys of {key}"
            )
            yield Problem(made.place, message)


def _plain(value: object, shared: Shared) -> object:
    return shared.of(value, "plain", partial(value.model_dump, mode="json")) if isinstance(value, Config) else value


def _labels(drafts: Sequence[Draft], runs: Sequence[Run | None], shared: Shared) -> list[str]:
    """Return the labels: points of the product by their swept keys, included ones also by the keys they set."""
    changed = {assignment.key[0] for draft in drafts for assignment in draft.made}
    trees = [
        {name: _plain(getattr(run, name), shared) if run else draft.tree.get(name) for name in changed}
        for draft, run in zip(drafts, runs, strict=True)
    ]
    named = Labels(trees, next((run.name for run in runs if run), ""))
    swept = dict.fromkeys(a.key for draft in drafts if draft.included is None for a in draft.made)
    names = []
    for place, draft in enumerate(drafts):
        if draft.included is None:
            names.append(named.of(place, [*swept]))
        else:
            own = dict.fromkeys(assignment.key for assignment in draft.made)
            names.append(draft.included.label or named.of(place, [*(swept | own)]))
    return [printable(name) for name in names]


def _candidates(
    drafts: Sequence[Draft], runs: Sequence[Run | None], wrong: Collection[int], shared: Shared
) -> list[Candidate]:
    """Return what `--only` selects from if some points have mistakes: these have no id, and may have raw values."""
    names = _labels(drafts, runs, shared)
    return [
        Candidate(
            index,
            "" if run is None or index in wrong else run_id(run, shared),
            names[index],
            partial(_values, run) if run else partial(dict, draft.tree),
        )
        for index, (draft, run) in enumerate(zip(drafts, runs, strict=True))
    ]


def _values(run: Run) -> dict[str, Any]:
    return run.model_dump(mode="json")


def _overrides(texts: Iterable[str], mistakes: Mistakes) -> list[Override]:
    overrides = []
    for text in texts:
        try:
            overrides.append(parse_override(text))
        except ValueError as error:
            mistakes.add_override(shortened(text), str(error))
    return last_of_each(overrides)


def _check_base(base: Tree, mistakes: Mistakes) -> None:
    """Add the mistakes of the base: its values must be valid even if the sweep replaces them in every point."""
    for problem in validate(base)[1]:
        if not problem.involves and get(base, _names(problem)) is not None:
            mistakes.add(problem)


def _names(problem: Problem) -> KeyPath:
    return tuple(part for part in problem.path if isinstance(part, str))


def _reject_duplicates(points: Sequence[Point], over: Sequence[Override], mistakes: Mistakes) -> None:
    """Reject points that are the same run, in one message."""
    alike: dict[str, list[str]] = {}
    for point in points:
        alike.setdefault(point.run_id, []).append(f"{point.index} ({point.label})")
    groups = [f"points {', '.join(names[:-1])} and {names[-1]}" for names in alike.values() if len(names) > 1]
    if not groups:
        return
    others = f"; {len(groups) - 1} more of these" if len(groups) > 1 else ""
    message = f"{groups[0]} are the same run: their differences do not affect the results{others}"
    if over:
        # The overrides are the probable cause: a mistake of the file shows up without them.
        texts = " --set ".join(override.text for override in over)
        mistakes.add_override(texts, f"{message}; set the swept key itself, or a table around it, to have one of them")
    else:
        mistakes.add(Problem(("sweep",), message))
    mistakes.stop()
