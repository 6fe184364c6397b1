"""What tracing costs: the quickstart over mpirun with and without it, in turns; and what one span costs by itself.

`python benchmarks/tracing.py [--quick] [--output FOLDER]` writes tracing.md. How long a run takes on a shared machine
varies by more than 2 %, so all points of the quickstart are compared, each with itself, and the report says how sure
their mean is.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bars
from machine import Others, description

from hpcps.messages import Kind, Message, Peer
from hpcps.roles.events import Send
from hpcps.trace.lanes import read_lanes
from hpcps.trace.tracer import FileTracer

ROOT = Path(__file__).parents[1]
EXPERIMENT = ROOT / "experiments" / "quickstart.toml"


def seconds_of_a_span(folder):
    """CPU seconds of a traced `send`, written to the file: the median of a few tries."""
    tries, spans = [], 20_000
    send = Send(Peer("server", 0), Message(Kind.UPDATE, Peer("worker", 0), "run", 0))
    for number in range(5):
        with FileTracer(Path(folder) / str(number), "run", Peer("worker", 0), "here", 1) as tracer:
            began = time.process_time()
            for _ in range(spans):
                tracer.before(send, 0)
                tracer.after(send, 0)
        tries.append((time.process_time() - began) / spans)
    return statistics.median(tries)


def play(folder, *more):
    """Play the quickstart; return the wall and CPU seconds of each of its runs, by name, and the runs' folders."""
    command = [sys.executable, "-m", "hpcps", "run", str(EXPERIMENT), "--no-resume", "--results", str(folder), *more]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    runs = sorted((Path(folder) / "quickstart/runs").iterdir())
    return {run.name: (json.loads((run / "DONE").read_text())["wall"], cpu_seconds(run)) for run in runs}, runs


def cpu_seconds(run):
    """CPU seconds of all roles of a run, their waiting included."""
    lines = (json.loads(line) for record in (run / "records").glob("*.jsonl") for line in record.open())
    return sum(line["cpu"] + line.get("cpu_wait", 0.0) for line in lines if line["event"] == "round")


def ratio(without, traced):
    """The geometric mean of the runs' ratios, and its standard error."""
    logs = [math.log(b / a) for a, b in zip(without, traced, strict=True)]
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(statistics.fmean(logs)), error


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one pair of launches, to see that it works")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results", help="default: benchmarks/results")
    args = parser.parse_args()
    pairs = 1 if args.quick else 4
    others = Others()
    found = {(): [], ("--trace",): []}
    with tempfile.TemporaryDirectory() as folder:
        each = seconds_of_a_span(folder)
        for number in range(pairs):
            for more in found if number % 2 else reversed(found):
                runs, folders = play(Path(folder) / f"{number}{''.join(more)}", *more)
                found[more] += [runs[name] for name in sorted(runs)]
                if more:
                    traced = sum(sum(1 for _ in lane.spans()) for run in folders for lane in read_lanes(run))
                    used = sum(cpu for _, cpu in runs.values())
    rows, ratios = [], []
    for column, what in enumerate(("wall seconds", "CPU seconds of all roles")):
        without, with_trace = ([run[column] for run in runs] for runs in found.values())
        mean, error = ratio(without, with_trace)
        ratios.append((mean, error))
        rows.append(
            f"| {what} | {sum(without) / pairs:.2f} | {sum(with_trace) / pairs:.2f} | {mean:.3f} ± {error:.3f} |"
        )
    lines = [
        "# What tracing costs",
        "",
        f"{description()}. The quickstart's {len(found[()]) // pairs} runs of 10 processes",
        f"over mpirun, {pairs} times each way, in turns. Other processes used {others.cores():.2f} cores meanwhile.",
        "The ratio is the mean of the runs' own, with its standard error.",
        "",
        "| all runs | without | with `--trace` | ratio |",
        "|---|---:|---:|---:|",
        *rows,
        "",
        f"A span costs {each * 1e6:.1f} µs of CPU, written out, where nothing else is done; the runs have {traced} of",
        f"them in {used:.1f} CPU seconds: {100 * each * traced / used:.2f} %.",
        "",
    ]
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "tracing.md").write_text("\n".join(lines))
    mean, error = ratios[0]
    told = f"{100 * (mean - 1):.1f} ± {100 * error:.1f} %"
    bars.write(args.output, "tracing", [bars.Bar("time that a trace takes of a run's", "≤ 2 %", told, mean <= 1.02)])
    print("\n".join(lines))


if __name__ == "__main__":
    main()
