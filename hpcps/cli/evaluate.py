"""`hpcps evaluate`: evaluates models of finished runs, by class, or models of files."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcps.cli.arguments import add_point_arguments, add_results_argument
from hpcps.errors import RunError
from hpcps.launch.batch import seconds
from hpcps.launch.exit_status import ExitStatus

if TYPE_CHECKING:
    from hpcps.training.evaluation import Evaluation


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "evaluate",
        help="evaluate models of finished runs: per-class accuracy and confusion matrix",
        description="Evaluate the final model of each finished run on the test set: loss, accuracy, share of samples "
        "whose class is among the 5 most probable (top-5), and the per-class accuracy. evaluation.json in the "
        "run's folder has all of it, and the confusion matrix: which classes were taken for which.",
    )
    parser.add_argument(
        "what", help="experiment (file, folder, name or its prefix), or the first four or more characters of a run id"
    )
    parser.add_argument(
        "--model", metavar="FILE.npy", type=Path, help="evaluate this model with the settings of the one selected run"
    )
    parser.add_argument("-o", "--output", metavar="FILE.json", type=Path, help="write the evaluation of --model")
    parser.add_argument(
        "--walltime",
        metavar="TIME",
        type=seconds,
        help="time limit (seconds, or HH:MM:SS): leave out models that have an evaluation, and stop before the limit "
        f"with status {ExitStatus.SUSPENDED}",
    )
    add_point_arguments(parser)
    add_results_argument(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Evaluate the models, one after another, and print a table."""
    from hpcps.cli.status import selected_experiments
    from hpcps.execution.recorded_run import evaluate_model, read_model
    from hpcps.records.evaluation import EVALUATION, is_evaluated, write_evaluation
    from hpcps.records.run_directory import RunDirectory

    if args.output and not args.model:
        raise RunError(f"-o is the file for the evaluation of --model: those of runs are {EVALUATION} in their folders")
    experiments = selected_experiments(args.what, args.results, args.overrides, args.only)
    runs = [RunDirectory(path) for experiment in experiments for path in experiment.paths]
    known = [run for run in runs if run.spec]
    if args.model:
        if len(known) != 1:
            raise RunError(f"--model needs one run, and {len(known)} are selected: use --only, or the id of a run")
        evaluation = evaluate_model(known[0], read_model(args.model))
        if args.output:
            write_evaluation(args.output, evaluation)
        print(_line(_HEADINGS, len(str(args.model))))
        print(_line(_cells(str(args.model), evaluation), len(str(args.model))))
        _warn_not_finite(str(args.model), evaluation)
        return 0
    done = {f"{run.path.name}  {run.spec['label']}": run for run in known if run.done}
    if not done:
        raise RunError(f"no run of {args.what} is finished: `hpcps status {args.what}` shows them")
    began = time.monotonic()
    width, longest, evaluated = max(map(len, done)), 0.0, 0
    print(_line(_HEADINGS, width))
    for name, run in done.items():
        if args.walltime is not None and is_evaluated(run.path):
            evaluated += 1
            continue
        start = time.monotonic()
        if args.walltime is not None and longest and start + 2 * longest > began + args.walltime:
            left = len(done) - evaluated
            print(f"time is nearly over: {left} model{'s are' if left > 1 else ' is'} left: run the command again")
            return ExitStatus.SUSPENDED
        evaluation = evaluate_model(run, run.final_model())
        write_evaluation(run.path / EVALUATION, evaluation)
        evaluated += 1
        longest = max(longest, time.monotonic() - start)
        print(_line(_cells(name, evaluation), width), flush=True)
        _warn_not_finite(name, evaluation)
    if left := len(runs) - len(done):
        print(f"{left} run{'s are' if left > 1 else ' is'} not finished, and not evaluated")
    return 0


_HEADINGS = ("model", "samples", "loss", "top-1", "top-5", "weakest class")


def _cells(name: str, evaluation: Evaluation) -> tuple[str, ...]:
    """Return a row of the table."""
    share, weakest = min((share, index) for index, share in enumerate(evaluation.by_class) if share is not None)
    ranked = (f"{100 * each:.2f} %" for each in (evaluation.accuracy, evaluation.top5))
    return (name, f"{evaluation.samples:,}", f"{evaluation.loss:.4f}", *ranked, f"{weakest}: {100 * share:.1f} %")


def _warn_not_finite(name: str, evaluation: Evaluation) -> None:
    if not evaluation.finite:
        count = sum(row[-1] for row in evaluation.confusion)
        print(f"hpcps: warning: {name}: outputs of {count:,} samples are not finite; these samples count as wrong")


def _line(cells: Sequence[str], width: int) -> str:
    return "  ".join((cells[0].ljust(width), *(cell.rjust(9) for cell in cells[1:-1]), cells[-1]))
