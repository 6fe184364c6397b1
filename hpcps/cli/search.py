"""`hpcps search`: chooses values of keys by short runs on held-out training samples."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from hpcps.cli.run import add_run_arguments, execute
from hpcps.launch.exit_status import ExitStatus
from hpcps.spec.load import load_experiment

if TYPE_CHECKING:
    from hpcps.spec.point import Point


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "search",
        help="choose values of keys, such as learning rates, by short runs",
        description="Execute the runs of the [search] table of an experiment file, whose results go to "
        "results/NAME.search, and choose the values with the best score on held-out training samples. `hpcps run` then "
        "gives these values to the points of the experiment. Runs that are done are not executed again. --only "
        "selects points of the experiment: values are chosen for those. @FILE stands for the arguments in a file.",
    )
    add_run_arguments(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Execute the runs of the search, print and draw the scores, and write the chosen values."""
    load = partial(load_experiment, args.file, args.overrides, only=args.only, results=args.results)
    experiment = load()
    groups = experiment.to_search()
    name = groups[0].name
    status: int = ExitStatus.DONE
    for warning in dict.fromkeys(warning for group in groups for warning in group.warnings):
        print(f"hpcps: warning: {warning}", flush=True)

    def execute_rung(rung: str, points: Sequence[Point], begun: Sequence[Point]) -> bool:
        nonlocal status
        print(f"{name}: {rung}", flush=True)
        status = execute(args, name, points, begun)
        return status in (ExitStatus.DONE, ExitStatus.FAILED) and not args.dry_run

    from hpcps.execution.sweep.search import conclude, execute_search

    searched = execute_search(groups, lambda: load().to_search(), args.results / name, execute_rung)
    if searched is None:
        return status
    groups, scores = searched
    from hpcps.figures.publish import write_files
    from hpcps.figures.search import draw, table

    found = list(zip(groups, scores, strict=True))
    print(table(found))
    for file in write_files([("search", draw(experiment.name, found))], args.results / name / "figures"):
        print(f"wrote {file}")
    if lost := sum(score.lost for of_group in scores for score in of_group):
        runs = "a run" if lost == 1 else f"{lost} runs"
        print(
            f"hpcps: warning: {runs} of the search diverged or failed: configurations with fewer of them win",
            flush=True,
        )
    conclude(groups, scores, args.file, args.overrides)
    for group in groups:
        print(f"wrote {group.result}")
    print(f"`hpcps run {args.file}` uses the chosen values")
    return ExitStatus.DONE
