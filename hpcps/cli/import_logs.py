"""`hpcps import`: makes a table of the logs of another system."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hpcps.cli.arguments import add_results_argument
from hpcps.errors import RunError

if TYPE_CHECKING:
    import pandas as pd

    from hpcps.records import esync_log, ps_pytorch_log

_MODES = tuple(f"{mode}{split}" for mode in ("esync", "sync", "async", "dcasgd", "local") for split in ("", "-niid"))


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "import",
        help="make a table of the logs of another system",
        description="Write results/NAME/table.parquet from the logs of another system, which `hpcps plot` and `hpcps "
        "export` read. `esync`: the published ESync code; LOG is a folder with iter-1.txt, iter-2.txt, … in a folder "
        "for each device, in a folder named after the mode, or with summaries such as ESync.json. `ps_pytorch`: "
        "ps_pytorch and PyTorch-parameter-server; LOG is a file with the output of all processes of a run, or a folder "
        "with a file for each run, or for each process of one.",
    )
    parser.add_argument("system", choices=tuple(_READERS), help="the system that wrote the logs")
    parser.add_argument(
        "logs", nargs="+", type=Path, metavar="LOG", help="the logs; of `esync` one folder, of `ps_pytorch` any number"
    )
    parser.add_argument("--name", help="the name of the experiment in results (default: the name of the first LOG)")
    parser.add_argument("--mode", choices=_MODES, help="of `esync`: the mode of logs that no folder names")
    parser.add_argument(
        "--model-bytes",
        type=float,
        metavar="BYTES",
        help="of `esync`: the size of the model, such as 44.7e6, from which the traffic follows: the logs do not have "
        "it",
    )
    add_results_argument(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Write the table, and print what was read."""
    from hpcps.figures.imported import drawn_by
    from hpcps.records.imported_logs import imported_system
    from hpcps.records.table import read_table, write_table
    from hpcps.registry.config import NAME

    name = args.name or args.logs[0].resolve().name
    if not re.fullmatch(NAME, name):
        raise RunError(f"{name!r} cannot be the name of an experiment: give another one with --name")
    folder = args.results / name
    table = folder / "table.parquet"
    if (folder / "runs").exists() or (table.exists() and not imported_system(read_table(table))):
        raise RunError(f"{folder} has own results: give the imported ones another name with --name")
    frame, lines, notes = _READERS[args.system](name, args)
    write_table(frame, table)
    print("\n".join(lines))
    draw = drawn_by(frame)
    use = f"{draw} it" if draw else f"it has no data for a figure; `hpcps export {name} --to csv` converts it"
    print(f"wrote {table} ({len(frame)} rows); {use}")
    for note in notes:
        print(f"note: {note}")
    return 0


_Read = tuple["pd.DataFrame", list[str], list[str]]
"""The table, a line for each run, and notes."""


def _read_esync(name: str, args: argparse.Namespace) -> _Read:
    from hpcps.records.esync_log import read_logs, table_of_logs

    if len(args.logs) > 1:
        raise RunError("`hpcps import esync` takes one folder: give that in which the folders of all modes are")
    if args.model_bytes is not None and not 0 < args.model_bytes < 1e15:
        raise RunError(f"--model-bytes expects the size of the model in bytes, got {args.model_bytes:g}")
    runs = read_logs(args.logs[0], args.mode)
    unknown = ["without --model-bytes the traffic is not known"] if args.model_bytes is None else []
    return table_of_logs(name, runs, args.model_bytes), list(map(_esync_run, runs)), unknown


def _esync_run(run: esync_log.LoggedRun) -> str:
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


def _read_ps_pytorch(name: str, args: argparse.Namespace) -> _Read:
    from hpcps.records.ps_pytorch_log import labels_of, read_logs, table_of_logs

    if args.mode or args.model_bytes is not None:
        raise RunError("--mode and --model-bytes are for `hpcps import esync`: leave them out")
    runs = read_logs(args.logs)
    labels = labels_of(runs)
    lines = list(map(_ps_pytorch_run, labels, runs))
    unsized = [label for label, run in zip(labels, runs, strict=True) if run.batch is None]
    notes = [f"the lines of {', '.join(unsized)} do not show the samples of a step: no speed-up"] if unsized else []
    if best := _lowest(labels, runs):
        lines.append(best)
    return table_of_logs(name, runs), lines, notes


def _ps_pytorch_run(label: str, run: ps_pytorch_log.LoggedTraining) -> str:
    count, evaluations = len(run.steps), len(run.evaluations)
    some = "1 accuracy" if evaluations == 1 else f"{evaluations or 'no'} {'accuracies' if evaluations else 'accuracy'}"
    if evaluations:
        some += f", at the end {100 * list(run.evaluations.values())[-1].accuracy:.1f} %"
    each = f" of {run.batch} samples" if run.batch else ""
    return (
        f"{label}: {count} worker{'s' * (count != 1)}, steps{each} up to step {run.last}, "
        f"training loss {run.loss_at(run.last):.4f} in it, {some}"
    )


def _lowest(labels: list[str], runs: list[ps_pytorch_log.LoggedTraining]) -> str:
    """Name the run with the lowest training loss in the last step that all have; empty if fewer than two have one."""
    step = min(run.last for run in runs)
    losses = {label: run.loss_at(step) for label, run in zip(labels, runs, strict=True)}
    losses = {label: loss for label, loss in losses.items() if loss < float("inf")}
    if len(losses) < 2:
        return ""
    best = min(losses, key=losses.__getitem__)
    return f"lowest training loss in step {step}: {best} ({losses[best]:.4f})"


_READERS: dict[str, Callable[[str, argparse.Namespace], _Read]] = {
    "esync": _read_esync,
    "ps_pytorch": _read_ps_pytorch,
}
"""The systems, and what reads the logs that the arguments name."""
