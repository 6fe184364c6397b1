"""`hpcps collect`: one Parquet table, and the final accuracies, out of an experiment's records."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from hpcps.records.results import add_results_argument

if TYPE_CHECKING:
    from hpcps.records.collect import CollectedRun

LARGE = 10**6
"""Bytes of a table from which on it is said how to make it smaller."""


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "collect",
        help="make one table of an experiment's records",
        description="Collect the records of all runs of an experiment, finished or not, in results/NAME/table.parquet, "
        "with the final accuracies in final_accuracy.md and final_accuracy.csv and where each run comes from in "
        "provenance.json beside it.",
    )
    parser.add_argument("experiment", help="experiment file, results folder, name, or the beginning of the name")
    parser.add_argument(
        "--events", metavar="E,…", help="keep only these events in the table, such as evaluation,end (default: all)"
    )
    add_results_argument(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Collect, write the tables, and say what was found."""
    from hpcps.errors import RunError
    from hpcps.figures.publish import write_tables
    from hpcps.records.collect import DRAWN, EVENTS, collect
    from hpcps.records.locate import locate
    from hpcps.records.provenance import write_provenance

    events = args.events.split(",") if args.events else None
    if unknown := sorted(set(events or ()) - set(EVENTS)):
        raise RunError(f"--events: no record has the event {', '.join(unknown)}; there are {', '.join(EVENTS)}")
    place = locate(args.experiment, args.results, Path("experiments"))
    collected = collect(place.results, place.points, events)
    accuracies = write_tables(collected.table, place.results)
    write_provenance(place.results, [run.run_id for run in collected.runs])
    print(report(collected.runs))
    table = place.results / "table.parquet"
    size = table.stat().st_size
    print(f"wrote {table} ({len(collected.table)} rows, {size / 1e6:.2f} MB)")
    if events is None and size > LARGE:
        print(f"note: --events {','.join(DRAWN)} is all that figures and notebooks need, and makes a table to publish")
    print(f"wrote {place.results}/final_accuracy.md and .csv" if accuracies else "no evaluation yet")
    return 0


def report(runs: tuple[CollectedRun, ...]) -> str:
    """Say how many runs there are in which state, and what had to be left out."""
    states = Counter(run.status for run in runs)
    lines = [f"{len(runs)} runs: " + ", ".join(f"{count} {state}" for state, count in states.items())]
    for run in runs:
        left_out = [f"{run.damaged} torn or damaged lines"] if run.damaged else []
        left_out += [f"{run.superseded} lines of earlier attempts"] if run.superseded else []
        left_out += list(run.unreadable)
        if left_out:
            lines.append(f"  {run.run_id} ({run.label}): left out {'; '.join(left_out)}")
    return "\n".join(lines)
