"""`hpcps data`: get a data set, or verify the one that is there."""

from __future__ import annotations

import argparse
import sys

from hpcps.training.catalogue import DATA_SETS


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "data",
        help="download a data set, with checksums",
        description="Download the official files of a data set and verify them. Run it where there is internet, "
        "such as a login node: a run downloads nothing. What is there already is left as it is.",
    )
    parser.add_argument("name", choices=tuple(DATA_SETS), help="the data set")
    parser.add_argument("--dir", help="folder for all data sets (default: $HPCPS_DATA, else ./data)")
    parser.add_argument("--from", dest="mirror", metavar="URL", help="address of a folder to download from instead")
    parser.add_argument("--check", action="store_true", help="only verify the files that are there")
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Download or verify the data set and say where it is."""
    from hpcps.errors import DataError
    from hpcps.spec.schema import Data
    from hpcps.training.data.fetch import fetch
    from hpcps.training.data.folders import data_root
    from hpcps.training.data.sources import SOURCES
    from hpcps.training.data.verify import verify

    root = data_root(args.dir)
    data = Data(name=args.name, dir=str(root))
    try:
        lines = verify(data)
    except DataError:
        if args.check or args.name not in SOURCES:
            raise
        fetch(args.name, root, args.mirror, _report)
        lines = verify(data)
    print("\n".join(lines))
    return 0


def _report(file: str, done: int, total: int) -> None:
    """Show progress on a terminal; in a log, the end of each file."""
    of_total = f" of {total / 1e6:.1f}" if total else ""
    line = f"{file}: {done / 1e6:.1f}{of_total} MB"
    if sys.stderr.isatty():
        print(f"\r{line}", end="\n" if done == total else "", file=sys.stderr, flush=True)
    elif done == total:
        print(line, file=sys.stderr)
