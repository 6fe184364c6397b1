"""`hpcps status`: runs at a glance, from their files alone, so also from a login node."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcps.records.results import add_results_argument

if TYPE_CHECKING:
    from hpcps.records.status import RunStatus


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "status",
        help="show runs at a glance",
        description="Show how far runs are, their accuracy so far, which process is slow, and why a run failed. Reads "
        "files only, so it works from a login node.",
    )
    parser.add_argument(
        "what", nargs="?", help="experiment (file, folder, name or its beginning) or run id; default: all experiments"
    )
    add_results_argument(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Print a table per experiment, and the cause of each failure; with no runs at all, say so."""
    shown = False
    for name, paths, labels in _experiments(args.what, args.results):
        from hpcps.records.status import Progress

        runs = Progress(paths).poll()
        print(f"{name}\n{overview(runs, labels)}\n")
        shown = True
    if not shown:
        print(f"no runs in {args.results}/")
    return 0


def overview(runs: Sequence[RunStatus], labels: dict[str, str] | None = None) -> str:
    """Lay runs out as a table, with the causes of failures below; `labels` name runs that have no folder yet, by id."""
    rows = [["run", "label", "state", "epoch", "accuracy", "accepted", "slowest (compute per step)", "last record"]]
    notes = []
    for run in runs:
        label = run.label or (labels or {}).get(run.run_id, "")
        state = run.state + (", diverged" if run.diverged else "")
        slowest = f"{run.slowest} {_seconds(run.slowest_step)}" if run.slowest and run.state != "done" else ""
        epoch = f"{run.epoch:.1f}/{run.epochs}" if run.epochs else ""
        age = f"{_seconds(run.age)} ago" if run.age is not None else ""
        shares = [_percent(run.accuracy), _percent(run.acceptance_rate)]
        rows.append([run.run_id, label, state, epoch, *shares, slowest, age])
        for place, failure in enumerate(run.failures):
            notes.append(f"  {run.run_id}: {'first ' if len(run.failures) > 1 and not place else ''}{failure}")
            if not place and run.last_line:
                notes.append(f"    its last record: {json.dumps(run.last_line)}")
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(table + notes)


def _experiments(what: str | None, results: Path) -> list[tuple[str, list[Path], dict[str, str]]]:
    """Return name, run folders and labels of the experiments that are meant."""
    from hpcps.records.locate import locate

    if what is None:
        folders = sorted(path for path in results.glob("*") if (path / "runs").is_dir())
        return [(folder.name, _in_order(folder), {}) for folder in folders]
    meant = sorted(path for path in results.glob(f"*/runs/{what}*") if path.is_dir()) if what.isalnum() else []
    if meant:
        return [(path.parent.parent.name, [path], {}) for path in meant]
    place = locate(what, results, Path("experiments"))
    # A point of the file that has no folder yet is a run that has not started.
    labels: dict[str, Any] = {point["run_id"]: point["label"] for point in place.points}
    paths = [place.results / "runs" / run_id for run_id in labels]
    paths += [path for path in _in_order(place.results) if path.name not in labels]
    return [(place.results.name, paths, labels)]


def _in_order(experiment: Path) -> list[Path]:
    """Return the run folders of an experiment in the order of its sweep."""
    from hpcps.records.run_directory import RunDirectory

    folders = [path for path in (experiment / "runs").glob("*") if path.is_dir()]
    return sorted(folders, key=lambda path: (RunDirectory(path).spec.get("index", 0), path.name))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
