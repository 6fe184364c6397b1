"""`hpcps collect`, `report`, `export`, `publish`: write the results of an experiment as tables, a page or a copy."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from hpcps.cli.arguments import add_compare_argument, add_experiment_argument, add_results_argument
from hpcps.errors import RunError
from hpcps.records.locate import locate

if TYPE_CHECKING:
    from hpcps.records.collect import CollectedRun

FORMATS = ("csv", "latex", "markdown", "mlflow", "tensorboard", "trackio", "wandb")

LARGE = 10**6
"""Size of a table, in bytes, above which a note explains how to make it smaller."""


def register_collect(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "collect",
        help="write one table of an experiment's records",
        description="Collect the records of all runs of an experiment, finished or not, in results/NAME/table.parquet. "
        "Write the final accuracies to final_accuracy.md and final_accuracy.csv, statistics over the seeds to "
        "summary.csv, and the provenance of each run to provenance.json, in the same folder.",
    )
    add_experiment_argument(parser)
    parser.add_argument(
        "--events", metavar="E,…", help="keep only these events in the table, such as evaluation,end (default: all)"
    )
    add_results_argument(parser)
    parser.set_defaults(handler=collect)


def collect(args: argparse.Namespace) -> int:
    """Collect the records, write the tables, and print a report."""
    from hpcps.figures.publish import write_tables
    from hpcps.records.collect import DRAWN
    from hpcps.records.collect import collect as collect_records
    from hpcps.records.imported_logs import imported_system
    from hpcps.records.provenance import summaries, write_provenance
    from hpcps.records.table import read_table

    events = args.events.split(",") if args.events else None
    place = locate(args.experiment, args.results)
    table = place.results / "table.parquet"
    if place.published:
        print(f"nothing to collect: {place.source} has a table already: {table}")
        return 0
    if not place.has_runs and table.is_file() and (system := imported_system(read_table(table))):
        print(f"nothing to collect: {table} has the imported logs of {system.title}")
        return 0
    collected = collect_records(place.results, place.points, events)
    accuracies = write_tables(collected.table, place.results)
    write_provenance(summaries(place.results, [run.run_id for run in collected.runs]), place.results)
    print(_collected(collected.runs))
    size = table.stat().st_size
    print(f"wrote {table} ({len(collected.table)} rows, {size / 1e6:.2f} MB)")
    if events is None and size > LARGE:
        print(f"note: figures and notebooks only need --events {','.join(DRAWN)}, which makes a smaller table")
    print(f"wrote {place.results}/final_accuracy.md and .csv, and summary.csv" if accuracies else "no accuracy yet")
    return 0


def _collected(runs: tuple[CollectedRun, ...]) -> str:
    """Describe the number of runs in each state, and the ignored lines."""
    states = Counter(run.status for run in runs)
    lines = [
        f"{len(runs)} run{'s' * (len(runs) != 1)}: " + ", ".join(f"{count} {state}" for state, count in states.items())
    ]
    for run in runs:
        left_out = [f"{run.damaged} truncated or damaged lines"] if run.damaged else []
        left_out += [f"{run.superseded} lines of earlier attempts"] if run.superseded else []
        left_out += list(run.unreadable)
        if left_out:
            lines.append(f"  {run.run_id} ({run.label}): ignored {'; '.join(left_out)}")
        if run.damage:
            lines.append(f"  {run.run_id} ({run.label}): {run.damage}: `hpcps run` runs it again")
        if run.stalled:
            lines.append(f"  {run.run_id} ({run.label}): {run.acceptance.words}")
    return "\n".join(lines)


def register_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "report",
        help="write one HTML file with runs, figures and tables",
        description="Write one HTML file that needs no network: the state of every point of the sweep, interactive "
        "figures, final accuracies, failures and provenance. The source is the run folders, or the published table of "
        "an experiment without run folders.",
    )
    add_experiment_argument(parser)
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="default: results/NAME/report.html")
    add_results_argument(parser)
    parser.set_defaults(handler=report)


def report(args: argparse.Namespace) -> int:
    """Write the report, and print its name and size."""
    from hpcps.figures.report.content import read_content
    from hpcps.figures.report.html import write_report

    place = locate(args.experiment, args.results)
    file = args.output or place.own / "report.html"
    print(f"from {place.source}")
    write_report(read_content(place), file)
    print(f"wrote {file} ({file.stat().st_size / 1e6:.1f} MB): open it in a browser")
    return 0


def register_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "export",
        help="write a table for a paper, or the records for other programs",
        description="Write the results of an experiment for a paper or for other programs. `latex`, `markdown`: "
        "summary.tex or summary.md, the statistics over the seeds of each rule under each attack. `csv`: the same as "
        "summary.csv, runs.csv with the settings of each run, and a file for each event, such as evaluation.csv. "
        "`mlflow`, `tensorboard`, `trackio`, `wandb`: the runs in the form of that experiment tracker, whose own tools "
        "read the folder.",
    )
    add_experiment_argument(parser)
    parser.add_argument("--to", required=True, choices=FORMATS, help="the format")
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="default: results/NAME/export/FORMAT")
    parser.add_argument(
        "--columns", metavar="C,…", help="columns of the summary, such as rule,attack,mean,low,high (default: all)"
    )
    parser.add_argument(
        "--rows",
        metavar="C=V,…",
        action="append",
        default=[],
        help="rows of the summary with these values in a column, such as rule=zeno,median; several narrow each other",
    )
    parser.add_argument(
        "--pivot",
        metavar="COLUMN",
        help="with latex or markdown: write pivot.tex or pivot.md instead, with a column for each value of COLUMN, "
        "such as attack, cells of mean ± std, and the best rule of each column in bold",
    )
    parser.add_argument(
        "--style",
        type=Path,
        metavar="FILE",
        help="with latex or markdown: the file of `hpcps plot --style`, of which the names are used",
    )
    add_results_argument(parser)
    parser.set_defaults(handler=export)


def export(args: argparse.Namespace) -> int:
    """Write the files, and print their names."""
    from hpcps.figures.options import read_options
    from hpcps.records.collect import table_of
    from hpcps.records.export import (
        chosen,
        pivoted,
        renamed,
        summarize,
        write_csv,
        write_pivot,
        write_summary,
    )
    from hpcps.records.tracking import TRACKERS, write_runs

    if args.to in TRACKERS and (args.columns or args.rows):
        raise RunError(f"--columns and --rows choose from the summary, which --to {args.to} does not write")
    if args.to not in ("latex", "markdown") and (args.pivot or args.style):
        raise RunError(f"--pivot and --style are for the tables of a paper, with --to latex or markdown, not {args.to}")
    if args.pivot and args.columns:
        raise RunError(
            "--columns chooses columns of the summary, and --pivot writes another table: leave one of them out"
        )
    names = read_options(args.style).names if args.style else {}
    place = locate(args.experiment, args.results)
    folder = args.output or place.own / "export" / args.to
    print(f"from {place.source}")
    frame = table_of(place)
    if args.to in TRACKERS:
        tracker = TRACKERS[args.to](folder)
        if args.output and tracker.elsewhere:
            raise RunError(f"-o names a folder, but {tracker.variable}={tracker.place} names another place: unset it")
        count = write_runs(frame, place.results, tracker)
        print(f"wrote {count} run{'s' * (count != 1)} to {tracker.place}: `{tracker.hint}` shows them")
        return 0
    columns = args.columns.split(",") if args.columns else ()
    summary = renamed(chosen(summarize(frame), columns, args.rows), names)
    written = write_pivot(pivoted(summary, args.pivot), folder, args.to) if args.pivot else None
    print(f"wrote {written or write_summary(summary, folder, args.to)}")
    for file in write_csv(frame, folder) if args.to == "csv" else ():
        print(f"wrote {file}")
    return 0


def register_publish(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "publish",
        help="make a small copy of an experiment's results, to commit it",
        description="Write results/published/NAME from the runs in results/NAME: a small table, the final accuracies, "
        "the figures, and the provenance of the runs and of the copy. Git ignores everything else in results/. `hpcps "
        "plot` and the notebooks use the copy where results/NAME has no runs.",
    )
    add_experiment_argument(parser)
    parser.add_argument("--add", action="store_true", help="keep the runs of the earlier copy that are not here")
    add_compare_argument(parser)
    add_results_argument(parser)
    parser.set_defaults(handler=publish)


def publish(args: argparse.Namespace) -> int:
    """Publish, and print what was published and what a reader should know about it."""
    from hpcps.figures.publish import publish as make_copy

    made = make_copy(locate(args.experiment, args.results), args.results, add=args.add, compared=args.compare)
    states = ", ".join(f"{count} {state}" for state, count in made.runs.items())
    print(f"wrote {made.folder}: a table of {made.rows} rows, {len(made.figures)} files of figures; runs: {states}")
    for message in made.damaged:
        print(f"  {message}: `hpcps run` runs it again")
    if set(made.runs) != {"done"}:
        print("note: some runs are not done; the headings of the tables and figures say so")
    return 0
