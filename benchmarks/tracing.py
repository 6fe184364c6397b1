"""What tracing costs: the same run over mpirun with and without it, in turns; and what one span costs by itself.

`python benchmarks/tracing.py [--quick] [--output FOLDER]` writes tracing.md. Wall times of a run on a
shared machine vary by more than 2 %, so beside the ratio of medians there is what speaks for itself: CPU seconds of a
span times spans.
"""

import argparse
import json
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
    """Play one point of the quickstart; return its wall seconds, all its CPU seconds, and its folder."""
    command = [sys.executable, "-m", "hpcps", "run", str(EXPERIMENT), "--only", "zeno · none", "--no-resume"]
    subprocess.run([*command, "--results", str(folder), *more], check=True, stdout=subprocess.DEVNULL)
    (run,) = (Path(folder) / "quickstart/runs").iterdir()
    cpu = 0.0
    for record in (run / "records").glob("*.jsonl"):
        lines = map(json.loads, record.read_text().splitlines())
        cpu += sum(line.get("cpu", 0.0) for line in lines if line["event"] == "round")
    return json.loads((run / "DONE").read_text())["wall"], cpu, run


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one pair of runs, to see that it works")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results", help="default: benchmarks/results")
    args = parser.parse_args()
    pairs = 1 if args.quick else 5
    others = Others()
    with tempfile.TemporaryDirectory() as folder:
        each = seconds_of_a_span(folder)
        walls, cpus = {(): [], ("--trace",): []}, {(): [], ("--trace",): []}
        for number in range(pairs):
            for more in walls if number % 2 else reversed(walls):
                wall, cpu, run = play(Path(folder) / f"{number}{''.join(more)}", *more)
                walls[more].append(wall)
                cpus[more].append(cpu)
                if more:
                    traced, used = sum(sum(1 for _ in lane.spans()) for lane in read_lanes(run)), cpu
    plain, with_trace = ((statistics.median(walls[more]), statistics.median(cpus[more])) for more in walls)
    lines = [
        "# What tracing costs",
        "",
        f"{description()}. The quickstart's zeno point (8 workers, a validator, a server; 20 epochs) over mpirun;",
        f"medians of {pairs} runs each way, in turns. Other processes used {others.cores():.2f} cores meanwhile.",
        "",
        "| | without | with `--trace` | ratio |",
        "|---|---:|---:|---:|",
        f"| wall seconds | {plain[0]:.2f} | {with_trace[0]:.2f} | {with_trace[0] / plain[0]:.3f} |",
        f"| CPU seconds of all roles | {plain[1]:.2f} | {with_trace[1]:.2f} | {with_trace[1] / plain[1]:.3f} |",
        "",
        f"A span costs {each * 1e6:.1f} µs of CPU, written out; the run has {traced} of them in {used:.1f} CPU "
        f"seconds: {100 * each * traced / used:.2f} %.",
        "",
    ]
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "tracing.md").write_text("\n".join(lines))
    share = each * traced / used
    bar = bars.Bar("CPU that a trace takes of the quickstart's", "≤ 2 %", f"{100 * share:.2f} %", share <= 0.02)
    bars.write(args.output, "tracing", [bar])
    print("\n".join(lines))


if __name__ == "__main__":
    main()
