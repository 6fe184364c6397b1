"""`hpcps export`: writes an experiment's records for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpcps.cli.arguments import add_results_argument
from hpcps.errors import RunError

FORMATS = ("csv", "tensorboard", "latex", "markdown")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "export",
        help="write a table for a paper, or the records for other programs",
        description="Write the results of an experiment for a paper or for other programs. `latex`, `markdown`: "
        "summary.tex or summary.md, the statistics over the seeds of each rule under each attack. `csv`: the same as "
        "summary.csv, runs.csv with the settings of each run, and a file for each event, such as evaluation.csv. "
        "`tensorboard`: a folder of event files for each run.",
    )
    parser.add_argument("experiment", help="experiment file, results folder, name, or a prefix of the name")
    parser.add_argument("--to", required=True, choices=FORMATS, help="the format")
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="default: results/NAME/export/FORMAT")
    parser.add_argument(
        "--columns", metavar="C,…", help="columns of the summary, such as rule,attack,mean,low,high (default: all)"
    )
    parser.add_argument(
        "--rows",
        metavar="C=V,…",
        action="append",
        default=[],
        help="rows of the summary with these values in a column, such as rule=zeno,median; several narrow each other",
    )
    add_results_argument(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Write the files, and print their names."""
    from hpcps.records.export import table_of, write_csv, write_tensorboard
    from hpcps.records.locate import locate
    from hpcps.records.summary import chosen, summarize, write_summary

    if args.to == "tensorboard" and (args.columns or args.rows):
        raise RunError("--columns and --rows choose from the summary, which --to tensorboard does not write")
    place = locate(args.experiment, args.results, Path("experiments"))
    folder = args.output or place.own / "export" / args.to
    print(f"from {place.source}")
    frame = table_of(place)
    if args.to != "tensorboard":
        columns = args.columns.split(",") if args.columns else ()
        print(f"wrote {write_summary(chosen(summarize(frame), columns, args.rows), folder, args.to)}")
    if args.to in ("latex", "markdown"):
        return 0
    if args.to == "csv":
        for file in write_csv(frame, folder):
            print(f"wrote {file}")
        return 0
    count = len(write_tensorboard(frame, place.results, folder))
    print(f"wrote {count} run{'s' * (count != 1)} to {folder}: `tensorboard --logdir {folder}` shows them")
    return 0
