"""`hpcps status`: shows the status of runs, read from their files, so it also works on a login node."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcps.records.results import add_results_argument

if TYPE_CHECKING:
    from hpcps.records.status import RunStatus

_ID = re.compile(r"[0-9a-f]{4,10}")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "status",
        help="show the status of runs",
        description="Show the progress of runs, the remaining time, the accuracy so far, the slowest process, and the "
        "reason for a failure. Only reads files, so it works on a login node.",
    )
    parser.add_argument(
        "what",
        nargs="?",
        help="experiment (file, folder, name or its prefix), or the first four or more characters of a run id; "
        "default: all",
    )
    add_results_argument(parser)
    parser.set_defaults(handler=handle)


@dataclass(frozen=True)
class _Shown:
    """The runs of an experiment to show.

    Attributes:
        paths: its run folders.
        points: the points of its file and of its sweeps, in the form of `spec.json`, by run id.
        file: the ids of the points of its current file.
    """

    name: str
    paths: Sequence[Path]
    points: Mapping[str, Mapping[str, Any]]
    file: frozenset[str] = frozenset()


def handle(args: argparse.Namespace) -> int:
    """Print a table per experiment and the cause of each failure, or a message if there are no runs."""
    from hpcps.records.forecast import summary
    from hpcps.records.status import Progress

    shown = False
    for experiment in _experiments(args.what, args.results):
        runs = Progress(experiment.paths).poll()
        texts = _variants(runs, experiment)
        runs = [_named(run, experiment.points.get(run.run_id)) for run in runs]
        idle = [run for run in runs if run.run_id in experiment.file and run.state == "not started"]
        note = ""
        if idle and len(idle) == len(experiment.file) < len(runs):
            # Only runs with --set have started.
            runs = [run for run in runs if run not in idle]
            note = f"  the {len(idle)} points of the file without --set have not started\n"
        name = experiment.name
        alike = {texts[run.run_id] for run in runs}
        if len(alike) == 1:
            name += "".join(alike)  # all runs have the same variant: show it once
        else:
            runs = [replace(run, label=run.label + texts[run.run_id]) for run in runs]
        print(f"{name}: {summary(runs)}\n{overview(runs)}\n{note}")
        shown = True
    if not shown:
        print(f"no runs in {args.results}/")
    return 0


def overview(runs: Sequence[RunStatus]) -> str:
    """Return a table of the runs, with the causes of failures below."""
    from hpcps.records.forecast import duration
    from hpcps.records.inventory import enumerated

    columns = ["run", "label", "state", "epoch", "attempt", "left", "accuracy", "accepted", "refused"]
    rows = [[*columns, "slowest (compute per step)", "last record"]]
    notes = []
    for run in runs:
        state = run.state + (", diverged" if run.diverged else "") + (", no update accepted" if run.unchanged else "")
        busy = run.slowest and run.slowest_step is not None and run.state != "done"
        rows.append(
            [
                run.run_id,
                run.label,
                state,
                f"{run.epoch:.1f}/{run.epochs}" if run.epochs else "",
                f"{run.attempt}." if run.attempt > 1 and run.state != "done" else "",
                duration(run.left) if run.left is not None else "",
                _percent(run.accuracy),
                _percent(run.acceptance_rate),
                f"{run.refused} blocks" if run.refused else "",
                f"{run.slowest} {duration(run.slowest_step or 0.0)}" if busy else "",
                f"{duration(run.age)} ago" if run.age is not None else "",
            ]
        )
        if run.missing:
            notes.append(f"  {run.run_id}: it is marked as done, but it lacks {enumerated(run.missing)}: run it again")
        for place, failure in enumerate(run.failures):
            notes.append(f"  {run.run_id}: {'first ' if len(run.failures) > 1 and not place else ''}{failure}")
            if not place and run.last_line:
                notes.append(f"    its last record: {json.dumps(run.last_line)}")
        if run.state != "done":
            notes += [f"  {run.run_id}: an earlier attempt: {failure}" for failure in run.earlier]
    # Omit columns that are empty for all runs.
    used = [column for column in range(len(rows[0])) if column < 4 or any(row[column] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in used}
    table = ["  ".join(row[column].ljust(widths[column]) for column in used).rstrip() for row in rows]
    return "\n".join(table + notes)


def _named(run: RunStatus, point: Mapping[str, Any] | None) -> RunStatus:
    """Complete a run that has not started from its point of the file."""
    if point is None or run.label:
        return run
    return replace(run, label=point["label"], epochs=point["run"]["train"]["epochs"])


def _variants(runs: Sequence[RunStatus], experiment: _Shown) -> dict[str, str]:
    """Return by run id the differences from the file, such as ` (train.epochs=2)`, or an empty text."""
    from hpcps.records.run_directory import RunDirectory
    from hpcps.records.variants import variants

    known = {run.run_id: RunDirectory(run.path).spec or experiment.points.get(run.run_id) for run in runs}
    specs = {run_id: spec for run_id, spec in known.items() if spec}
    texts = variants(
        list(specs.values()), [point for run_id, point in experiment.points.items() if run_id in experiment.file]
    )
    found = {run_id: f" ({text})" for run_id, text in zip(specs, texts, strict=True) if text}
    return {run.run_id: found.get(run.run_id, "") for run in runs}


def _experiments(what: str | None, results: Path) -> Iterator[_Shown]:
    """Yield the selected experiments."""
    from hpcps.errors import SpecError
    from hpcps.records.locate import locate

    experiments = Path("experiments")
    if what is None:
        for folder in sorted(path for path in results.glob("*") if (path / "runs").is_dir()):
            try:
                points = locate(str(folder), results, experiments).points
            except SpecError:  # the current file may have mistakes; show its runs all the same
                points = ()
            yield _all_of(folder, points)
        return
    meant = [path for path in results.glob("*/runs/*") if _ID.fullmatch(what) and path.name.startswith(what)]
    if meant:
        for path in sorted(meant):
            yield _Shown(path.parent.parent.name, [path], {})
        return
    place = locate(what, results, experiments)
    yield _all_of(place.results, place.points)


def _all_of(folder: Path, points: Sequence[Mapping[str, Any]]) -> _Shown:
    """Return an experiment with the points of its file and its sweeps first, then its other runs."""
    from hpcps.records.run_directory import RunDirectory
    from hpcps.records.sweep import belongs, planned

    by_id = {str(point["run_id"]): point for point in points} | planned(folder, points)
    paths = [folder / "runs" / run_id for run_id in by_id]
    others = [path for path in _in_order(folder) if path.name not in by_id and belongs(RunDirectory(path), by_id)]
    return _Shown(folder.name, paths + others, by_id, frozenset(str(point["run_id"]) for point in points))


def _in_order(experiment: Path) -> list[Path]:
    """Return the run folders of an experiment in the order of its sweep."""
    from hpcps.records.run_directory import RunDirectory

    folders = [path for path in (experiment / "runs").glob("*") if path.is_dir()]
    return sorted(folders, key=lambda path: (RunDirectory(path).spec.get("index", 0), path.name))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"
