"""Measure the goodput of runs that lose a process every few seconds, beside the same runs undisturbed.

    .venv/bin/python benchmarks/survival.py --parts workers any --seconds 600 --every 15 --output benchmarks/results

Eight workers and what serves them on this machine; a round takes about half a second, most of which is an imposed step
time (`heterogeneity.classes.seconds`), so that many processes fit few cores. Each part is two runs of `--seconds` that
take turns, `--repeats` times each. What it measures is kept in `survival.json`, from which the page `survival.md` is
written: parts that are not measured now stay as they are.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path

from bars import write
from machine import Others, description
from processes import ROOT, NotHereError, clean_up_on_sigterm
from survival_programs import CHECKPOINT_ROUNDS, ROLES, hpcps_run, torchft
from survival_report import Measurement, Part, bars_of, page
from survival_runs import Measured, Program, measure


@dataclass(frozen=True)
class Comparison:
    """Two programs that are compared.

    Attributes:
        part: how it is reported.
        base: returns the first program, of which nobody is killed.
        other: returns the second one.
        every: the usual seconds between two kills of processes of the second one; 0: nobody is killed.
    """

    part: Part
    base: Callable[[], Program]
    other: Callable[[], Program]
    every: float


def _same(program: Callable[[], Program], part: Part, every: float = 15.0) -> Comparison:
    return Comparison(part, program, program, every)


RESTARTED = f"[checkpoint]\nrounds = {CHECKPOINT_ROUNDS}\n"
COMPARISONS = {
    "workers": _same(
        partial(hpcps_run, "pslite", ["worker"]),
        Part(
            "Workers, over ps-lite",
            "a worker is killed",
            "A validator and a server; `survive.workers`.",
            goodput=0.85,
            recovery={"worker": 1.0},
            rollback=False,
        ),
    ),
    "any": _same(
        partial(hpcps_run, "pslite", ROLES, 2),
        Part(
            "Any role but the scheduler, over ps-lite",
            "a process of any role is killed",
            "Two validators, two servers and their standbys; `workers`, `validators` and `servers` of `survive`. Each "
            "kill is of a random role.",
            goodput=0.75,
            recovery={"worker": 1.0, "validator": 2.0, "server": 2.0},
            rollback=False,
        ),
    ),
    "standbys": Comparison(
        Part(
            "What standbys cost",
            "",
            "Two validators and two servers; `survive.workers` and `survive.validators`, without and with "
            "`survive.servers`; nobody is killed.",
            columns=("without standbys", "with standbys"),
        ),
        partial(hpcps_run, "pslite", ROLES[:2], 2),
        partial(hpcps_run, "pslite", ROLES, 2),
        0.0,
    ),
    "scheduler": _same(
        partial(hpcps_run, "pslite", ROLES, 2, ("--retry", "100000"), RESTARTED, ("scheduler",)),
        Part(
            "The scheduler, over ps-lite with restarts",
            "",
            "The same run, whose scheduler alone is killed: it is the only process whose loss no run survives. "
            f"`hpcps run --retry`, `checkpoint.rounds = {CHECKPOINT_ROUNDS}`: all processes start again, from the last "
            "checkpoint.",
        ),
        60.0,
    ),
    "mpi": _same(
        partial(hpcps_run, "mpi", (), 2, ("--retry", "100000"), RESTARTED),
        Part(
            "Any role, over MPI with restarts",
            "",
            "Two validators and two servers; `hpcps run --retry`, "
            f"`checkpoint.rounds = {CHECKPOINT_ROUNDS}`: all processes start again, from the last checkpoint.",
        ),
        60.0,
    ),
    "torchft": _same(
        torchft,
        Part(
            "A replica of torchft 0.2.0",
            "",
            "The same model and steps, with torchft's all-reduce of gradients over gloo: a replica for each worker, "
            "and a lighthouse with the settings of torchft's README. A dead replica is started again at once. (With "
            "its DistributedDataParallel all replicas end when one is lost.)",
        ),
    ),
}


def compare(comparison: Comparison, seconds: float, every: float, repeats: int) -> Measurement:
    """Measure a part.

    Raises:
        NotHereError: one of the programs cannot run on this machine.
    """
    programs = comparison.base(), comparison.other()
    others = Others()
    base: list[Measured] = []
    other: list[Measured] = []
    for repeat in range(repeats):
        for program, runs, pause in zip(programs, (base, other), (None, every or None), strict=True):
            with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
                runs.append(measure(program, Path(folder), seconds, pause, repeat))
            print(runs[-1], flush=True)
    _, _, machine = description().partition(", ")
    machine = f"{machine}; other programs used {others.cores():.1f} cores"
    return Measurement(base, other, seconds, every, date.today().isoformat(), machine)


def read(file: Path) -> dict[str, Measurement]:
    """Read what was measured before."""
    found = json.loads(file.read_text()) if file.exists() else {}
    return {
        name: replace(
            Measurement(**each),
            base=[Measured(**run) for run in each["base"]],
            other=[Measured(**run) for run in each["other"]],
        )
        for name, each in found.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="*", choices=list(COMPARISONS), default=list(COMPARISONS))
    parser.add_argument("--seconds", type=float, default=600.0, help="the length of each run (default: 600)")
    parser.add_argument("--every", type=float, help="seconds between two kills (default: 15; of restarts: 60)")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results", help="the folder of results")
    args = parser.parse_args()
    clean_up_on_sigterm()
    for folder in (ROOT / "build", args.output):
        folder.mkdir(parents=True, exist_ok=True)
    file = args.output / "survival.json"
    parts = {name: comparison.part for name, comparison in COMPARISONS.items()}
    for name in args.parts:
        comparison = COMPARISONS[name]
        print(f"{name}:", flush=True)
        every = args.every if args.every and comparison.every else comparison.every
        try:
            found = compare(comparison, args.seconds, every, args.repeats)
        except NotHereError as error:
            print(f"left out: {error}")
            continue
        measured = {**read(file), name: found}
        file.write_text(json.dumps({key: asdict(each) for key, each in measured.items()}, indent=1) + "\n")
        (args.output / "survival.md").write_text(page(parts, measured))
        write(args.output, "survival", bars_of(parts, measured))
    print((args.output / "survival.md").read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
