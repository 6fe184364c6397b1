"""`hpcps run`: play the runs of an experiment that are not done yet, here or on the hosts of a host file."""

from __future__ import annotations

import argparse
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from hpcps.errors import RunError
from hpcps.launch.configgen import add_site_arguments, site_of
from hpcps.launch.prepare import launch_folder, prepare, run_folder, spec_of
from hpcps.launch.walltime import SUSPENDED, may_go_on, seconds
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
        "this process, with transport.kind = inproc).",
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
        "--walltime",
        metavar="TIME",
        type=seconds,
        help="how long this may take (seconds, or HH:MM:SS): stop in time, at a checkpoint, with status 75",
    )
    parser.add_argument("--dry-run", action="store_true", help="write all that a run would use, launch nothing")
    add_results_argument(parser)
    add_site_arguments(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Play what is left to play; return 0, or the exit status of the launch that failed."""
    experiment = load_experiment(args.file, args.overrides)
    points = select(experiment.points, args.only)
    left = [point for point in points if not (args.resume and _done(point, args.results))]
    if len(left) < len(points):
        done = len(points) - len(left)
        print(f"{experiment.name}: {done} of {len(points)} runs are done already and are skipped", flush=True)
    if not left:
        return 0
    _check(left, args.results)
    if args.dry_run:
        return _play(args, experiment.name, left)
    with ExitStack() as claims:
        return _play(args, experiment.name, _claim(left, args, experiment.name, claims))


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
    """Play the points one after another; return 0, or the exit status of the launch that failed."""
    if not left:
        return 0
    until = (
        None if args.walltime is None else time.monotonic() + args.walltime - max(p.run.checkpoint.margin for p in left)
    )
    here = [point for point in left if point.run.transport.kind == "inproc"]
    there = [point for point in left if point.run.transport.kind == "mpi"]
    launches: Sequence[Launch] = ()
    if there:
        folder = launch_folder(args.results, name)
        launches = prepare(there, args.results, folder / "conf", site_of(args))
        folder.mkdir(parents=True, exist_ok=True)
        for launch in launches:
            launch.write()
    if args.dry_run:
        return _show(here, launches, args.results)
    # Runs that are played again start from nothing: a stale DONE must not outlive a failure.
    for point in left:
        _forget(_directory(point, args.results), resume=args.resume)
    from hpcps.cli.progress import ProgressDisplay

    with ProgressDisplay([_directory(point, args.results).path for point in left], sys.stdout) as display:
        status = _play_there(launches, display, until) or _play_here(here, args.results, display, until)
        return _chained(left, display) if status == SUSPENDED else status


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


def _show(here: Sequence[Point], launches: Sequence[Launch], results: Path) -> int:
    """Write the folders of the runs, and print what would be started."""
    for point in here:
        _directory(point, results).create(spec_of(point))
        print(f"# {point.run_id} ({point.label}) would be played in this process")
    for launch in launches:
        for run in launch.job.plan.runs:
            RunDirectory(Path(run.directory)).create(run.spec)
        count, size = len(launch.job.plan.runs), len(launch.job.plan.world)
        print(f"# {count} run{'s' * (count > 1)} on {size} processes; wrote {launch.job.plan_file}, ", end="")
        print(", ".join(map(str, launch.files)))
        print(launch.line)
    return 0


def _chained(points: Sequence[Point], display: ProgressDisplay) -> int:
    """Return the status that makes a job's script submit a successor, if there may be one."""
    reason = may_go_on(max(point.run.checkpoint.successors for point in points))
    if reason is None:
        return SUSPENDED
    display.say(f"hpcps: {reason}")
    return 1


def _play_there(launches: Sequence[Launch], display: ProgressDisplay, until: float | None) -> int:
    """Start one launch after another and stay with it."""
    from hpcps.launch.supervise import supervise

    for launch in launches:
        if until is not None and time.monotonic() > until:
            return SUSPENDED
        outcome = supervise(launch, display.say, display.update, until=until)
        if outcome.status:
            display.say(f"hpcps: {outcome}")
            return outcome.status
    return 0


def _play_here(points: Sequence[Point], results: Path, display: ProgressDisplay, until: float | None) -> int:
    """Play runs in this process, with the display going on beside."""
    from hpcps.records.provenance import provenance, source_state
    from hpcps.runtime.inprocess import run_in_process

    finished = threading.Event()

    def follow() -> None:
        while not finished.wait(0.5):
            display.update()

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    stops: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        """Hear a signal: the first one asks for a checkpoint, the second one ends it at once."""
        if stops:
            raise KeyboardInterrupt
        stops.append(number)
        display.say("hpcps: stopping at the next checkpoint ... (once more: at once)")

    def stopping() -> bool:
        return bool(stops) or (until is not None and time.monotonic() > until)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for point in points:
            if stopping():
                return 128 + stops[0] if stops else SUSPENDED
            directory = _directory(point, results)
            directory.create(spec_of(point))
            code = source_state(Path(__file__).parent)
            directory.write_provenance(
                provenance(sys.argv, code) | {"seed": point.run.seed, "host": socket.gethostname()}, code.uncommitted
            )
            if not run_in_process(point.run, point.run_id, directory, stopping):
                display.say("hpcps: stopped at a checkpoint; run it again to go on")
                return 128 + stops[0] if stops else SUSPENDED
    except RunError as error:
        display.say(f"hpcps: run {point.run_id} ({point.label}): {error}")
        return 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        finished.set()
        follower.join()
    display.update()
    return 0
