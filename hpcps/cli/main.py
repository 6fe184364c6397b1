"""The `hpcps` command."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

import hpcps
from hpcps.cli import check, collect, components, data, plot, run, status
from hpcps.errors import HpcpsError

_COMMANDS = (check, run, status, collect, plot, data, components)


class _Parser(argparse.ArgumentParser):
    """A parser that reads the lines of an @FILE as a shell reads its arguments."""

    def convert_arg_line_to_args(self, arg_line: str) -> list[str]:
        try:
            return shlex.split(arg_line, comments=True)
        except ValueError as error:
            self.error(f"{str(error).lower()} in the line of an @FILE: {arg_line[:200]}")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with every sub-command registered."""
    top = _Parser(prog="hpcps", description="Run parameter-server training experiments on MPI clusters.")
    top.add_argument("--version", action="version", version=f"hpcps {hpcps.__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.register(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status: 0, 1 if a run failed, 2 for a mistake in the request."""
    arguments = parser().parse_args(argv)
    try:
        status_code: int = arguments.handler(arguments)
        return status_code
    except HpcpsError as error:
        print(f"hpcps: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("hpcps: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (`head`, say) has had enough; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        what = f"{str(error.filename)[:200]}: " if error.filename is not None else ""
        print(f"hpcps: {what}{error.strerror or error}", file=sys.stderr)
        return 2
