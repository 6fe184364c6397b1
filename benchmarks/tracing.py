"""Measure the cost of tracing: in a long run with some traced rounds, and in runs with and without a trace, in turns.

`python benchmarks/tracing.py [--quick] [--output FOLDER]` writes tracing.md. On a shared machine the duration of a run
varies more than a trace costs, and more between launches than within one. So the same processes play all runs,
compared runs or rounds are adjacent, and the report gives the error of the mean of the ratios.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import bars
from machine import Others, description
from processes import ROOT, Command, MeasurementError, clean_up_on_sigterm, run_together
from tracing_rank import BLOCK, traced

from hpcps.launch.detect import detect_mpi
from hpcps.launch.prepare import Site, prepare
from hpcps.protocol.messages import Credit, Peer
from hpcps.records.trace.reader import merge, read_trace
from hpcps.records.trace.tracer import Tracer
from hpcps.roles.events import Compute, Send
from hpcps.spec.load import load_experiment

EXPERIMENT = ROOT / "experiments" / "quickstart.toml"
POINT = "zeno · none"
EPOCHS, PAIRS = 20, 8
"""The epochs of a whole run, and the number of pairs of such runs; one more pair precedes them and is not counted."""
LONG = 2400
"""The epochs of the run in which some rounds are traced."""
SETTLED = 16
"""The warm-up rounds of that run."""


def seconds_of_a_span(folder):
    """Return the CPU seconds for writing one span, of a message or a task, to the file: the median of a few tries."""
    tries, turns = [], 10_000
    effects = Send(Peer("server", 0), Credit(round=0, partitions=1)), Compute("train", lambda: None)
    for number in range(5):
        with Tracer(Path(folder) / str(number), "run", Peer("worker", 0), "here", 1) as tracer:
            began = time.process_time()
            for _ in range(turns):
                for effect in effects:
                    tracer.carried_out(effect, 0, tracer.begin(effect))
        tries.append((time.process_time() - began) / turns / len(effects))
    return statistics.median(tries)


def play(folder, pairs, epochs):
    """Play all runs: pairs of whole runs, and a longer one in which some rounds are traced.

    Returns:
        The pairs, each of (without, traced) of (wall, CPU seconds, folder), and the folder of the long run.
    """
    mpi = detect_mpi(Path(sys.executable).parent / "mpirun")
    planned = []
    for each in (EPOCHS, epochs):
        (point,) = (p for p in load_experiment(EXPERIMENT, [f"train.epochs={each}"]).points if p.label == POINT)
        site = Site(launcher=mpi.launcher, mpirun=mpi.mpirun)
        (launch,) = prepare([point], folder / "results", folder / "conf", site)
        planned += launch.job.plan.runs
    letters = "".join("ny" if pair % 2 else "yn" for pair in range(pairs + 1))
    runs = [replace(planned[0], directory=f"{planned[0].directory}-{number}") for number in range(len(letters))]
    job = launch.job
    plan = replace(job.plan, runs=(*runs, planned[1]), trace=True)
    launch = mpi.launcher.launch_of(replace(job, plan=plan, variables={**job.variables, "TRACED": letters + "r"}))
    launch.write()
    for path in launch.files:
        path.write_text(path.read_text().replace("-m hpcps.execution", str(ROOT / "benchmarks/tracing_rank.py")))
    problem = run_together([Command(launch.command, launch.environment())], folder / "log", 1800)
    if problem:
        raise MeasurementError(problem)
    ranks = [[json.loads(line) for line in file.open()] for file in folder.glob("rank-*.jsonl")]
    told = [(max(w for w, _ in each), sum(c for _, c in each)) for each in zip(*ranks, strict=True)]
    found = [(*seconds, Path(run.directory)) for seconds, run in zip(told, plan.runs, strict=True)]
    sides = [found[number : number + 2] for number in range(2, len(letters), 2)]
    return [(a, b) if letters[2 * n + 2] == "n" else (b, a) for n, (a, b) in enumerate(sides)], found[-1][2]


def blocks_of(run):
    """Return pairs of adjacent blocks of rounds: (without, traced) of (wall seconds, CPU seconds of all processes)."""
    wall, cpu = defaultdict(float), defaultdict(float)
    workers = list((run / "records").glob("worker-*.jsonl"))
    for record in (run / "records").glob("*.jsonl"):
        lines = [line for line in map(json.loads, record.open()) if line["event"] == "round"]
        for before, line in pairwise(lines):
            cpu[line["round"] // BLOCK] += line["cpu"] + line.get("cpu_wait", 0.0)
            if record in workers:
                wall[line["round"] // BLOCK] += (line["time"] - before["time"]) / len(workers)
    pairs = []
    for block in range(SETTLED // BLOCK, max(cpu) - 2, 2):
        a, b = ((wall[number], cpu[number]) for number in (block, block + 1))
        pairs.append((b, a) if traced(block * BLOCK) else (a, b))
    return pairs


def compared(pairs, column):
    """Return the geometric mean of the pairs' ratios, and its bounds at two standard errors."""
    logs = [math.log(traced[column] / without[column]) for without, traced in pairs]
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    return [math.exp(mean + number * error) for number in (0, -2, 2)]


