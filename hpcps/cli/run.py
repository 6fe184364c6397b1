"""`hpcps run`: play the runs of an experiment that are not done yet, here or on the hosts of a host file."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from hpcps.campaign.cores import crowding, divide
from hpcps.cores import Cores, own_cores
from hpcps.errors import LaunchError, RunError
from hpcps.launch.configgen import add_site_arguments, refuse_site_arguments, site_of
from hpcps.launch.prepare import launch_folder, prepare, run_folder, spec_of
from hpcps.launch.walltime import SUSPENDED, may_go_on, predecessors, seconds
from hpcps.records.results import add_results_argument
from hpcps.records.run_directory import RunDirectory
from hpcps.spec.load import Point, load_experiment, select
from hpcps.spec.selection import SELECTOR_HELP

if TYPE_CHECKING:
    from hpcps.cli.progress import ProgressDisplay
    from hpcps.launch.dialects import Launch


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "run",
        help="play the runs of an experiment",
        description="Play the runs of an experiment file that are not done yet, one after another, over mpirun (or in "
        "this process, with transport.kind = inproc). A run that fails does not keep the others from being played.",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the experiment file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="give a key another value"
    )
    parser.add_argument("--only", metavar="SELECTOR", help=SELECTOR_HELP)
    parser.add_argument(
        "--resume", action=argparse.BooleanOptionalAction, default=True, help="skip runs that are done (the default)"
    )
    parser.add_argument(
        "--retry", metavar="N", type=_count(0), default=0, help="try a run that fails again, up to N times (default: 0)"
    )
    parser.add_argument(
        "--jobs", metavar="N", type=_count(1), default=1, help="N launches at a time, each on cores of its own"
    )
    parser.add_argument(
        "--walltime",
        metavar="TIME",
        type=seconds,
        help="how long this may take (seconds, or HH:MM:SS): stop in time, at a checkpoint, with status 75",
    )
    parser.add_argument(
        "--trace", action="store_true", help="note what every process does when: trace.json, and `hpcps plot timeline`"
    )
    parser.add_argument("--dry-run", action="store_true", help="write all that a run would use, launch nothing")
    add_results_argument(parser)
    add_site_arguments(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Play what is left to play; return 0 if all is done, 1 if a run failed, 128 + the signal that stopped us."""
    experiment = load_experiment(args.file, args.overrides)
    refuse_site_arguments(args, experiment.points)
    points = select(experiment.points, args.only)
    for caution in experiment.cautions:
        print(f"hpcps: caution: {caution}", file=sys.stderr)
    # A successor goes on where its predecessor stopped, even where that one was to begin anew.
    args.resume = args.resume or predecessors() > 0
    left = [point for point in points if not (args.resume and _done(point, args.results))]
    if len(left) < len(points):
        done = len(points) - len(left)
        print(f"{experiment.name}: {done} of {len(points)} runs are done already and are skipped", flush=True)
        if args.trace and args.resume:
            print("--no-resume plays and traces them too", flush=True)
    if not left:
        return 0
    _check(left, args.results)
    if args.dry_run:
        return _play(args, experiment.name, left)
    _check_framework(left)
    with ExitStack() as claims:
        return _play(args, experiment.name, _claim(left, args, experiment.name, claims))


