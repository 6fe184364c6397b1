"""`hpcps import`: makes a table of the logs of another system."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hpcps.cli.arguments import add_results_argument
from hpcps.errors import RunError

if TYPE_CHECKING:
    from hpcps.records.esync_log import LoggedRun

SYSTEMS = ("esync",)
_MODES = tuple(f"{mode}{split}" for mode in ("esync", "sync", "async", "dcasgd", "local") for split in ("", "-niid"))


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "import",
        help="make a table of the logs of another system",
        description="Read the logs of the published ESync code: iter-1.txt, iter-2.txt, … in a folder for each device, "
        "in a folder named after the mode, or summaries such as ESync.json. Write results/NAME/table.parquet, which "
        "`hpcps plot esync` draws beside own runs.",
    )
    parser.add_argument("system", choices=SYSTEMS, help="the system that wrote the logs")
    parser.add_argument("logdir", type=Path, metavar="LOGDIR", help="the folder of the logs")
    parser.add_argument("--name", help="the name of the experiment in results (default: the name of LOGDIR)")
    parser.add_argument("--mode", choices=_MODES, help="the mode of logs that no folder names")
    parser.add_argument(
        "--model-bytes",
        type=float,
        metavar="BYTES",
        help="the size of the model, such as 44.7e6, from which the traffic follows: the logs do not have it",
    )
    add_results_argument(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Write the table, and print what was read."""
    import re

    from hpcps.records.esync_log import IMPORTED, read_logs, table_of_logs
    from hpcps.records.table import read_table, write_table
    from hpcps.registry.config import NAME

    name = args.name or args.logdir.resolve().name
    if not re.fullmatch(NAME, name):
        raise RunError(f"{name!r} cannot be the name of an experiment: give another one with --name")
    if args.model_bytes is not None and not 0 < args.model_bytes < 1e15:
        raise RunError(f"--model-bytes expects the size of the model in bytes, got {args.model_bytes:g}")
    folder = args.results / name
    table = folder / "table.parquet"
    if (folder / "runs").exists() or (table.exists() and not read_table(table).attrs.get(IMPORTED)):
        raise RunError(f"{folder} has own results: give the imported ones another name with --name")
    runs = read_logs(args.logdir, args.mode)
    frame = table_of_logs(name, runs, args.model_bytes)
    write_table(frame, table)
    for run in runs:
        print(_described(run))
    print(f"wrote {table} ({len(frame)} rows); `hpcps plot esync {name}` draws it")
    if args.model_bytes is None:
        print("note: without --model-bytes the traffic is not known")
    return 0


def _described(run: LoggedRun) -> str:
    from hpcps.records.esync_log import evaluating_device

    rounds = [len(each) for each in run.devices.values()]
    number = f"{min(rounds)}" if min(rounds) == max(rounds) else f"{min(rounds)} to {max(rounds)}"
    split = "by class" if run.by_class else "iid"
    evaluations = sum(each.accuracy is not None for each in run.devices[evaluating_device(run)])
    number += f" round{'s' * (max(rounds) != 1)}"
    some = "1 accuracy" if evaluations == 1 else f"{evaluations} accuracies"
    accuracies = f"{some}, of {evaluating_device(run)}" if evaluations else "no accuracy"
    source = "; from a summary: evaluations and queries count as computing" if run.summary else ""
    devices = f"{len(rounds)} device{'s' * (len(rounds) != 1)}"
    return " ".join(filter(None, [run.network, f"{run.mode}, {split}: {devices}, {number}, {accuracies}{source}"]))
