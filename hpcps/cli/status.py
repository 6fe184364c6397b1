"""`hpcps status`: shows the status of runs, read from their files, so it also works on a login node."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcps.cli.arguments import add_point_arguments, add_results_argument
from hpcps.inputs import finite, printable

if TYPE_CHECKING:
    from hpcps.records.experiment_runs import ExperimentRuns
    from hpcps.records.run_directory import RunDirectory
    from hpcps.records.status import RunStatus
    from hpcps.records.step_state import StepState


_WIDEST = 60
"""Characters up to which a text makes its column wider; a longer one moves only the rest of its own row."""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "status",
        help="show the status of runs",
        description="Show the progress of runs, the remaining time, the accuracy so far, the slowest process, and the "
        "reason for a failure. With --set or --only, show only these points, as `hpcps run` selects them. Only reads "
        "files, so it works on a login node.",
    )
    parser.add_argument(
        "what",
        nargs="?",
        help="experiment (file, folder, name or its prefix), or the first four or more characters of a run id; "
        "default: all",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read all files of finished runs and compare their checksums; the status is 1 if one is missing or has "
        "changed",
    )
    add_point_arguments(parser)
    add_results_argument(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Print a table per experiment and the cause of each failure, or a message if there are no runs."""
    from hpcps.records.forecast import summary

    shown = damaged = False
    for experiment in selected_experiments(args.what, args.results, args.overrides, args.only):
        found = experiment.poll(verify=args.verify)
        shown = True
        damaged = damaged or any(run.damage for run in found.runs)
        if not found.runs:
            print(f"{found.name}: {_without_runs(experiment.folder)}")
            continue
        note = f"  {found.note}\n" if found.note else ""
        print(f"{found.name}: {summary(found.runs)}\n{overview(found.runs)}\n{note}")
        if args.verify:
            print(f"{found.name}: {verified(found.runs)}\n")
    if not shown:
        print(f"no runs in {args.results}/")
    return 1 if args.verify and damaged else 0


def verified(runs: Sequence[RunStatus]) -> str:
    """Describe how many runs have files whose checksums were compared."""
    from hpcps.records.run_directory import RunDirectory

    done = [RunDirectory(run.path) for run in runs if run.state == "done"]
    compared = [len(found) for directory in done if (found := directory.checksums)]
    if not done:
        return "nothing to verify: no run is finished"
    text = f"{sum(compared)} files of {_finished(len(compared))} are as they were written"
    if old := len(done) - len(compared):
        text += f"; {_finished(old)} of an earlier version {'has' if old == 1 else 'have'} no checksums"
    return text


def _finished(number: int) -> str:
    return f"{number} finished {'run' if number == 1 else 'runs'}"


def overview(runs: Sequence[RunStatus]) -> str:
    """Return a table of the runs, with the causes of failures below."""
    from hpcps.records.acceptance import MEANING
    from hpcps.records.forecast import duration
    from hpcps.records.participation import least_present, participation
    from hpcps.records.run_directory import RunDirectory
    from hpcps.records.waits import described

    columns = ["run", "label", "state", "epoch", "attempt", "left", "accuracy", "perplexity", "accepted", "refused"]
    rows = [[*columns, "slowest (compute per step)", "last record"]]
    notes = []
    for run in runs:
        state = run.state + (", diverged" if run.diverged else "") + (", stalled" if run.stalled else "")
        busy = run.slowest and run.slowest_step is not None and run.state != "done"
        rows.append(
            [
                run.run_id,
                run.label,
                state,
                f"{run.epoch:.1f}/{run.epochs}" if run.epochs else f"{run.epoch:.1f}" if run.epoch else "",
                f"{run.attempt}." if run.attempt > 1 and run.state != "done" else "",
                duration(run.left) if run.left else "",
                _percent(run.accuracy),
                "" if run.perplexity is None else f"{run.perplexity:.2f}",
                "unknown" if run.acceptance.accepted is None else _percent(run.acceptance.rate),
                f"{run.refused} blocks" if run.refused else "",
                f"{run.slowest} {duration(run.slowest_step or 0.0)}" if busy else "",
                f"{duration(run.age)} ago" if run.age is not None else "",
            ]
        )
        if run.damage:
            notes.append(f"  {run.run_id}: {run.damage}: `hpcps run` runs it again")
        for place, failure in enumerate(run.failures):
            notes.append(f"  {run.run_id}: {'first ' if len(run.failures) > 1 and not place else ''}{failure}")
            if not place and run.last_line:
                notes.append(f"    its last record: {json.dumps(run.last_line)}")
        if run.state in ("running", "silent"):
            notes += [f"  {run.run_id}: {_local_steps(step)}" for step in run.step_states]
        if run.quorum and (counts := participation(RunDirectory(run.path))) is not None:
            notes.append(f"  {run.run_id}: {least_present(counts)}")
        if note := _workers(RunDirectory(run.path)):
            notes.append(f"  {run.run_id}: {note}")
        if run.lost:
            last, count = run.lost[-1], len(run.lost)
            who = (
                f"{last.get('process')} was lost"
                if count == 1
                else f"lost {count} processes, the last {last.get('process')}"
            )
            text = f"{who} in round {last.get('round')}: {last.get('cause')}"
            notes.append(f"  {run.run_id}: {printable(text)}")
        if run.resized:
            notes.append(f"  {run.run_id}: {printable(_resized(run.resized[-1]))}")
        if run.excluded:
            last = run.excluded[-1]
            who = ", ".join(f"worker-{line.get('worker')}" for line in run.excluded)
            which = f", that of worker-{last.get('worker')}" if len(run.excluded) > 1 else ""
            text = f"audits have excluded {who}; the last proof{which}, of round {last.get('of')}: {last.get('proof')}"
            notes.append(f"  {run.run_id}: {printable(text)}")
        for line in run.paused:
            notes.append(f"  {run.run_id}: {printable(described(line))}")
        if run.evaluator:
            notes.append(f"  {run.run_id}: {run.evaluator}")
        if run.state != "done":
            notes += [f"  {run.run_id}: an earlier attempt: {failure}" for failure in run.earlier]
    if any(run.acceptance.rate is not None for run in runs):
        notes.append(f"  {MEANING}")
    notes += [f"  {run.run_id}: {run.acceptance.words}" for run in runs if run.stalled]
    # Omit columns that are empty for all runs.
    used = [column for column in range(len(rows[0])) if column < 4 or any(row[column] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows if len(row[column]) <= _WIDEST) for column in used}
    table = ["  ".join(row[column].ljust(widths[column]) for column in used).rstrip() for row in rows]
    return "\n".join(table + notes)


