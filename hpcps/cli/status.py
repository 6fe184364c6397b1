"""`hpcps status`: runs at a glance, from their files alone, so also from a login node."""

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
        help="show runs at a glance",
        description="Show how far runs are and when they will be done, their accuracy so far, which process is slow, "
        "and why a run failed. Reads files only, so it works from a login node.",
    )
    parser.add_argument(
        "what",
        nargs="?",
        help="experiment (file, folder, name or its beginning) or four or more characters of a run id; default: all",
    )
    add_results_argument(parser)
    parser.set_defaults(handler=handle)


@dataclass(frozen=True)
class _Shown:
    """What is shown of an experiment.

    Attributes:
        paths: its run folders.
        points: the points of its file, as `spec.json` would hold them, by run id.
    """

    name: str
    paths: Sequence[Path]
    points: Mapping[str, Mapping[str, Any]]


def handle(args: argparse.Namespace) -> int:
    """Print a table per experiment, and the cause of each failure; with no runs at all, say so."""
    from hpcps.records.forecast import summary
    from hpcps.records.status import Progress

    shown = False
    for experiment in _experiments(args.what, args.results):
        runs = Progress(experiment.paths).poll()
        texts = _variants(runs, experiment)
        runs = [_named(run, experiment.points.get(run.run_id)) for run in runs]
        idle = [run for run in runs if run.run_id in experiment.points and run.state == "not started"]
        note = ""
        if idle and len(idle) == len(experiment.points) < len(runs):
            # Only what --set made of the file has been run.
            runs = [run for run in runs if run not in idle]
            note = f"  the {len(idle)} points of the file as it is have not started\n"
        name = experiment.name
        alike = {texts[run.run_id] for run in runs}
        if len(alike) == 1:
            name += "".join(alike)  # once is enough
        else:
            runs = [replace(run, label=run.label + texts[run.run_id]) for run in runs]
        print(f"{name}: {summary(runs)}\n{overview(runs)}\n{note}")
        shown = True
    if not shown:
        print(f"no runs in {args.results}/")
    return 0


def overview(runs: Sequence[RunStatus]) -> str:
    """Lay runs out as a table, with the causes of failures below."""
    from hpcps.records.forecast import duration

    columns = ["run", "label", "state", "epoch", "attempt", "left", "accuracy", "accepted", "refused"]
    rows = [[*columns, "slowest (compute per step)", "last record"]]
    notes = []
    for run in runs:
        state = run.state + (", diverged" if run.diverged else "")
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
        if run.state != "done":
            notes += [f"  {run.run_id}: an earlier attempt: {failure}" for failure in run.earlier]
        for place, failure in enumerate(run.failures):
            notes.append(f"  {run.run_id}: {'first ' if len(run.failures) > 1 and not place else ''}{failure}")
            if not place and run.last_line:
                notes.append(f"    its last record: {json.dumps(run.last_line)}")
    # A column that is empty for all says nothing.
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
    """Return, by run id, what `--set` made different from the file: ` (train.epochs=2)`, or nothing."""
    from hpcps.records.run_directory import RunDirectory
    from hpcps.records.variants import variants

    specs = {run.run_id: spec for run in runs if (spec := RunDirectory(run.path).spec)}
    texts = variants(list(specs.values()), list(experiment.points.values()))
    found = {run_id: f" ({text})" for run_id, text in zip(specs, texts, strict=True) if text}
    return {run.run_id: found.get(run.run_id, "") for run in runs}


def _experiments(what: str | None, results: Path) -> Iterator[_Shown]:
    """Yield the experiments that are meant."""
    from hpcps.errors import SpecError
    from hpcps.records.locate import locate

    experiments = Path("experiments")
    if what is None:
        for folder in sorted(path for path in results.glob("*") if (path / "runs").is_dir()):
            try:
                points = locate(str(folder), results, experiments).points
            except SpecError:  # the file is being worked on; its runs are there all the same
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
    """Return an experiment with the points of its file first, begun or not, then its other runs."""
    by_id = {str(point["run_id"]): point for point in points}
    paths = [folder / "runs" / run_id for run_id in by_id]
    return _Shown(folder.name, paths + [path for path in _in_order(folder) if path.name not in by_id], by_id)


def _in_order(experiment: Path) -> list[Path]:
    """Return the run folders of an experiment in the order of its sweep."""
    from hpcps.records.run_directory import RunDirectory

    folders = [path for path in (experiment / "runs").glob("*") if path.is_dir()]
    return sorted(folders, key=lambda path: (RunDirectory(path).spec.get("index", 0), path.name))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"
