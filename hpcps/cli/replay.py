"""`hpcps replay`: executes a recorded run again in one process, and compares the records."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hpcps.cli.arguments import add_point_arguments, add_results_argument
from hpcps.errors import HpcpsError, RunError
from hpcps.inputs import printable

if TYPE_CHECKING:
    from hpcps.records.run_directory import RunDirectory


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "replay",
        help="execute recorded runs again, in the recorded order of events, and compare",
        description="Execute an asynchronous run, one with a quorum, or one that may lose workers again in one "
        "process: each role gets its messages in the order that its record states, and workers are lost and replaced "
        "as in the run. Compare every record line, except for times, and the final model. If something differs, the "
        "status is 1, and the first difference is shown with its file and line.",
    )
    parser.add_argument(
        "what", help="experiment (file, folder, name or its prefix), or the first four or more characters of a run id"
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, help="keep the files of the replay of the one selected run here"
    )
    add_point_arguments(parser)
    add_results_argument(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Replay the runs one after another; return 1 if one differs or cannot be replayed."""
    from hpcps.cli.status import selected_experiments
    from hpcps.records.run_directory import RunDirectory

    experiments = selected_experiments(args.what, args.results, args.overrides, args.only)
    runs = [RunDirectory(path) for experiment in experiments for path in experiment.paths if path.is_dir()]
    if not runs:
        raise RunError(f"no run of {args.what} has started: `hpcps status {args.what}` shows them")
    if args.output and len(runs) > 1:
        raise RunError(f"-o is the folder of one run, and {len(runs)} are selected: use --only, or the id of a run")
    if args.output and args.output.exists() and (not args.output.is_dir() or any(args.output.iterdir())):
        raise RunError(f"{args.output} exists and is not an empty folder: name another folder for -o")
    with ExitStack() as stack:
        folder = args.output or Path(stack.enter_context(TemporaryDirectory(prefix="hpcps-replay-")))
        equal = [_replay(run, folder if args.output else folder / run.path.name) for run in runs]
    return int(not all(equal))


def _replay(directory: RunDirectory, folder: Path) -> bool:
    """Replay a run; print what differs, or that nothing does; return whether nothing does."""
    from hpcps.execution.recorded_run import recorded_run
    from hpcps.execution.replay.replayed_run import replay

    label = printable(str(directory.spec.get("label", ""))) if directory.spec else "(settings unknown)"
    print(f"{directory.path.name}  {label}", flush=True)
    try:
        with recorded_run(directory, "replay") as run:
            result = replay(directory, run, folder, lambda text: print(f"  {text}", flush=True))
    except HpcpsError as error:
        print(f"  {error}")
        return False
    count = f"{result.lines:,} record lines of {result.attempts} attempt{'s' * (result.attempts != 1)}"
    if result.difference:
        print(f"  {count} are equal; the first difference:\n  {result.difference}")
        return False
    models = f", and the final model ({result.models} file{'s' if result.models > 1 else ''})" if result.models else ""
    print(f"  {count} are equal{models}")
    if result.left:
        print(f"  {result.left:,} lines depend on events that a process did not record before it was interrupted")
    if not result.models:
        print("  the run has no final model to compare")
    return True
