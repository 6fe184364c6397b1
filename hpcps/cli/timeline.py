"""`hpcps plot timeline`: draws the activities of every process of a traced run, over a few rounds."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from hpcps.errors import RunError

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_SECONDS = re.compile(r"(\d+(?:\.\d*)?)-(\d+(?:\.\d*)?)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a timeline."""
    group = parser.add_argument_group("of a timeline")
    which = group.add_mutually_exclusive_group()
    which.add_argument("--rounds", metavar="A-B", type=_rounds, help="rounds to show (default: three in the middle)")
    which.add_argument("--seconds", metavar="A-B", type=_seconds, help="seconds since the start of the run to show")


def plot_timeline(what: str, args: argparse.Namespace) -> int:
    """Merge the traces of a run's processes, draw a part, and print the share of time per activity."""
    from hpcps.figures.publish import write_files
    from hpcps.figures.timeline import ONE_PROCESS, between, draw_timeline, shares, whole_rounds
    from hpcps.records.run_directory import RunDirectory
    from hpcps.records.trace.chrome import is_stale, merge
    from hpcps.records.trace.lanes import read_trace
    from hpcps.spec.transport import runs_in_process
    from hpcps.spec.tree import get

    run = traced_run(what, args.results)
    trace = read_trace(run)
    if is_stale(run):
        print(f"wrote {merge(run)}: open it in ui.perfetto.dev")
    window = between(trace, *args.seconds) if args.seconds else whole_rounds(trace, *(args.rounds or ()))
    spec = RunDirectory(run).spec
    name = spec.get("run", {}).get("name", run.name)
    heading = " · ".join(dict.fromkeys((name, spec.get("label") or run.name)))
    # Simulations are in process too, but in their virtual time the roles run at the same time.
    in_process = runs_in_process(get(spec, ("run", "transport", "kind"))) and trace.lanes[0].clock != "virtual"
    figure = draw_timeline(trace, window, heading, in_process=in_process)
    folder = args.output or run.parent.parent / "figures"
    print(shares(trace, window))
    if in_process:
        print(f"note: {ONE_PROCESS}, so `wait` includes waiting for the turn")
    for file in write_files([(f"timeline-{run.name}", figure)], folder):
        print(f"wrote {file}")
    return 0


def traced_run(what: str, results: Path) -> Path:
    """Return the folder of a run, given its folder, its id or a prefix of it, or an experiment with one traced run.

    Raises:
        RunError: no run or several runs match; the message lists them.
    """
    from hpcps.records.locate import locate, runs_by_id
    from hpcps.records.run_directory import RunDirectory

    if (Path(what) / "spec.json").is_file():
        return Path(what)
    runs = runs_by_id(what, results)
    if not runs:
        place = locate(what, results)
        everything = sorted((place.results / "runs").glob("*"))
        runs = [path for path in everything if (path / "trace").is_dir()]
        if not runs:
            raise RunError(f"no run of {place.results.name} was traced: `hpcps run FILE --trace` does that")
    if len(runs) > 1:
        listing = "\n".join(f"  {path.name}  {RunDirectory(path).spec.get('label', '')}" for path in runs)
        raise RunError(f"{what!r} matches several runs: use the id of one of them\n{listing}")
    return runs[0]


def _rounds(text: str) -> tuple[int, int]:
    found = _RANGE.fullmatch(text)
    if not found or int(found[2] or found[1]) < int(found[1]):
        raise argparse.ArgumentTypeError(f"expects a round, or a first and a last one, such as 4-6; got {text!r}")
    return int(found[1]), int(found[2] or found[1])


def _seconds(text: str) -> tuple[float, float]:
    found = _SECONDS.fullmatch(text)
    if not found or float(found[2]) <= float(found[1]):
        raise argparse.ArgumentTypeError(f"expects a start and an end, such as 1.5-2; got {text!r}")
    return float(found[1]), float(found[2])