def row(name, pairs, column):
    without, traced = ([each[column] for each in side] for side in zip(*pairs, strict=True))
    ratio, low, high = compared(pairs, column)
    seconds = f"{statistics.median(without):.3f} | {statistics.median(traced):.3f}"
    return f"| {name} | {len(pairs)} | {seconds} | {ratio:.3f} | {low:.3f} to {high:.3f} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few short runs, to see that it works")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results", help="default: benchmarks/results")
    args = parser.parse_args()
    clean_up_on_sigterm()
    pairs, epochs = (2, 60) if args.quick else (PAIRS, LONG)
    others = Others()
    with tempfile.TemporaryDirectory(prefix="hpcps-bench-") as folder:
        each = seconds_of_a_span(folder)
        runs, long = play(Path(folder), pairs, epochs)
        blocks = blocks_of(long)
        _, cpu, run = runs[0][1]
        spans = int((~read_trace(run).spans["background"]).sum())
        began = time.perf_counter()
        merge(run)
        merging = time.perf_counter() - began
        kilobytes = sum(path.stat().st_size for path in (run / "trace").iterdir()) / 1000
    both = {f"{BLOCK} rounds of a run of {epochs} epochs": blocks, f"a run of {EPOCHS} epochs": runs}
    columns = ("wall seconds", "CPU seconds")
    rows = [row(f"{name}: {what}", sides, n) for name, sides in both.items() for n, what in enumerate(columns)]
    lines = [
        "# What tracing costs",
        "",
        f"{description()}. Runs of the quickstart",
        f"({POINT}), 10 processes over mpirun, all in one launch: {BLOCK} rounds that are traced beside {BLOCK} that",
        "are not, and whole runs with a trace and without, from when all processes had come to one until all were",
        f"ready for the next. Other processes used {others.cores():.2f} cores meanwhile. Medians, and the geometric",
        "mean of the ratios with two standard errors to both sides.",
        "",
        "| | pairs | without | with `--trace` | ratio | between |",
        "|---|---:|---:|---:|---:|---|",
        *rows,
        "",
        f"A span costs {each * 1e6:.2f} µs of CPU where caches are warm. A run of {EPOCHS} epochs uses {cpu:.1f} CPU",
        f"seconds and has {spans} spans, in {kilobytes:.0f} kB. `hpcps run` merges them once all runs are over, which",
        f"takes {merging:.2f} s for each of these.",
        "",
    ]
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "tracing.md").write_text("\n".join(lines))
    ratio, low, high = compared(blocks, 0)
    told = f"{100 * (ratio - 1):.1f} % ({100 * (low - 1):.1f} to {100 * (high - 1):.1f})"
    bars.write(args.output, "tracing", [bars.Bar("time that a trace takes of a run's", "≤ 2 %", told, high <= 1.02)])
    print("\n".join(lines))


if __name__ == "__main__":
    main()
