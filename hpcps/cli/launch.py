"""`hpcps launch`: starts the processes of a person's own training script, and servers for their tensors."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from hpcps.cli.arguments import add_results_argument, count
from hpcps.cli.configgen import add_site_arguments, installed_site
from hpcps.launch.exit_status import ExitStatus
from hpcps.launch.prepare import launch_folder
from hpcps.registry.config import MOST_ROLES


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "launch",
        help="start processes of an own training script",
        description="Start N processes of a program that uses hpcps.torch, such as `hpcps launch -n 4 python "
        "train.py`, over MPI, here or on the hosts of a host file. Options of hpcps come before the program. Every "
        "process gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as under torchrun.",
    )
    parser.add_argument("-n", metavar="N", type=count(1, MOST_ROLES), required=True, help="the number of workers")
    parser.add_argument(
        "--servers",
        metavar="S",
        type=count(0, MOST_ROLES),
        default=0,
        help="processes that combine the tensors; 0, the default: each worker combines a part",
    )
    parser.add_argument("--dry-run", action="store_true", help="write the files of the launch, but start nothing")
    add_results_argument(parser)
    add_site_arguments(parser)
    parser.add_argument("program", metavar="PROGRAM", help="the program, such as python")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="its arguments")
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Start the processes and wait for their end; return 0 if none failed."""
    from hpcps.launch.script import prepare_script  # here, because their imports take long
    from hpcps.launch.supervise import supervise

    folder = launch_folder(args.results, "scripts")
    launch = prepare_script([args.program, *args.arguments], args.n, args.servers, folder, installed_site(args))
    folder.mkdir(parents=True, exist_ok=True)
    launch.write()
    if args.dry_run:
        print(launch.summary("script"))
        return 0
    outcome = supervise(launch, lambda line: print(line, flush=True))
    if outcome.status == 0 or outcome.stopped:
        _remove(folder)
    if outcome.stopped:
        print(f"hpcps: stopped by {outcome.stopped.name}", file=sys.stderr)
    elif outcome.status:
        command = shlex.join([args.program, *args.arguments])
        print(f"hpcps: {command}: {outcome}\n  the reports are in {folder}", file=sys.stderr)
    return outcome.status if outcome.stopped or not outcome.status else ExitStatus.FAILED


def _remove(folder: Path) -> None:
    """Remove the files of a launch, and the folders above them that are empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        for parent in (folder.parent, folder.parent.parent, folder.parent.parent.parent):
            parent.rmdir()
