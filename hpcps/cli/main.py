"""The `hpcps` command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import hpcps
from hpcps.cli import check, collect, completion, components, data, doctor, export, plot, publish, report, run, status
from hpcps.cli.failures import exit_status_of

_COMMANDS = (check, run, status, collect, plot, report, export, publish, data, components, doctor, completion)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with every sub-command registered."""
    top = argparse.ArgumentParser(
        prog="hpcps", description="Run parameter-server training experiments on MPI clusters."
    )
    top.add_argument("--version", action="version", version=f"hpcps {hpcps.__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.register(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status (see `ExitStatus`)."""
    arguments = parser().parse_args(argv)
    return exit_status_of(lambda: arguments.handler(arguments), "hpcps")
