"""The `hpcps` command."""

from __future__ import annotations

import argparse
import atexit
import gc
import io
import sys
from collections.abc import Sequence

import hpcps
from hpcps.cli import (
    check,
    completion,
    components,
    data,
    doctor,
    evaluate,
    import_logs,
    launch,
    plot,
    replay,
    resize,
    results,
    run,
    search,
    status,
)
from hpcps.cli.arguments import ArgumentFileParser
from hpcps.launch.exit_status import exit_status_of
from hpcps.launch.limits import raise_limit

_COMMANDS = (
    check.register,
    run.register,
    resize.register,
    launch.register,
    search.register,
    status.register,
    results.register_collect,
    plot.register,
    results.register_report,
    evaluate.register,
    replay.register,
    results.register_export,
    import_logs.register,
    results.register_publish,
    data.register,
    components.register,
    doctor.register,
)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with every sub-command registered."""
    top: argparse.ArgumentParser = ArgumentFileParser(
        prog="hpcps",
        description="Run parameter-server training experiments on MPI clusters. After a command, @FILE stands for the "
        "arguments in a file, written as for a shell, on any number of lines.",
        fromfile_prefix_chars=None,
    )
    top.add_argument("--version", action="version", version=f"hpcps {hpcps.__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for register in _COMMANDS:
        register(commands)
    completion.register(commands, top)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status (see `ExitStatus`)."""
    raise_limit()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A record, a label or a file name may have characters that the terminal cannot show.
        sys.stdout.reconfigure(errors="backslashreplace")
    # At its exit, Python collects garbage several times: with torch that takes a third of a second.
    atexit.register(gc.freeze)
    arguments = parser().parse_args(argv)
    return exit_status_of(lambda: arguments.handler(arguments), "hpcps")
