"""`hpcps launch`: starts the processes of a person's own training script, and servers for their tensors."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hpcps.cli.arguments import add_results_argument, count
from hpcps.cli.configgen import add_site_arguments, site_of
from hpcps.errors import LaunchError, SpecError
from hpcps.launch.batch import last_moment, may_go_on, seconds
from hpcps.launch.exit_status import ExitStatus
from hpcps.launch.prepare import launch_folder
from hpcps.protocol.messages import ROLES
from hpcps.registry.config import MOST_ROLES, NAME

if TYPE_CHECKING:
    from hpcps.launch.launchers import Launch

_SAVING = 0.75
"""Share of the margin that a program gets to end after SIGTERM; the batch system and the record need the rest."""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "launch",
        help="start processes of an own training script",
        description="Start N processes of a program that uses hpcps.torch, such as `hpcps launch -n 4 python "
        "train.py`, over MPI, here or on the hosts of a host file. Options of hpcps come before the program. Every "
        "process gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as under torchrun.",
        fromfile_prefix_chars=None,  # an argument of the program may begin with @
    )
    parser.add_argument("-n", metavar="N", type=count(1, MOST_ROLES), required=True, help="the number of workers")
    parser.add_argument(
        "--servers",
        metavar="S",
        type=count(0, MOST_ROLES),
        default=0,
        help="processes that combine the tensors; 0, the default: each worker combines a part",
    )
    parser.add_argument(
        "--colocated",
        action="store_true",
        help="with --servers: each server has a host of its own, and the workers' hosts combine tensors too, so much "
        "that no network carries more than another; --dry-run prints how much",
    )
    parser.add_argument(
        "--bind",
        choices=("none", "numa"),
        default="none",
        help="bind each process to the cores of a NUMA node of its host; its processes use the nodes in turn "
        "(default: none)",
    )
    parser.add_argument(
        "--name",
        type=_name,
        help="the name of the experiment in the results, for `hpcps status`, `plot` and `report` (default: the name of "
        "the Python file)",
    )
    parser.add_argument(
        "--transport",
        choices=("mpi", "pslite"),
        default="mpi",
        help="how the processes are connected: over MPI, or over TCP as ps-lite's nodes, without MPI (default: mpi)",
    )
    parser.add_argument(
        "--plugin",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="a plugin file, whose components every process knows by name, also a server; repeat it for several files",
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help="record the activities of every process, for trace.json and `hpcps plot timeline`, and the exchanges of "
        "every worker with the names of BytePS, in trace/worker-N/comm.json",
    )
    parser.add_argument(
        "--walltime",
        metavar="TIME",
        type=seconds,
        help="time limit (seconds, or HH:MM:SS): stop the program with SIGTERM --margin seconds before it, with status "
        f"{ExitStatus.SUSPENDED}",
    )
    parser.add_argument("--margin", metavar="SECONDS", type=count(1), default=120, help="see --walltime (default: 120)")
    parser.add_argument(
        "--successors",
        metavar="N",
        type=count(0),
        default=0,
        help="number of jobs in a chain that start the program again after the first one (default: 0)",
    )
    parser.add_argument(
        "--retry",
        metavar="N",
        type=count(0),
        default=0,
        help="start the program again if one of its processes fails or is lost, up to N times (default: 0); with "
        "hpcps.torch.TorchState it goes on where it was",
    )
    parser.add_argument(
        "--survive",
        action="store_true",
        help="replace a process that is killed, while the others go on: all repeat what came after the last commit of "
        "the function that the script gives to hpcps.torch.elastic.run; needs --transport pslite",
    )
    parser.add_argument("--dry-run", action="store_true", help="write the files of the launch, but start nothing")
    add_results_argument(parser)
    add_site_arguments(parser)
    parser.add_argument("program", metavar="PROGRAM", help="the program, such as python")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="its arguments")
    parser.set_defaults(handler=handle)


def _name(text: str) -> str:
    if not re.fullmatch(NAME, text):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be the name of an experiment")
    return text


def handle(args: argparse.Namespace) -> int:
    """Start the processes and wait for their end; return 0 if none failed."""
    from hpcps.launch.script import name_of, prepare_script, run_of  # here, because their imports take long
    from hpcps.launch.shares import describe_shares
    from hpcps.launch.supervise import present_plan, supervise
    from hpcps.records.provenance import provenance, source_state
    from hpcps.records.run_directory import RunDirectory
    from hpcps.records.trace.reader import is_stale, merge
    from hpcps.registry import active
    from hpcps.registry.plugins import read_plugins
    from hpcps.session.commits import FOLDER, Commits

    until = None if args.walltime is None else last_moment(args.walltime, args.margin, "--margin")
    command = [args.program, *args.arguments]
    experiment = args.results / (args.name or name_of(command))
    transport = active().of("transports")[args.transport]()
    folder = launch_folder(args.results, experiment.name)
    plugins = read_plugins(args.plugin)
    run = run_of(command, args.n, args.servers, transport, experiment, plugins, colocated=args.colocated)
    site = site_of(args, [transport])
    how = {"trace": args.trace, "colocated": args.colocated, "bind": args.bind == "numa", "survives": args.survive}
    if args.survive and args.trace:
        raise LaunchError(
            "a script that survives the loss of processes cannot be traced: leave --trace or --survive out"
        )

    def prepared(folder: Path) -> Launch:
        """Write the files of an attempt to a folder; each has a port of its own."""
        launch = prepare_script(command, args.n, args.servers, transport, run, folder, site, **how)
        folder.mkdir(parents=True, exist_ok=True)
        launch.write()
        return launch

    launch = prepared(folder)
    if args.dry_run:
        print(launch.summary("script"))
        if args.colocated:
            print(describe_shares(launch.job.plan.world))
        return 0
    directory = RunDirectory(Path(run.directory))
    began = time.monotonic()
    for attempt in range(1, args.retry + 2):
        directory.create(run.spec)
        directory.check_writable()
        code = source_state(Path.cwd())
        directory.write_provenance(provenance(sys.argv, code) | {"mpi": str(launch.job.mpirun)}, code.uncommitted)
        outcome = supervise(launch, lambda line: print(line, flush=True), until=until, saving=_SAVING * args.margin)
        refused = outcome.failure is not None and outcome.failure.error.startswith(f"{SpecError.__name__}:")
        if outcome.stopped or outcome.suspended or not outcome.status or attempt > args.retry or refused:
            break  # what a script asks for, and cannot have, it cannot have in the next attempt either
        print(f"hpcps: {outcome}\nhpcps: tried again, {attempt} of {args.retry} times", file=sys.stderr, flush=True)
        launch = prepared(folder.with_name(f"{folder.name}-{attempt + 1}"))
    if outcome.status == 0:
        shutil.rmtree(directory.path / FOLDER, ignore_errors=True)
        if directory.records:
            directory.finish(
                time.monotonic() - began, (str(each) for each in present_plan(launch).world if each.role in ROLES)
            )
        else:
            shutil.rmtree(directory.path)  # the program has not used hpcps
    if args.trace and is_stale(directory.path):
        print(f"wrote {merge(directory.path)}: open it in ui.perfetto.dev, or `hpcps plot timeline {run.run_id}`")
    if outcome.suspended and (reason := may_go_on(args.successors, option="--successors")):
        print(f"hpcps: {reason}", flush=True)
        return ExitStatus.FAILED
    if outcome.suspended:
        print(f"hpcps: {shlex.join(command)}: stopped before the end of the walltime", file=sys.stderr)
    elif outcome.stopped:
        print(f"hpcps: stopped by {outcome.stopped.name}", file=sys.stderr)
    elif outcome.status:
        print(f"hpcps: {shlex.join(command)}: {outcome}", file=sys.stderr)
    commits = Commits(directory.path / FOLDER, args.n)
    if outcome.status and commits.newest():
        kept = f"the last commit of the script is in {commits.folder}: TorchState(folder=...) goes on from it"
        print(f"hpcps: {kept}", file=sys.stderr)
    elif outcome.status:
        shutil.rmtree(commits.folder, ignore_errors=True)
    return outcome.status if outcome.stopped or outcome.suspended or not outcome.status else ExitStatus.FAILED
