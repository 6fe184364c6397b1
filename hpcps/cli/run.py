"""`hpcps run`: executes the unfinished runs of an experiment, here or on the hosts of a host file."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcps.cli.arguments import add_point_arguments, add_results_argument, count
from hpcps.cli.configgen import add_site_arguments, refuse_site_arguments, site_of
from hpcps.errors import LaunchError
from hpcps.execution.sweep.claims import INTERVAL, Unfinished, damage_of, directory_of
from hpcps.execution.sweep.resizing import with_members
from hpcps.execution.sweep.slots import crowding, divide
from hpcps.launch.batch import last_moment, may_go_on, predecessors, seconds
from hpcps.launch.exit_status import ExitStatus
from hpcps.launch.limits import Cores, own_cores
from hpcps.launch.prepare import Site, launch_folder, prepare
from hpcps.launch.stop import stops_of
from hpcps.records.inventory import enumerated
from hpcps.spec.load import load_experiment, warnings_of
from hpcps.spec.point import Point

if TYPE_CHECKING:
    from hpcps.launch.launchers import Launch
    from hpcps.records.display import ProgressDisplay


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "run",
        help="execute the runs of an experiment",
        description="Execute the unfinished runs of an experiment file, one after another, over mpirun (or in this "
        "process, with transport.kind = inproc). A run that fails does not stop the others. If another `hpcps run` "
        "executes a run, wait for it, and execute it here if it stays unfinished. @FILE stands for the arguments in a "
        "file, written as for a shell, on any number of lines.",
    )
    add_run_arguments(parser)
    parser.set_defaults(handler=handle)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the experiment file, and the options of its execution."""
    parser.add_argument("file", metavar="FILE", type=Path, help="the experiment file")
    add_point_arguments(parser)
    parser.add_argument(
        "--resume", action=argparse.BooleanOptionalAction, default=True, help="skip runs that are done (the default)"
    )
    parser.add_argument(
        "--retry", metavar="N", type=count(0), default=0, help="repeat a failed run, up to N times (default: 0)"
    )
    parser.add_argument(
        "--jobs", metavar="N", type=count(1), default=1, help="execute N launches at a time, each on separate cores"
    )
    parser.add_argument(
        "--walltime",
        metavar="TIME",
        type=seconds,
        help=f"time limit (seconds, or HH:MM:SS): stop before it at a checkpoint, with status {ExitStatus.SUSPENDED}",
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help="record the activities of every process, for trace.json and `hpcps plot timeline`",
    )
    parser.add_argument("--dry-run", action="store_true", help="write the files of the launch, but start nothing")
    add_results_argument(parser)
    add_site_arguments(parser)


def handle(args: argparse.Namespace) -> int:
    """Execute the unfinished runs; return 0 if all are done, 1 if a run failed, 128 + the signal that stopped us."""
    experiment = load_experiment(args.file, args.overrides, only=args.only, results=args.results)
    experiment.check_searched()
    return execute(args, experiment.name, experiment.chosen, experiment.points)


def execute(args: argparse.Namespace, name: str, points: Sequence[Point], whole: Sequence[Point]) -> int:
    """Execute the unfinished runs among some points of an experiment; return the exit status.

    Args:
        args: the options that `add_run_arguments` added.
        name: the name of the experiment.
        points: the points to execute.
        whole: all points of the experiment.
    """
    refuse_site_arguments(args, whole)
    for warning in warnings_of(points):
        print(f"hpcps: warning: {warning}", file=sys.stderr)
    # A successor resumes the run of its predecessor, even if the predecessor had --no-resume.
    args.resume = args.resume or predecessors() > 0
    unfinished = Unfinished(
        points, whole, file=args.file, overrides=args.overrides, results=args.results, resume=args.resume
    )
    left, done = unfinished.left, unfinished.done
    if args.dry_run and not left:
        print(f"{name}: all {done} runs are done already; these are the launch files of all of them", flush=True)
        left = unfinished.left = list(points)
    elif done:
        print(f"{name}: {done} of {len(points)} runs are done already and are skipped", flush=True)
        if args.trace and args.resume:
            print("--no-resume executes and traces them too", flush=True)
    for point in left if args.resume else ():
        if found := damage_of(point, args.results):
            again = "it runs again; its files move to its folder earlier/" if found.done else "it runs again"
            print(f"{name}: {point.run_id} ({point.label}): {found}: {again}", flush=True)
    if left:
        unfinished.check_ready(framework=not args.dry_run)
    if args.dry_run:
        _shares(args, left)
        return _show(left, _prepare(args, name, left)[1])
    unfinished.write_sweep()
    if not left:
        return ExitStatus.DONE
    args.until = None if args.walltime is None else _last_moment(args.walltime, left)
    return _share(args, name, unfinished)


