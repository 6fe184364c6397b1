"""The order of the runs of a search.

After the runs of all configurations come further runs of the best ones (`halving`), or those of proposed ones (`tpe`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hpcps.errors import RunError
from hpcps.execution.sweep.proposals import propose
from hpcps.records.search import (
    ConfigurationScore,
    ranked,
    score_runs,
    write_proposals,
    write_result,
    write_without_result,
)
from hpcps.spec.point import Point
from hpcps.spec.search import TpeSearch
from hpcps.spec.search_groups import SearchGroup

Scores = list[list[ConfigurationScore]]
"""The scores of each group: the last rung first, and in each the best configuration first."""


Execute = Callable[[str, Sequence[Point], Sequence[Point]], bool]
"""Executes the runs of a rung that are not done.

Its arguments are a description of the rung, its runs, and all runs of the search so far. It returns whether the search
goes on; runs that failed do not stop it.
"""


def execute_search(
    groups: tuple[SearchGroup, ...], reload: Callable[[], tuple[SearchGroup, ...]], folder: Path, execute: Execute
) -> tuple[tuple[SearchGroup, ...], Scores] | None:
    """Execute the runs of a search; return the groups with all configurations, and the scores; None if it was stopped.

    Args:
        groups: the groups, at least one.
        reload: reads the groups again, with what was proposed since.
        folder: the folder of the results of the search.
        execute: executes runs.

    Raises:
        RunError: the file makes other groups than before.
    """
    begun: list[Point] = []
    scores = _execute_rungs(groups, folder, execute, begun)
    while scores is not None and any(group.to_propose for group in groups):
        known = [len(group.configurations) for group in groups]
        for group, found in zip(groups, scores, strict=True):
            if group.to_propose:
                write_proposals(group, propose(group, found))
        before, groups = groups, reload()
        if [group.proposals for group in groups] != [group.proposals for group in before]:
            raise RunError(
                "the experiment file was changed during its search: search again, which executes only runs that are "
                "not done"
            )
        new = [range(count, len(group.configurations)) for count, group in zip(known, groups, strict=True)]
        if points := _points(groups, new, 0):
            begun += points
            first = groups[0]
            assert isinstance(first.search, TpeSearch)
            counted = f"proposal {len(first.proposed)} of {first.search.proposals}"
            if not execute(f"{counted}: {_described(points)}", points, begun):
                return None
        by_run = score_runs(folder, begun)
        scores = [ranked(group, range(len(group.configurations)), 0, by_run) for group in groups]
    return None if scores is None else (groups, scores)


def _execute_rungs(groups: Sequence[SearchGroup], folder: Path, execute: Execute, begun: list[Point]) -> Scores | None:
    """Execute the runs of all known configurations, and add them to `begun`."""
    left = [list(range(len(group.configurations))) for group in groups]
    scores: Scores = [[] for _ in groups]
    rungs = max(len(group.sizes) for group in groups)
    for rung in range(rungs):
        points = _points(groups, left, rung)
        begun += points
        counts = _described(points)
        if not execute(f"rung {rung + 1} of {rungs}: {counts}" if rungs > 1 else counts, points, begun):
            return None
        by_run = score_runs(folder, points)
        for place, group in enumerate(groups):
            found = ranked(group, left[place], rung, by_run)
            scores[place] = found + scores[place]
            left[place] = [score.place for score in found[: group.sizes[rung + 1]]] if rung + 1 < rungs else []
    return scores


def conclude(groups: Sequence[SearchGroup], scores: Scores, file: Path, overrides: Sequence[str]) -> None:
    """Write the result of each group.

    Args:
        groups: the groups.
        scores: those that `execute_search` returns.
        file: the experiment file.
        overrides: the values of `--set`.

    Raises:
        RunError: some groups have no configuration to choose; the results of the others are written.
    """
    without = []
    for group, found in zip(groups, scores, strict=True):
        if found[0].has_score:
            write_result(group, found, file, overrides)
        else:
            write_without_result(group)
            without.append(group)
    if without:
        where = "; ".join(group.label for group in without if group.label)
        raise RunError(
            f"no values are chosen{where and f' for {where}'}, because all runs diverged or failed: search other "
            f"values; `hpcps status {groups[0].name}` shows the runs"
        )


def _described(points: Sequence[Point]) -> str:
    epochs = "/".join(map(str, sorted({point.run.train.epochs for point in points})))
    return f"{len(points)} run{'s' * (len(points) != 1)} of {epochs} epoch{'s' * (epochs != '1')}"


def _points(groups: Sequence[SearchGroup], left: Sequence[Sequence[int]], rung: int) -> list[Point]:
    """Return the runs of a rung, each once, of the configurations that are left."""
    found = [
        point
        for group, places in zip(groups, left, strict=True)
        for place in places
        for point in group.configurations[place].rungs[rung]
    ]
    return list({point.run_id: point for point in found}.values())
