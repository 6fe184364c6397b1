"""`hpcps publish`: makes a small copy of an experiment's results that can be committed."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpcps.cli.arguments import add_results_argument
from hpcps.cli.plot import add_compare_argument


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "publish",
        help="make a small copy of an experiment's results, to commit it",
        description="Write results/published/NAME from the runs in results/NAME: a small table, the final accuracies, "
        "the figures, and the provenance of the runs and of the copy. Git ignores everything else in results/. `hpcps "
        "plot` and the notebooks use the copy where results/NAME has no runs.",
    )
    parser.add_argument("experiment", help="experiment file, results folder, name, or a prefix of the name")
    parser.add_argument("--add", action="store_true", help="keep the runs of the earlier copy that are not here")
    add_compare_argument(parser)
    add_results_argument(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Publish, and print what was published and what a reader should know about it."""
    from hpcps.figures.publish import publish
    from hpcps.records.locate import locate

    place = locate(args.experiment, args.results, Path("experiments"))
    made = publish(place, args.results, add=args.add, compared=args.compare)
    states = ", ".join(f"{count} {state}" for state, count in made.runs.items())
    print(f"wrote {made.folder}: a table of {made.rows} rows, {len(made.figures)} files of figures; runs: {states}")
    for message in made.damaged:
        print(f"  {message}: `hpcps run` runs it again")
    if set(made.runs) != {"done"}:
        print("note: some runs are not done; the headings of the tables and figures say so")
    return 0
