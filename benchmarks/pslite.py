"""Measure push and pull over ps-lite on loopback: two workers, one server, ours and MXNet's C++ nodes in turn.

    .venv/bin/python benchmarks/pslite.py [--repeats 5] [--output benchmarks/results/pslite.md]

Needs .venv-mxnet (`make .venv-mxnet/.ready`). All combinations run one after another, several times over, so that what
else the machine does falls on all of them; the table has medians.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path

from bars import Bar, write
from machine import description

ROOT = Path(__file__).parents[1]
MEGABYTE = 1 << 20
# Size, keys per round, rounds: a round has several keys under way, as the layers of a model are.
CASES = {"1 MB": (MEGABYTE, 8, 40), "64 MB": (64 * MEGABYTE, 2, 4)}
COMBINATIONS = {
    "all C++": ("mxnet", "mxnet"),
    "all hpcps": ("hpcps", "hpcps"),
    "hpcps servers, C++ workers": ("hpcps", "mxnet"),
    "C++ servers, hpcps workers": ("mxnet", "hpcps"),
}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def measure(pythons, servers, workers, size, keys, rounds):
    """Return the mean speeds of push and pull per worker, in GB/s."""
    variables = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": "2",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
    }
    node = {"mxnet": ["-c", "import mxnet"], "hpcps": ["-m", "hpcps.kvstore"]}[servers]
    worker = [str(ROOT / "benchmarks/pslite_worker.py"), workers, str(size), str(keys), str(rounds)]
    processes = []
    try:
        for role in ("scheduler", "server"):
            processes.append(subprocess.Popen([pythons[servers], *node], env={**variables, "DMLC_ROLE": role}))
        for _ in range(2):
            command = [pythons[workers], *worker]
            processes.append(
                subprocess.Popen(command, env={**variables, "DMLC_ROLE": "worker"}, stdout=subprocess.PIPE, text=True)
            )
        printed = [process.communicate(timeout=300)[0] for process in processes[2:]]
        if any(process.wait(timeout=60) for process in processes):
            raise SystemExit(f"{servers} servers with {workers} workers: a process failed")
    finally:
        for process in processes:
            process.kill()
    speeds = [json.loads(text.splitlines()[-1]) for text in printed]
    return {name: statistics.mean(each[name] for each in speeds) for name in ("push", "pull")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--mxnet", default=str(ROOT / ".venv-mxnet/bin/python"), help="a Python that has MXNet")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    pythons = {"hpcps": sys.executable, "mxnet": arguments.mxnet}
    found = {}
    for repeat in range(arguments.repeats):
        for case, numbers in CASES.items():
            for name, (servers, workers) in COMBINATIONS.items():
                speeds = measure(pythons, servers, workers, *numbers)
                for action, speed in speeds.items():
                    found.setdefault((case, action, name), []).append(speed)
                print(repeat, case, name, {key: round(value, 2) for key, value in speeds.items()}, flush=True)
    table = render(found)
    print(table)
    if arguments.output:
        arguments.output.parent.mkdir(exist_ok=True)
        arguments.output.write_text(table)
        write(arguments.output.parent, "pslite", bars(found))


def ratio(found, case, action, name):
    """Return the speed as a part of that of C++ nodes: the median of the runs' ratios."""
    speeds, base = found[case, action, name], found[case, action, "all C++"]
    return statistics.median(speed / other for speed, other in zip(speeds, base, strict=True))


def bars(found):
    """Return what was to be reached: the throughput of C++ nodes."""
    return [
        Bar.at_least(f"ps-lite {action} of {case}: all hpcps / all C++", ratio(found, case, action, "all hpcps"), 1.0)
        for case in CASES
        for action in ("push", "pull")
    ]


def render(found):
    lines = [
        "# Push and pull over ps-lite",
        "",
        "Two workers and one server on loopback, sync mode; GB/s per worker, medians of "
        f"{len(next(iter(found.values())))} runs; in brackets the ratio to all C++, median of the runs' ratios.",
        f"{description()}. Written by `benchmarks/pslite.py`.",
        "",
        "| | " + " | ".join(f"{case} {action}" for case in CASES for action in ("push", "pull")) + " |",
        "|---|" + "---|" * 2 * len(CASES),
    ]
    for name in COMBINATIONS:
        cells = []
        for case in CASES:
            for action in ("push", "pull"):
                speed = statistics.median(found[case, action, name])
                cells.append(f"{speed:.2f} ({ratio(found, case, action, name):.2f})")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
