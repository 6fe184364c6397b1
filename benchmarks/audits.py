"""Measure what audits of 5 % of the updates cost: their CPU time beside all other CPU time of a run.

`python benchmarks/audits.py [--turns N] [--quick] [--output FOLDER]` writes audits.md. A run is executed in one
process, which counts the time of what its roles do for audits (`audits_run.py`). This is a lower bound of the cost: it
counts among the rest what it takes to ask for states, and to pack and send them. The difference between runs with and
without audits would have that, but needs a machine on which two equal runs take equally long.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import bars
from machine import Others, description
from processes import Command, MeasurementError, clean_up_on_sigterm, run_together

SHARE, LIMIT = 0.05, 0.08
TIMEOUT = 600.0
HERE = Path(__file__).parent
PROGRAM = HERE / "audits_run.py"
EXPERIMENT = """
name = "audits"
seed = 1
[topology]
servers = 1
validators = 1
workers = 10
[transport]
kind = "inproc"
[model]
name = "{model}"
[data]
{data}
[train]
epochs = {epochs}
batch_size = {batch}
local_steps = {steps}
optimizer = {{ name = "nag", lr = 0.05 }}
device = "cpu"
[validation]
rule = {{ kind = "trimmed_mean", f = 1 }}
audit = {{ share = {share} }}
"""
SYNTHETIC = 'name = "synthetic"\nlimit = 7040\ntest_limit = 100'


@dataclass(frozen=True)
class Workload:
    """A run that is measured; `name` is in the table."""

    name: str
    model: str
    data: str
    batch: int
    steps: int
    epochs: int

    def text(self, share: float, quick: bool) -> str:
        """Return its experiment file."""
        return EXPERIMENT.format(
            model=self.model,
            data=self.data,
            batch=self.batch,
            steps=self.steps,
            epochs=2 if quick else self.epochs,
            share=share,
        )


WORKLOADS = [
    Workload("`cifar_resnet8_v1`, 4 local steps", "cifar_resnet8_v1", SYNTHETIC, 32, 4, 6),
    Workload("`cifar_resnet8_v1`, 1 local step", "cifar_resnet8_v1", SYNTHETIC, 32, 1, 6),
    Workload("`mlp` on digits, 1 local step", "mlp", 'name = "digits"', 16, 1, 100),
]


@dataclass(frozen=True)
class Cost:
    """What audits cost in one run.

    Attributes:
        audits: the CPU seconds of audits.
        others: all other CPU seconds, those of the start included.
        share: the share of the updates that were audited.
    """

    audits: float
    others: float
    share: float

    @property
    def ratio(self) -> float:
        """The CPU time of audits over the rest."""
        return self.audits / self.others


def measured(workload: Workload, quick: bool) -> Cost:
    """Execute a run with audits.

    Raises:
        MeasurementError: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="hpcps-audits-") as temporary:
        folder = Path(temporary)
        file = folder / "audits.toml"
        file.write_text(workload.text(SHARE, quick))
        words = [sys.executable, str(PROGRAM), "hpcps", "run", str(file), "--results", temporary]
        command = Command(words, {"OMP_NUM_THREADS": "1"}, "hpcps run")
        if problem := run_together([command], folder / "logs", TIMEOUT):
            raise MeasurementError(problem)
        last = (folder / "logs" / "0").read_text().splitlines()[-1]
        spent = json.loads(last)
        return Cost(spent["audits"], spent["all"] - spent["audits"], audited(folder))


def audited(results: Path) -> float:
    """Return the share of the updates of a run that were audited."""
    (record,) = results.glob("audits/runs/*/records/validator-0.jsonl")
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    audits = sum(len(line["workers"]) for line in lines if line["event"] == "audits")
    return audits / sum(len(line["participants"]) for line in lines if line["event"] == "round")


def report(turns: int, costs: dict[str, list[Cost]], others: float) -> str:
    """Return the page.

    Args:
        turns: their number.
        costs: by workload, the cost in each turn.
        others: the cores that other processes used meanwhile.
    """
    lines = [
        "# What audits cost",
        "",
        f"{description()}. `python benchmarks/audits.py --turns {turns}`. Other processes used {others:.2f} cores.",
        "",
        f"Audits of {SHARE:.0%} of the updates of 10 workers by one validator, in one process: the CPU time of what "
        "workers and validator do for audits, and the rest of the CPU time of the run, with its start; medians of "
        f"{turns} turns.",
        "",
        "| Run | Updates audited | Audits, s | Rest, s | Audits / rest | Range |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in costs.items():
        ratios = [cost.ratio for cost in found]
        audits, rest = (statistics.median(each) for each in zip(*((c.audits, c.others) for c in found), strict=True))
        lines.append(
            f"| {name} | {found[0].share:.1%} | {audits:.2f} | {rest:.1f} | {statistics.median(ratios):.3f} | "
            f"{min(ratios):.3f} to {max(ratios):.3f} |"
        )
    lines += [
        "",
        f"Executing {SHARE:.0%} of the local steps again takes that share of the time of training. Further costs are "
        "the SHA-256 of each worker's state in each round, the models and shards that the validator builds, and a step "
        "at the start, which all processes take in a run of several. So these numbers are a lower bound: what it takes "
        "to ask for the states of audited workers, and to pack and send them, is part of the rest. Which updates are "
        "audited follows from the seed of the run.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one turn of short runs: the numbers mean nothing")
    parser.add_argument("--output", type=Path, default=HERE / "results", help="default: benchmarks/results")
    args = parser.parse_args()
    clean_up_on_sigterm()
    turns, others = 1 if args.quick else args.turns, Others()
    costs: dict[str, list[Cost]] = {workload.name: [] for workload in WORKLOADS}
    for turn in range(turns):
        for workload in WORKLOADS:
            found = measured(workload, args.quick)
            costs[workload.name].append(found)
            print(f"{turn + 1}/{turns} {workload.name}: {found.ratio:.3f}", flush=True)
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "audits.md").write_text(report(turns, costs, others.cores()), encoding="utf-8")
    goals = []
    for workload in WORKLOADS:
        ratio = statistics.median(cost.ratio for cost in costs[workload.name])
        goals.append(bars.Bar.at_most(f"counted CPU time of audits beside the rest, {workload.name}", ratio, LIMIT))
    bars.write(args.output, "audits", goals)
    return 0


if __name__ == "__main__":
    sys.exit(main())
