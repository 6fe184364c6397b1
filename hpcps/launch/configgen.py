"""`launcher/configgen.py`: writes the configfile of an experiment and prints the `mpirun` command that starts it."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcps.errors import HpcpsError, LaunchError
from hpcps.launch.detect import detect_mpi
from hpcps.launch.dialects import DIALECTS
from hpcps.launch.hostfile import STYLES, read_hostfile
from hpcps.launch.prepare import Site, prepare, run_folder
from hpcps.records.results import add_results_argument
from hpcps.records.run_directory import RunDirectory
from hpcps.spec.load import Point, load_experiment, select
from hpcps.spec.selection import SELECTOR_HELP


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="configgen.py", description=__doc__)
    parser.add_argument("file", metavar="FILE", type=Path, help="the experiment file")
    parser.add_argument("-o", "--output", metavar="CONF", type=Path, required=True, help="the configfile to write")
    parser.add_argument("--dialect", choices=DIALECTS, help="the launcher's dialect (default: that of the mpirun here)")
    add_site_arguments(parser)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="give a key another value"
    )
    parser.add_argument("--only", metavar="SELECTOR", help=SELECTOR_HELP)
    parser.add_argument("--trace", action="store_true", help="note what every process does when: `hpcps plot timeline`")
    parser.add_argument("--all", action="store_true", help="also points that are done already")
    add_results_argument(parser)
    return parser


def add_site_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where and with what to launch; `hpcps run` has them too."""
    parser.add_argument("--hostfile", metavar="HOSTS", type=Path, help="the hosts, a line each (default: this machine)")
    parser.add_argument("--hostfile-style", choices=STYLES, default=STYLES[0], help="how to read it")
    parser.add_argument("--mpirun", metavar="PATH", type=Path, help="default: the one beside this Python, or on PATH")
    parser.add_argument("--mpirun-options", metavar="TEXT", default="", help="further options for it, as one text")


def refuse_site_arguments(args: argparse.Namespace, points: Sequence[Point]) -> None:
    """Refuse the site arguments where every point of an experiment plays in this process, and nothing would heed them.

    Raises:
        LaunchError: one is given; the message names all of them.
    """
    if any(point.run.transport.kind != "inproc" for point in points):
        return
    given = {"--hostfile": args.hostfile, "--mpirun": args.mpirun, "--mpirun-options": args.mpirun_options}
    names = [name for name, value in given.items() if value]
    if names:
        raise LaunchError(
            f"{' and '.join(names)}: nothing is launched, because transport.kind is inproc, which plays all roles in "
            "this process: leave it out, or add --set transport.kind=mpi"
        )


def site_of(args: argparse.Namespace, points: Sequence[Point], dialect: str | None = None) -> Site:
    """Read the host file and find the launcher, as the site arguments say.

    Without MPI between the processes, they are started on this machine without a launcher unless one is asked for; on
    the hosts of a host file by the launcher there is, which knows how to reach them, or, where there is none, over ssh.

    Args:
        args: what `add_site_arguments` parsed.
        points: what is to be launched.
        dialect: write for this one, whatever launcher is here.
    """
    hosts = read_hostfile(args.hostfile, args.hostfile_style) if args.hostfile else None
    try:
        options = shlex.split(args.mpirun_options)
    except ValueError as error:
        raise LaunchError(f"--mpirun-options {args.mpirun_options!r}: {error}") from error
    own = Site("plain", Path(sys.executable), hosts, args.hostfile, options, alone=True)
    mpi_needed = any(point.run.transport.kind == "mpi" for point in points)
    alone = hosts is None and args.mpirun is None
    if dialect == "plain" or (dialect is None and alone and not mpi_needed):
        return own
    if dialect is None:
        try:
            mpi = detect_mpi(args.mpirun)
        except LaunchError:
            if mpi_needed or args.mpirun is not None:
                raise
            return own
        return Site(mpi.dialect, mpi.mpirun, hosts, args.hostfile, options, alone)
    return Site(dialect, args.mpirun or _launcher_of(dialect), hosts, args.hostfile, options)


def _launcher_of(dialect: str) -> Path:
    """Return the launcher here if it speaks the dialect, else its usual name, for the machine where it does."""
    elsewhere = Path({"pals": "mpiexec", "slurm": "srun"}.get(dialect, "mpirun"))
    try:
        mpi = detect_mpi()
    except LaunchError:
        return elsewhere
    return mpi.mpirun if mpi.dialect == dialect else elsewhere


def main(argv: Sequence[str] | None = None) -> int:
    """Write the files and print the commands; return the exit status."""
    args = parser().parse_args(argv)
    try:
        _generate(args)
    except HpcpsError as error:
        print(f"configgen: {error}", file=sys.stderr)
        return 2
    return 0


def _generate(args: argparse.Namespace) -> None:
    experiment = load_experiment(args.file, args.overrides)
    for caution in experiment.cautions:
        print(f"configgen: caution: {caution}", file=sys.stderr)
    points = select(experiment.points, args.only)
    chosen = points if args.all else tuple(point for point in points if not _done(point, args.results))
    if skipped := len(points) - len(chosen):
        print(f"# {skipped} of {len(points)} points are done in {args.results}: left out (--all takes them too)")
    if not chosen:
        print("# nothing is left to run")
        return
    try:
        args.output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"the folder {args.output.parent} cannot be made: {error.strerror}") from error
    launches = prepare(chosen, args.results, args.output, site_of(args, chosen, args.dialect), trace=args.trace)
    for launch in launches:
        launch.write()
        written = [launch.job.plan_file, *launch.files]
        count, size = len(launch.job.plan.runs), len(launch.job.plan.world)
        print(f"# {count} point{'s' * (count > 1)} on {size} processes; wrote {', '.join(map(str, written))}")
        print(launch.line)


def _done(point: Point, results: Path) -> bool:
    return RunDirectory(run_folder(point, results)).done
