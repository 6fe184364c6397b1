"""`hpcps plot`: draws the figures of an experiment."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpcps.cli.timeline import add_arguments, plot_timeline
from hpcps.errors import RunError
from hpcps.records.results import add_results_argument


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "plot",
        help="draw accuracy, acceptance rates, staleness",
        description="Draw test accuracy by epoch, by wall time and by bytes sent; the acceptance rate of rules with a "
        "reference; the staleness and number of applied updates of asynchronous training. A panel is an attack, a line "
        "is a rule (or another swept key). The source is results/NAME/table.parquet, which is collected first if it is "
        "missing. `hpcps plot timeline WHAT` draws the activities of every process of a traced run.",
        usage="%(prog)s [-h] [-o OUTPUT] [--results DIR] WHAT\n       "
        "%(prog)s [-h] [-o OUTPUT] [--results DIR] [--rounds A-B | --seconds A-B] timeline WHAT",
    )
    parser.add_argument(
        "what",
        nargs="+",
        metavar="WHAT",
        help="a table.parquet, experiment file, results folder, name, or the beginning of the name; after "
        "`timeline` also a run's folder, or four or more characters of its id",
    )
    parser.add_argument("-o", "--output", type=Path, help="folder for the figures (default: figures/ beside the table)")
    add_results_argument(parser)
    add_arguments(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Draw the figures, and print the table of final accuracies and the names of the files."""
    if args.what[0] == "timeline" and len(args.what) == 2:
        return plot_timeline(args.what[1], args)
    if len(args.what) > 1:
        raise RunError(f"`hpcps plot` takes one experiment, or `timeline` and one run; got {' '.join(args.what)}")
    if args.rounds or args.seconds:
        raise RunError("--rounds and --seconds are for `hpcps plot timeline WHAT`")
    from hpcps.figures.figure_data import figure_data_of
    from hpcps.figures.final import markdown
    from hpcps.figures.publish import baseline, write_figures, write_tables
    from hpcps.records.collect import collect
    from hpcps.records.locate import locate
    from hpcps.records.table import read_table

    (what,) = args.what
    table, baseline_of_file = Path(what), None
    if table.suffix != ".parquet":
        place = locate(what, args.results, Path("experiments"))
        table = place.results / "table.parquet"
        baseline_of_file = place.points[0]["run"]["baseline"] if place.points else None
        if not table.exists():
            write_tables(collect(place.results, place.points).table, place.results)
        elif any(path.stat().st_mtime > table.stat().st_mtime for path in place.results.glob("runs/*/records/*.jsonl")):
            print(f"note: {table} is older than its runs; `hpcps collect {place.results.name}` updates it\n")
    frame = read_table(table)
    # A table of an older version does not name it.
    frame.attrs.setdefault("baseline", baseline_of_file)
    shown = figure_data_of(frame, baseline(frame, table.parent))
    files = write_figures(shown, args.output or table.parent / "figures")
    print(markdown(shown))
    for file in files:
        print(f"wrote {file}")
    return 0