def _count(least: int) -> Callable[[str], int]:
    """Return what reads a number of that size or more."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expects a whole number ≥ {least}, got {text!r}")
        return int(text)

    return read


def _claim(points: Sequence[Point], args: argparse.Namespace, name: str, claims: ExitStack) -> list[Point]:
    """Return the points that no other process plays; they are ours for as long as `claims` is open."""
    left, busy = [], []
    for point in points:
        claim = _directory(point, args.results).claim()
        if claim is None:
            busy.append(f"{point.run_id} ({point.label})")
        else:
            claims.enter_context(claim)
            left.append(point)
    if busy:
        print(f"{name}: another hpcps plays {', '.join(busy)}: left to it", flush=True)
    # Another process may have finished one since we looked.
    return [point for point in left if not (args.resume and _done(point, args.results))]


def _play(args: argparse.Namespace, name: str, left: Sequence[Point]) -> int:
    """Play the points; return the exit status."""
    if not left:
        return 0
    shares = _shares(args, left)
    here = [point for point in left if point.run.transport.kind == "inproc"]
    there = [point for point in left if point.run.transport.kind != "inproc"]
    folder = launch_folder(args.results, name)
    site = site_of(args, there) if there else None
    # What cannot be placed is told before anything starts.
    launches = prepare(there, args.results, folder / "conf", site, trace=args.trace) if site else ()
    if launches:
        folder.mkdir(parents=True, exist_ok=True)
    if args.dry_run:
        return _show(here, launches, args.results)
    # Runs that are played again start from nothing: a stale DONE must not outlive a failure.
    for point in left:
        _forget(_directory(point, args.results), resume=args.resume)
    from hpcps.campaign.campaign import Campaign
    from hpcps.cli.progress import ProgressDisplay

    until = None if args.walltime is None else _last_moment(args.walltime, left)
    campaign = Campaign(
        results=args.results,
        folder=folder,
        site=site,
        retry=args.retry,
        shares=shares,
        until=until,
        trace=args.trace,
    )
    paths = [_directory(point, args.results).path for point in left]
    with ProgressDisplay(paths, sys.stdout, [point.run.train.epochs for point in left]) as display:
        if note := crowding(shares, [point.run for point in left]):
            display.say(note)
        status = campaign.play(left, display)
        reason = may_go_on(max(point.run.checkpoint.successors for point in left)) if status == SUSPENDED else None
        if reason:
            display.say(f"hpcps: {reason}")
        for path in paths if args.trace else ():
            _merge_trace(path, display)
    return 1 if reason else status


def _merge_trace(run: Path, display: ProgressDisplay) -> None:
    """Make one file of what a run's processes noted, if they did; also of a run that failed or was stopped."""
    from hpcps.trace.chrome import is_stale, merge

    if is_stale(run):
        display.say(f"wrote {merge(run)}: open it in ui.perfetto.dev, or `hpcps plot timeline {run.name}`")


def _last_moment(walltime: float, points: Sequence[Point]) -> float:
    """Return when to stop at a checkpoint, on the monotonic clock."""
    margin = max(point.run.checkpoint.margin for point in points)
    if walltime <= margin:
        raise LaunchError(
            f"--walltime of {walltime:g} s leaves no time to train: a run stops checkpoint.margin = {margin:g} s "
            "before its end; take a longer one, or --set checkpoint.margin to less"
        )
    return time.monotonic() + walltime - margin


def _shares(args: argparse.Namespace, points: Sequence[Point]) -> tuple[Cores, ...]:
    """Return the cores of each launch that runs at a time; one alone is not bound."""
    if args.jobs == 1:
        return ((),)
    if args.hostfile:
        raise LaunchError("--jobs is for this machine; on the hosts of a host file one launch runs at a time")
    return divide(own_cores(), args.jobs, [point.run for point in points])


def _directory(point: Point, results: Path) -> RunDirectory:
    return RunDirectory(run_folder(point, results))


def _done(point: Point, results: Path) -> bool:
    try:
        return _directory(point, results).done
    except OSError:  # Not readable, say: `_check` finds out what is wrong.
        return False


def _forget(directory: RunDirectory, *, resume: bool) -> None:
    try:
        (directory.path / "DONE").unlink(missing_ok=True)
        if not resume:
            directory.checkpoints.clear()
    except OSError as error:
        raise RunError(
            f"{directory.path} cannot be played again: its DONE cannot be removed, {error.strerror}"
        ) from error


def _check(points: Sequence[Point], results: Path) -> None:
    """Find out before anything is started whether results can be written and data can be read."""
    import numpy as np

    from hpcps.training.data import open_data

    RunDirectory(results.absolute() / points[0].run.name).check_writable()
    for data in {point.run.data.model_dump_json(): point.run.data for point in points}.values():
        opened = open_data(data)
        for part in (opened.train, opened.test):
            part.labels()
            part.read(np.zeros(1, np.int64))


def _check_framework(points: Sequence[Point]) -> None:
    """Find out before anything is started whether this Python, which the processes will have too, can train."""
    from hpcps.training.build import find_framework

    for backend in sorted({point.run.model.backend for point in points}):
        find_framework(backend)


def _show(here: Sequence[Point], launches: Sequence[Launch], results: Path) -> int:
    """Write the folders of the runs, and print what would be started."""
    for point in here:
        _directory(point, results).create(spec_of(point))
        print(f"# {point.run_id} ({point.label}) would be played in this process")
    for launch in launches:
        launch.write()
        for run in launch.job.plan.runs:
            RunDirectory(Path(run.directory)).create(run.spec)
        count, size = len(launch.job.plan.runs), len(launch.job.plan.world)
        print(f"# {count} run{'s' * (count > 1)} on {size} processes; wrote {launch.job.plan_file}, ", end="")
        print(", ".join(map(str, launch.files)))
        print(launch.line)
    return 0
