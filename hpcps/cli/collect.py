"""`hpcps collect`: writes one Parquet table and the final accuracies from an experiment's records."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from hpcps.cli.arguments import add_results_argument

if TYPE_CHECKING:
    from hpcps.records.collect import CollectedRun

LARGE = 10**6
"""Size of a table, in bytes, above which a note explains how to make it smaller."""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "collect",
        help="write one table of an experiment's records",
        description="Collect the records of all runs of an experiment, finished or not, in results/NAME/table.parquet. "
        "Write the final accuracies to final_accuracy.md and final_accuracy.csv, statistics over the seeds to "
        "summary.csv, and the provenance of each run to provenance.json, in the same folder.",
    )
    parser.add_argument("experiment", help="experiment file, results folder, name, or a prefix of the name")
    parser.add_argument(
        "--events", metavar="E,…", help="keep only these events in the table, such as evaluation,end (default: all)"
    )
    add_results_argument(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Collect the records, write the tables, and print a report."""
    from hpcps.errors import RunError
    from hpcps.figures.publish import write_tables
    from hpcps.records.collect import DRAWN, EVENTS, collect
    from hpcps.records.locate import locate
    from hpcps.records.provenance import write_provenance

    events = args.events.split(",") if args.events else None
    if unknown := sorted(set(events or ()) - set(EVENTS)):
        raise RunError(f"--events: no record has the event {', '.join(unknown)}; there are {', '.join(EVENTS)}")
    place = locate(args.experiment, args.results, Path("experiments"))
    if place.published:
        print(f"nothing to collect: {place.source} has a table already: {place.results / 'table.parquet'}")
        return 0
    collected = collect(place.results, place.points, events)
    accuracies = write_tables(collected.table, place.results)
    write_provenance(place.results, [run.run_id for run in collected.runs])
    print(report(collected.runs))
    table = place.results / "table.parquet"
    size = table.stat().st_size
    print(f"wrote {table} ({len(collected.table)} rows, {size / 1e6:.2f} MB)")
    if events is None and size > LARGE:
        print(f"note: figures and notebooks only need --events {','.join(DRAWN)}, which makes a smaller table")
    print(f"wrote {place.results}/final_accuracy.md and .csv, and summary.csv" if accuracies else "no evaluation yet")
    return 0


def report(runs: tuple[CollectedRun, ...]) -> str:
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
