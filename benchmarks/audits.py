"""Measure what audits of 5 % of the updates cost: the CPU time of runs with them over that of the same runs without.

`python benchmarks/audits.py [--turns N] [--quick] [--output FOLDER]` writes audits.md. Each turn executes each run once
with audits and once without, in one process, so that the CPU time is that of all its roles.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import bars
from machine import Others, description, ours
from processes import Command, MeasurementError, clean_up_on_sigterm, run_together

SHARE, LIMIT = 0.05, 1.08
TIMEOUT = 600.0
HERE = Path(__file__).parent
EXPERIMENT = """
name = "audits"
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


def cpu_time(workload: Workload, share: float, quick: bool) -> float:
    """Execute a run; return its CPU seconds, those of the start included.

    Raises:
        MeasurementError: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="hpcps-audits-") as folder:
        file = Path(folder) / "audits.toml"
        file.write_text(workload.text(share, quick))
        words = [sys.executable, "-m", "hpcps", "run", str(file), "--results", folder]
        before = ours()
        if problem := run_together(
            [Command(words, {"OMP_NUM_THREADS": "1"}, "hpcps run")], Path(folder) / "logs", TIMEOUT
        ):
            raise MeasurementError(problem)
        return ours() - before


def report(turns: int, times: dict[str, list[tuple[float, float]]], others: float) -> str:
    """Return the page.

    Args:
        turns: their number.
        times: by workload, for each turn the CPU seconds with audits and without.
        others: the cores that other processes used meanwhile.
    """
    lines = [
        "# What audits cost",
        "",
        f"{description()}. `python benchmarks/audits.py --turns {turns}`. Other processes used {others:.2f} cores.",
        "",
        f"Audits of {SHARE:.0%} of the updates of 10 workers by one validator: CPU time of a whole run in one process, "
        f"with its start, over that of the same run without audits; the median of {turns} turns, with the range.",
        "",
        "| Run | Without, s | With, s | With / without | Range |",
        "|---|---|---|---|---|",
    ]
    for name, pairs in times.items():
        ratios = [audited / plain for audited, plain in pairs]
        audited, plain = (statistics.median(column) for column in zip(*pairs, strict=True))
        lines.append(
            f"| {name} | {plain:.1f} | {audited:.1f} | {statistics.median(ratios):.2f} | "
            f"{min(ratios):.2f} to {max(ratios):.2f} |"
        )
    lines += [
        "",
        f"Executing {SHARE:.0%} of the local steps again takes that share of the time of training. Further costs are "
        "the SHA-256 of each worker's state in each round, the models and shards that the validator builds, and a step "
        "at the start of each process.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one turn of short runs: the numbers mean nothing")
    parser.add_argument("--output", type=Path, default=HERE / "results", help="default: benchmarks/results")
    args = parser.parse_args()
    clean_up_on_sigterm()
    turns, others = 1 if args.quick else args.turns, Others()
    times: dict[str, list[tuple[float, float]]] = {workload.name: [] for workload in WORKLOADS}
    for turn in range(turns):
        for workload in WORKLOADS:
            # In turn, so that what changes slowly on this machine is in both.
            shares = (SHARE, 0.0) if turn % 2 else (0.0, SHARE)
            found = {share: cpu_time(workload, share, args.quick) for share in shares}
            times[workload.name].append((found[SHARE], found[0.0]))
            print(f"{turn + 1}/{turns} {workload.name}: {found[SHARE] / found[0.0]:.3f}", flush=True)
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "audits.md").write_text(report(turns, times, others.cores()), encoding="utf-8")
    goals = []
    for workload in WORKLOADS:
        ratio = statistics.median(audited / plain for audited, plain in times[workload.name])
        goals.append(bars.Bar.at_most(f"CPU time with audits over without, {workload.name}", ratio, LIMIT))
    bars.write(args.output, "audits", goals)
    return 0


if __name__ == "__main__":
    sys.exit(main())
