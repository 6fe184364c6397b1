"""`launcher/configgen.py`: write the configfile of an experiment and print the `mpirun` command that starts it."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from hpcps.cli.arguments import ArgumentFileParser, add_point_arguments, add_results_argument
from hpcps.errors import LaunchError
from hpcps.execution.sweep.claims import is_done
from hpcps.execution.sweep.resizing import with_members
from hpcps.launch.batch import job_id, with_gpus
from hpcps.launch.detect import TIMEOUT, detect_mpi, find_launcher
from hpcps.launch.exit_status import ExitStatus, exit_status_of
from hpcps.launch.hostfile import STYLES, Host, read_hostfile
from hpcps.launch.launchers import Launcher, Plain
from hpcps.launch.prepare import Site, prepare
from hpcps.records.sweep import write_sweep
from hpcps.registry import active
from hpcps.spec.load import load_experiment
from hpcps.spec.point import Point
from hpcps.spec.transport import Transport


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = ArgumentFileParser(prog="configgen.py", description=__doc__)
    parser.add_argument("file", metavar="FILE", type=Path, help="the experiment file")
    parser.add_argument("-o", "--output", metavar="CONF", type=Path, required=True, help="the configfile to write")
    names = f"{', '.join(active().of('launchers'))}, or that of a plugin"
    parser.add_argument("--dialect", metavar="NAME", help=f"the launcher: {names} (default: that of the mpirun here)")
    parser.add_argument("--image", metavar="IMAGE", help="with --dialect kubernetes: the container image of the pods")
    add_site_arguments(parser)
    add_point_arguments(parser)
    parser.add_argument("--trace", action="store_true", help="trace every process, for `hpcps plot timeline`")
    parser.add_argument("--all", action="store_true", help="include points that are done already")
    add_results_argument(parser)
    return parser


def add_site_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the hosts and the launcher; `hpcps run` has them too."""
    parser.add_argument("--hostfile", metavar="HOSTS", type=Path, help="hosts, one per line (default: this machine)")
    parser.add_argument("--hostfile-style", choices=STYLES, default=STYLES[0], help="format of the host file")
    parser.add_argument("--mpirun", metavar="PATH", type=Path, help="default: the one beside this Python, or on PATH")
    parser.add_argument("--mpirun-options", metavar="TEXT", default="", help="more options for mpirun, as one text")


def refuse_site_arguments(args: argparse.Namespace, points: Sequence[Point]) -> None:
    """Refuse the site arguments if every point of an experiment runs in this process, where they have no effect.

    In a batch job, whose script gives them to every command, they are not refused: a message says that they are not
    used, and `args` loses them.

    Raises:
        LaunchError: an argument is given; the message names all of them.
    """
    if not all(point.run.transport.in_process for point in points):
        return
    given = {"--hostfile": args.hostfile, "--mpirun": args.mpirun, "--mpirun-options": args.mpirun_options}
    names = [name for name, value in given.items() if value]
    if names and job_id():
        print(f"{' and '.join(names)} not used: transport.kind is inproc, one process runs all roles here", flush=True)
        args.hostfile, args.mpirun, args.mpirun_options = None, None, ""
    elif names:
        raise LaunchError(
            f"{' and '.join(names)}: nothing is launched, because transport.kind is inproc, which runs all roles in "
            "this process: leave it out, or add --set transport.kind=mpi"
        )


def site_of(args: argparse.Namespace, transports: Iterable[Transport], dialect: Launcher | None = None) -> Site:
    """Read the host file and find the launcher that the site arguments ask for.

    Processes that do not use MPI start on this machine without a launcher, unless the arguments name one. On the hosts
    of a host file, the installed launcher starts them; if none is installed, or if some may be lost, ssh starts them.

    Args:
        args: the arguments that `add_site_arguments` added.
        transports: the transports of what is launched.
        dialect: the launcher to write for; None for the installed one.
    """
    hosts, options = _hosts_and_options(args)
    if dialect is not None:
        return Site(dialect, args.mpirun or _executable(dialect), hosts, args.hostfile, options)
    own = Site(Plain(), Path(sys.executable), hosts, args.hostfile, options)
    mpi_needed = any("mpi" in transport.offers for transport in transports)
    here = hosts is None and args.mpirun is None
    if here and not mpi_needed:
        return own
    try:
        mpi = detect_mpi(args.mpirun)
    except LaunchError:
        if mpi_needed or args.mpirun is not None:
            raise
        return own
    without_mpi, replacing = (own.launcher if ours else None for ours in (here, args.mpirun is None))
    return Site(mpi.launcher, mpi.mpirun, hosts, args.hostfile, options, without_mpi, replacing)


def _hosts_and_options(args: argparse.Namespace) -> tuple[tuple[Host, ...] | None, list[str]]:
    hosts = with_gpus(read_hostfile(args.hostfile, args.hostfile_style), TIMEOUT) if args.hostfile else None
    try:
        return hosts, shlex.split(args.mpirun_options)
    except ValueError as error:
        raise LaunchError(f"--mpirun-options {args.mpirun_options!r}: {error}") from error


def _executable(launcher: Launcher) -> Path:
    """Return the path of this launcher if it is the one installed here, else its usual name, for another machine."""
    with suppress(LaunchError):
        mpi = detect_mpi()
        if mpi.launcher == launcher:
            return mpi.mpirun
    return Path(launcher.executable)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files and print the commands; return the exit status."""
    args = parser().parse_args(argv)
    return exit_status_of(lambda: _generate(args), "configgen")


def _generate(args: argparse.Namespace) -> ExitStatus:
    experiment = load_experiment(args.file, args.overrides, only=args.only, results=args.results)
    experiment.check_searched()
    points = experiment.chosen
    for warning in experiment.warnings:
        print(f"configgen: warning: {warning}", file=sys.stderr)
    chosen = points if args.all else tuple(point for point in points if not is_done(point, args.results))
    if not chosen:
        done = f"all {len(points)} points are done" if len(points) > 1 else "the point is done"
        what = f"{done} in {args.results}, so {args.output} is not written; --all includes points that are done"
        print(f"configgen: {what}", file=sys.stderr)
        return ExitStatus.NOTHING_LEFT
    if skipped := len(points) - len(chosen):
        print(f"# {skipped} of {len(points)} points are done in {args.results}: left out (--all includes them)")
    try:
        args.output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"the folder {args.output.parent} cannot be made: {error.strerror}") from error
    if args.image is not None and args.dialect is None:
        raise LaunchError("--image: it is for --dialect kubernetes")
    dialect = None if args.dialect is None else find_launcher(args.dialect, args.image)
    there = args.results if dialect is None or dialect.results_there is None else dialect.results_there
    launches = prepare(
        [with_members(point, args.results) for point in chosen],
        there,
        args.output,
        site_of(args, [point.run.transport for point in chosen], dialect),
        trace=args.trace,
        elsewhere="name another FILE for -o",
    )
    whole = [point.spec for point in experiment.points]
    write_sweep(args.results / experiment.name, args.file, args.overrides, whole)
    for launch in launches:
        launch.write()
        print(launch.summary("point"))
    return ExitStatus.DONE
