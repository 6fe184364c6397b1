"""`hpcps resize`: has a run go on with another number of workers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hpcps.cli.arguments import add_point_arguments, add_results_argument, count
from hpcps.errors import RunError
from hpcps.launch.exit_status import ExitStatus

if TYPE_CHECKING:
    from hpcps.records.run_directory import RunDirectory


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "resize",
        help="have a run go on with another number of workers",
        description="Have a run go on with another number of workers where its present epoch ends: workers join or "
        "leave, and the samples are divided among those that are there. The `hpcps run` that executes it stops it "
        "there and starts it again; if the run is not executed now, the next `hpcps run` does so.",
    )
    parser.add_argument(
        "what", metavar="RUN", help="the first four or more characters of a run id, or an experiment that has one run"
    )
    parser.add_argument("--workers", metavar="N", type=count(1), required=True, help="the new number of workers")
    add_point_arguments(parser)
    add_results_argument(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Check the number, and write the request into the run's folder; return 0."""
    from hpcps.execution.recorded_run import recorded_run
    from hpcps.execution.sweep.resizing import checked, end_of_epoch
    from hpcps.spec.members import WorkerCount, members_of

    directory = _the_run(args)
    if (directory.path / "DONE").exists() and not directory.restarts:
        raise RunError(f"{_name(directory)} is done: nothing is left for other workers")
    with recorded_run(directory, "resize") as recorded:
        run = recorded.identified(directory.path.name).resized(members_of(directory.spec))
        if args.workers == run.topology.workers:
            withdrawn = directory.resize_requested is not None
            directory.request_resize(None)
            print(f"{_name(directory)} has {args.workers} workers: {'it keeps them' if withdrawn else 'nothing to do'}")
            return ExitStatus.DONE
        checked(run, (*run.members, WorkerCount(run.members[-1].position, run.members[-1].epoch, args.workers)))
        directory.request_resize(args.workers)
        present = f"{_name(directory)} has {run.topology.workers} workers"
        if (lock := directory.claim()) is None:
            print(f"{present}, and goes on with {args.workers} where its epoch ends")
        else:
            here = end_of_epoch(directory, run)
            lock.close()
            where = "where its epoch ends" if here is None else f"from its checkpoint after epoch {here.epoch} on"
            print(f"{present}, and is not executed now: `hpcps run` goes on with {args.workers} {where}")
    return ExitStatus.DONE


def _the_run(args: argparse.Namespace) -> RunDirectory:
    """Return the folder of the one run that is meant.

    Raises:
        RunError: there is none, or there are several.
    """
    from hpcps.cli.status import selected_experiments
    from hpcps.records.run_directory import RunDirectory

    experiments = selected_experiments(args.what, args.results, args.overrides, args.only)
    runs = [path for experiment in experiments for path in experiment.paths if path.is_dir()]
    if not runs:
        raise RunError(f"no run of {args.what} has started: set topology.workers in its file instead")
    if len(runs) > 1:
        raise RunError(f"{args.what} has {len(runs)} runs, and one can be resized at a time: give the id of a run")
    return RunDirectory(runs[0])


def _name(directory: RunDirectory) -> str:
    label = directory.spec.get("label")
    return f"run {directory.path.name} ({label})" if label else f"run {directory.path.name}"
