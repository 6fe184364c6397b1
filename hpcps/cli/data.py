"""`hpcps data`: downloads a data set, or verifies an existing one."""

from __future__ import annotations

import argparse
import sys

from hpcps.registry import active


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "data",
        help="download a data set and verify it",
        description="Download the official files of a data set and verify them. Run it on a machine with internet "
        "access, such as a login node: a run downloads nothing. Existing files are not changed.",
    )
    parser.add_argument("name", choices=tuple(active().of("datasets")), help="the data set")
    parser.add_argument("--dir", help="folder for all data sets (default: $HPCPS_DATA, else ./data)")
    parser.add_argument("--from", dest="mirror", metavar="URL", help="address of a folder to download from instead")
    parser.add_argument("--check", action="store_true", help="only verify the existing files")
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Download or verify the data set and print its location."""
    from hpcps.data.base import Data
    from hpcps.data.files.fetch import fetch, verify
    from hpcps.data.files.source import data_root
    from hpcps.errors import DataError

    root, kind = data_root(args.dir), active().of("datasets")[args.name]
    data: Data = kind(dir=str(root) if kind.source else args.dir)
    try:
        lines = verify(data)
    except DataError:
        if args.check or data.source is None:
            raise
        fetch(data.source, root, args.mirror, _report)
        lines = verify(data)
    print("\n".join(lines))
    return 0


def _report(file: str, done: int, total: int) -> None:
    """Print the progress on a terminal; in a log, print only the end of each file."""
    of_total = f" of {total / 1e6:.1f}" if total else ""
    line = f"{file}: {done / 1e6:.1f}{of_total} MB"
    if sys.stderr.isatty():
        print(f"\r{line}", end="\n" if done == total else "", file=sys.stderr, flush=True)
    elif done == total:
        print(line, file=sys.stderr)
