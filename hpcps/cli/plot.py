"""`hpcps plot`: draws the figures of an experiment, or the timeline of a traced run."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcps.cli.arguments import add_compare_argument, add_results_argument
from hpcps.errors import RunError

if TYPE_CHECKING:
    import pandas as pd

    from hpcps.records.run_directory import RunDirectory

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_SECONDS = re.compile(r"(\d+(?:\.\d*)?)-(\d+(?:\.\d*)?)")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "plot",
        help="draw accuracy, acceptance rates, staleness",
        description="Draw test accuracy by epoch, by wall time and by bytes sent; the acceptance rate of rules with a "
        "reference; the staleness and number of applied updates of asynchronous training. A panel is an attack, a line "
        "is a rule (or another swept key). The source is results/NAME/table.parquet, which is collected first if it is "
        "missing, or the published copy of an experiment without runs in results/NAME. `hpcps plot timeline WHAT` "
        "draws the activities of every process of a traced run. `hpcps plot grid WHAT` compares rules: heat maps of "
        "the accuracy under the worst attack and of the best rule, a ranking, and the blocks that entered the model. "
        "`hpcps plot esync WHAT...` compares methods of training, of one or several experiments: accuracy by time, "
        "samples per second, traffic, and the share of the time that each worker computes. `hpcps plot speedup WHAT` "
        "draws the speed-up by the number of workers, strong and weak scaling, beside the ideal. `hpcps plot "
        "participation WHAT` draws in which share of the rounds of a run with a quorum each worker was, and how late. "
        "`hpcps plot goodput WHAT` draws the updates of a run that has lost processes, beside those without a loss. "
        "`hpcps plot bytes WHAT` draws the accuracy, or the perplexity of text, by bytes, the bytes until a target "
        "(`--set target=95`), and the modelled time until it on links of 0.1 to 100 Gbit/s.",
        usage="%(prog)s [-h] [-o OUTPUT] [--results DIR] [--style FILE] [--set KEY=VALUE] WHAT "
        "[--compare FILE ...]\n       "
        "%(prog)s [-h] [-o OUTPUT] [--results DIR] [--style FILE] [--set KEY=VALUE] bytes|grid|speedup WHAT\n       "
        "%(prog)s [-h] [-o OUTPUT] [--results DIR] [--style FILE] [--set KEY=VALUE] esync WHAT [WHAT ...]\n       "
        "%(prog)s [-h] [-o OUTPUT] [--results DIR] participation|goodput WHAT\n       "
        "%(prog)s [-h] [-o OUTPUT] [--results DIR] [--rounds A-B | --seconds A-B] timeline WHAT",
    )
    parser.add_argument(
        "what",
        nargs="+",
        metavar="WHAT",
        help="a table.parquet, experiment file, results folder, name, or the beginning of the name; after "
        "`timeline`, `participation` and `goodput` also a run's folder, or four or more characters of its id",
    )
    parser.add_argument("-o", "--output", type=Path, help="folder for the figures (default: results/NAME/figures)")
    parser.add_argument(
        "--style",
        type=Path,
        metavar="FILE",
        help="a TOML file with options of the figures (the documentation of figures lists them)",
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="set an option of --style, such as heading=false or width=3.4",
    )
    add_compare_argument(parser)
    add_results_argument(parser)
    _add_timeline_arguments(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Draw the figures, and print their table and the names of the files."""
    kind = args.what[0] if len(args.what) > 1 else ""
    if kind and args.compare:
        raise RunError("--compare is for the figures of one experiment")
    of_run = {"timeline": _plot_timeline, "participation": _plot_participation, "goodput": _plot_goodput}.get(kind)
    if of_run and len(args.what) == 2:
        if args.style or args.overrides:
            raise RunError(f"--style and --set are for the figures of an experiment, not for `hpcps plot {kind}`")
        return of_run(args.what[1], args)
    if kind and kind != "esync" and (kind not in ("bytes", "grid", "speedup") or len(args.what) > 2):
        takes = "one experiment, `bytes`, `grid` or `speedup` and one experiment, `esync` and experiments, or "
        takes += "`timeline`, `participation` or `goodput` and one run"
        raise RunError(f"`hpcps plot` takes {takes}; got {' '.join(args.what)}")
    if args.rounds or args.seconds:
        raise RunError("--rounds and --seconds are for `hpcps plot timeline WHAT`")
    from hpcps.figures.compared import compare, difference_table, read_curves
    from hpcps.figures.final import markdown
    from hpcps.figures.from_table import figure_data_of
    from hpcps.figures.grid_figures import draw_grid
    from hpcps.figures.grid_study import studies_of, study_tables
    from hpcps.figures.imported import require_kind
    from hpcps.figures.method_comparison import comparisons_of
    from hpcps.figures.method_figures import comparison_table, draw_comparisons
    from hpcps.figures.options import read_options
    from hpcps.figures.publish import baseline, write_figures, write_files
    from hpcps.figures.speedup import draw_speedups, speedup_table, speedups_of
    from hpcps.figures.traffic import draw_traffic, traffic_of, traffic_table

    options = read_options(args.style, args.overrides)
    tables = [_read(what, args.results) for what in args.what[bool(kind) :]]
    frame, table, folder = tables[0]
    figures = args.output or folder / "figures"
    kinds: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any], Callable[[Any], str]]] = {
        "esync": (
            lambda: comparisons_of([(frame, baseline(frame, table.parent)) for frame, table, _ in tables]),
            draw_comparisons,
            comparison_table,
        ),
        "speedup": (lambda: speedups_of(frame), draw_speedups, speedup_table),
        "bytes": (lambda: traffic_of(frame, options), draw_traffic, traffic_table),
        "grid": (lambda: studies_of(frame), draw_grid, study_tables),
    }
    if kind:
        for each, _, _ in tables:
            require_kind(each, kind)
        measure, draw, in_words = kinds[kind]
        found = measure()
        files = write_files(draw(found, options), figures)
        print("\n".join(map(in_words, found)))
    else:
        given = [curve for file in args.compare for curve in read_curves(file)]
        shown = compare(figure_data_of(frame, baseline(frame, table.parent)), given)
        files = write_figures(shown, figures, options)
        print(markdown(shown))
        if given:
            print(difference_table(shown))
    for file in files:
        print(f"wrote {file}")
    return 0