def _share(args: argparse.Namespace, name: str, unfinished: Unfinished) -> int:
    """Execute the points that no other process executes, wait for the others, and execute those left unfinished."""
    status, waits = 0, False

    def execute_claimed(mine: Sequence[Point]) -> bool:
        nonlocal status
        ended = _execute_claimed(args, name, unfinished, mine)
        if ended in (ExitStatus.DONE, ExitStatus.FAILED):
            status = status or ended
            return True
        # A request to stop, which may come when all is done.
        status = ended if any(directory_of(point, args.results).pending for point in unfinished.left) else 0
        return False

    def wait(busy: Sequence[Point]) -> bool:
        nonlocal status, waits
        with stops_of() as stops:
            if not waits:
                others = enumerated([f"{point.run_id} ({point.label})" for point in busy])
                print(f"{name}: another hpcps runs {others}: waiting for it", flush=True)
                waits = True
            if args.until is not None and time.monotonic() > args.until:
                over = f"time is nearly over, but another hpcps still executes {len(busy)} of the runs"
                print(f"{name}: {over}", flush=True)
                status = ExitStatus.SUSPENDED
                return False
            time.sleep(INTERVAL)
        status = 128 + stops[0] if stops else status
        return not stops

    unfinished.execute(execute_claimed, wait)
    successors = max(point.run.checkpoint.successors for point in unfinished.left)
    reason = may_go_on(successors) if status == ExitStatus.SUSPENDED else None
    if reason:
        print(f"hpcps: {reason}", flush=True)
    return ExitStatus.FAILED if reason else status


def _prepare(args: argparse.Namespace, name: str, points: Sequence[Point]) -> tuple[Site | None, Sequence[Launch]]:
    """Return where the launches of points run, and the launches; report roles that cannot be placed."""
    there = [point for point in points if not point.run.transport.in_process]
    if args.resume:  # else the runs begin with the numbers of workers of the file
        there = [with_members(point, args.results) for point in there]
    if not there:
        return None, ()
    folder, site = launch_folder(args.results, name), site_of(args, [point.run.transport for point in there])
    launches = prepare(there, args.results, folder / "conf", site, trace=args.trace)
    folder.mkdir(parents=True, exist_ok=True)
    return site, launches


def _execute_claimed(args: argparse.Namespace, name: str, unfinished: Unfinished, points: Sequence[Point]) -> int:
    """Execute points that this process has claimed; return the exit status."""
    shares = _shares(args, points)
    site, _ = _prepare(args, name, points)
    for point in points:
        unfinished.request(point)
    from hpcps.execution.sweep.sweep_run import SweepRun
    from hpcps.records.display import ProgressDisplay
    from hpcps.records.status import SweepProgress

    paths = [directory_of(point, args.results).path for point in points]
    runs = [(point.label, point.run.model_dump(mode="json")) for point in points]
    with ProgressDisplay(SweepProgress(paths, requested=True), sys.stdout, runs, alone=site is None) as display:
        if note := crowding(shares, [point.run for point in points]):
            display.say(note)
        sweep = SweepRun(
            points,
            display,
            results=args.results,
            folder=launch_folder(args.results, name),
            site=site,
            retry=args.retry,
            shares=shares,
            until=args.until,
            trace=args.trace,
        )
        status = sweep.execute()
        for path in paths if args.trace else ():
            _merge_trace(path, display)
    return status


def _merge_trace(run: Path, display: ProgressDisplay) -> None:
    """Merge the traces of a run's processes into one file, also for a run that failed or was stopped."""
    from hpcps.records.trace.reader import is_stale, merge

    if is_stale(run):
        display.say(f"wrote {merge(run)}: open it in ui.perfetto.dev, or `hpcps plot timeline {run.name}`")


def _last_moment(walltime: float, points: Sequence[Point]) -> float:
    """Return the time on the monotonic clock at which to stop at a checkpoint."""
    margin = max(point.run.checkpoint.margin for point in points)
    return last_moment(walltime, margin, "checkpoint.margin", " (with --set)")


def _shares(args: argparse.Namespace, points: Sequence[Point]) -> tuple[Cores, ...]:
    """Return the cores of each simultaneous launch; a single launch is not bound."""
    if args.jobs == 1:
        return ((),)
    if args.hostfile:
        raise LaunchError("--jobs is for this machine; on the hosts of a host file one launch runs at a time")
    return divide(own_cores(), args.jobs, [point.run for point in points])


def _show(points: Sequence[Point], launches: Sequence[Launch]) -> int:
    """Write the files of the launches, and print the commands; a run gets its folder when it starts."""
    for point in points:
        if point.run.transport.in_process:
            print(f"# {point.run_id} ({point.label}) would run in this process")
    for launch in launches:
        launch.write()
        print(launch.summary("run"))
    return 0