def _resized(line: Mapping[str, Any]) -> str:
    """Describe the last resize of a script."""
    from hpcps.launch.losses import size_of

    changes = ((line.get(which), verb) for which, verb in (("joined", "joined"), ("left", "left")))
    which = [f"{', '.join(map(str, names))} {verb}" for names, verb in changes if isinstance(names, list) and names]
    size = size_of(int(finite(line.get("workers"))), int(finite(line.get("servers"))))
    return f"{size} since round {line.get('round')}: {'; '.join(which)}"


def _workers(directory: RunDirectory) -> str:
    """Describe the numbers of workers of a run that was resized, or is to be; else return an empty text."""
    from hpcps.errors import InputError
    from hpcps.spec.members import members_of

    try:
        members, wanted = members_of(directory.spec), directory.resize_requested
    except InputError as error:
        return str(error)
    found = [f"{each.workers} after epoch {each.epoch}" for each in members[1:]]
    said = [f"it began with {members[0].workers} workers, and has {', '.join(found)}"] if found else []
    if wanted is not None:
        said.append(f"it goes on with {wanted} workers where its epoch ends")
    return "; ".join(said)


def _without_runs(folder: Path) -> str:
    """Describe an experiment without runs: usually a table of imported logs."""
    table = folder / "table.parquet"
    if not table.is_file():
        return f"no runs in {folder}/"
    from hpcps.records.imported_logs import imported_system
    from hpcps.records.table import read_table

    frame = read_table(table)
    if not (system := imported_system(frame)):
        return f"no runs, only the table {table}"
    from hpcps.figures.imported import drawn_by

    draw = drawn_by(frame)
    return f"logs of {system.title}, imported as {table}, and no runs" + (f"; {draw} them" if draw else "")


def _local_steps(step: StepState) -> str:
    """Describe the local steps of a role in the present round of a run with a policy."""
    speed = "unknown" if step.c is None else f"{step.c:.3g} s"
    moment = "has not begun the round" if step.te is None else f"te {step.te:.1f} s of {step.now:.1f} s"
    ready = ", sends its update" if step.ready else ""
    return f"{step.who}: k {step.k}, c {speed}, {moment}{ready}"


def selected_experiments(
    what: str | None, results: Path, overrides: Sequence[str], only: Sequence[str]
) -> Iterator[ExperimentRuns]:
    """Yield the selected experiments."""
    from hpcps.errors import RunError, SpecError
    from hpcps.records.experiment_runs import ExperimentRuns
    from hpcps.records.locate import locate, runs_by_id

    if overrides or only:
        if what is None:
            raise RunError("--set and --only choose points of one experiment: name it")
        yield ExperimentRuns.selection(locate(what, results, overrides, only), overrides, only)
        return
    if what is None:
        for folder in sorted(path for path in results.glob("*") if (path / "runs").is_dir()):
            try:
                points = locate(str(folder), results).points
            except SpecError:  # the current file may have mistakes; show its runs all the same
                points = ()
            yield ExperimentRuns.of(folder, points)
        return
    meant = runs_by_id(what, results)
    for path in meant:
        yield ExperimentRuns(path.parent.parent.name, [path], {}, path.parent.parent)
    if not meant:
        place = locate(what, results)
        yield ExperimentRuns.of(place.results, place.points)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"