def _read(what: str, results: Path) -> tuple[pd.DataFrame, Path, Path]:
    """Return the table of an experiment, which is collected first if it is missing; its file; and the folder for
    figures.
    """
    from hpcps.figures.publish import write_tables
    from hpcps.records.collect import collect
    from hpcps.records.locate import locate
    from hpcps.records.table import read_table

    table, named = Path(what), None
    folder = table.parent
    if table.suffix != ".parquet":
        place = locate(what, results)
        table, folder, named = place.results / "table.parquet", place.own, place.baseline
        print(f"from {place.source}\n")
        if not table.exists():
            write_tables(collect(place.results, place.points).table, place.results)
        elif any(path.stat().st_mtime > table.stat().st_mtime for path in place.results.glob("runs/*/records/*.jsonl")):
            print(f"note: {table} is older than its runs; `hpcps collect {place.results.name}` updates it\n")
    frame = read_table(table)
    frame.attrs.setdefault("baseline", named)
    return frame, table, folder


def _add_timeline_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a timeline."""
    group = parser.add_argument_group("of a timeline")
    which = group.add_mutually_exclusive_group()
    which.add_argument("--rounds", metavar="A-B", type=_rounds, help="rounds to show (default: three in the middle)")
    which.add_argument("--seconds", metavar="A-B", type=_seconds, help="seconds since the start of the run to show")


def _plot_timeline(what: str, args: argparse.Namespace) -> int:
    """Merge the traces of a run's processes, draw a part, and print the share of time per activity."""
    from hpcps.figures.publish import write_files
    from hpcps.figures.timeline import ONE_PROCESS, between, draw_timeline, shares, whole_rounds
    from hpcps.records.run_directory import RunDirectory
    from hpcps.records.trace.reader import is_stale, merge, read_trace
    from hpcps.spec.transport import runs_in_process
    from hpcps.spec.tree import get

    untraced = "no run of {} was traced: `hpcps run FILE --trace` does that"
    run = _one_run(what, args.results, lambda path: (path / "trace").is_dir(), untraced)
    trace = read_trace(run)
    if is_stale(run):
        print(f"wrote {merge(run)}: open it in ui.perfetto.dev")
    window = between(trace, *args.seconds) if args.seconds else whole_rounds(trace, *(args.rounds or ()))
    spec = RunDirectory(run).spec
    name = spec.get("run", {}).get("name", run.name)
    heading = " · ".join(dict.fromkeys((name, spec.get("label") or run.name)))
    # Simulations are in process too, but in their virtual time the roles run at the same time.
    in_process = runs_in_process(get(spec, ("run", "transport", "kind"))) and trace.processes[0].clock != "virtual"
    figure = draw_timeline(trace, window, heading, in_process=in_process)
    folder = args.output or run.parent.parent / "figures"
    print(shares(trace, window))
    if in_process:
        print(f"note: {ONE_PROCESS}, so `wait` includes waiting for the turn")
    for file in write_files([(f"timeline-{run.name}", figure)], folder):
        print(f"wrote {file}")
    return 0


