"""`hpcps report`: writes one HTML file with everything about an experiment."""

from __future__ import annotations

import argparse
from pathlib import Path

from hpcps.cli.arguments import add_results_argument


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "report",
        help="write one HTML file with runs, figures and tables",
        description="Write one HTML file that needs no network: the state of every point of the sweep, interactive "
        "figures, final accuracies, failures and provenance. The source is the run folders, or the published table of "
        "an experiment without run folders.",
    )
    parser.add_argument("experiment", help="experiment file, results folder, name, or a prefix of the name")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="default: results/NAME/report.html")
    add_results_argument(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Write the report, and print its name and size."""
    from hpcps.figures.report.content import read_content
    from hpcps.figures.report.html import write_report
    from hpcps.records.locate import locate

    place = locate(args.experiment, args.results, Path("experiments"))
    file = args.output or place.own / "report.html"
    print(f"from {place.source}")
    write_report(read_content(place), file)
    print(f"wrote {file} ({file.stat().st_size / 1e6:.1f} MB): open it in a browser")
    return 0
