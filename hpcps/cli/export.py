"""`hpcps export`: writes an experiment's records for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpcps.records.results import add_results_argument

FORMATS = ("csv", "tensorboard")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "export",
        help="write the records as CSV or for TensorBoard",
        description="Write the records of an experiment for other programs. `csv`: runs.csv with the settings of each "
        "run, and a file for each event, such as evaluation.csv. `tensorboard`: a folder of event files for each run.",
    )
    parser.add_argument("experiment", help="experiment file, results folder, name, or a prefix of the name")
    parser.add_argument("--to", required=True, choices=FORMATS, help="the format")
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="default: results/NAME/export/FORMAT")
    add_results_argument(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Write the files, and print their names."""
    from hpcps.records.export import table_of, write_csv, write_tensorboard
    from hpcps.records.locate import locate

    place = locate(args.experiment, args.results, Path("experiments"))
    folder = args.output or place.own / "export" / args.to
    print(f"from {place.source}")
    frame = table_of(place)
    if args.to == "csv":
        for file in write_csv(frame, folder):
            print(f"wrote {file}")
        return 0
    count = len(write_tensorboard(frame, place.results, folder))
    print(f"wrote {count} run{'s' * (count != 1)} to {folder}: `tensorboard --logdir {folder}` shows them")
    return 0