def _plot_participation(what: str, args: argparse.Namespace) -> int:
    """Draw the participation of the workers of a run, and print its counts."""
    from hpcps.figures.participation import draw_participation, participation_table, settings
    from hpcps.figures.publish import write_files
    from hpcps.records.participation import participation
    from hpcps.records.run_directory import RunDirectory

    none = "no run of {} has closed a round with a quorum: `train.quorum` sets one"
    run = _one_run(what, args.results, lambda path: participation(RunDirectory(path)) is not None, none)
    directory = RunDirectory(run)
    if (counts := participation(directory)) is None:
        raise RunError(none.format(run))
    print(participation_table(counts))
    figure = draw_participation(counts, _heading(directory, settings(directory.spec.get("run", {}))))
    for file in write_files([(f"participation-{run.name}", figure)], args.output or run.parent.parent / "figures"):
        print(f"wrote {file}")
    return 0


def _plot_goodput(what: str, args: argparse.Namespace) -> int:
    """Draw the updates of a run that may lose processes, and print its goodput."""
    from hpcps.figures.goodput import draw_goodput, goodput_table
    from hpcps.figures.publish import write_files
    from hpcps.records.goodput import goodput
    from hpcps.records.run_directory import RunDirectory

    none = "no run of {} has closed a round that may lose workers: it must be synchronous, with survive.workers = true"
    run = _one_run(what, args.results, lambda path: goodput(RunDirectory(path)) is not None, none)
    directory = RunDirectory(run)
    if (found := goodput(directory)) is None:
        raise RunError(none.format(run))
    print(goodput_table(found))
    simulated = directory.spec.get("run", {}).get("simulation", {}).get("kind", "none") != "none"
    figure = draw_goodput(found, _heading(directory, "virtual time" if simulated else ""))
    for file in write_files([(f"goodput-{run.name}", figure)], args.output or run.parent.parent / "figures"):
        print(f"wrote {file}")
    return 0


def _heading(directory: RunDirectory, below: str) -> str:
    """Return the title of the figure of a run, with a second line if there is one."""
    name = directory.spec.get("run", {}).get("name", directory.path.name)
    parts = (name, directory.spec.get("label") or directory.path.name, f"run {directory.path.name}")
    return "\n".join(filter(None, (" · ".join(dict.fromkeys(parts)), below)))


def _one_run(what: str, results: Path, fits: Callable[[Path], bool], none: str) -> Path:
    """Return the folder of a run, given its folder, its id or a prefix of it, or an experiment with one that fits.

    Args:
        what: names the run.
        results: the folder of results.
        fits: whether a run of an experiment can be shown.
        none: the message if none can; `{}` stands for the experiment.

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
        runs = [path for path in everything if fits(path)]
        if not runs:
            raise RunError(none.format(place.results.name))
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
