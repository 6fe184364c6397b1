"""Measure push and pull over ps-lite on loopback with two workers and one server, of hpcps and of MXNet (C++).

    .venv/bin/python benchmarks/pslite.py [--repeats 5] [--output benchmarks/results/pslite.md]

It needs .venv-mxnet (`make .venv-mxnet/.ready`). All combinations run one after another, several times, so that other
load on the machine affects all of them; the table has medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bars import Bar, write
from machine import description
from processes import (
    ROOT,
    Command,
    MeasurementError,
    clean_up_on_sigterm,
    free_port,
    on_free_ports,
    run_together,
)

MEGABYTE = 1 << 20
# Size, keys per round, rounds: a round transfers several keys at the same time, as a model with several layers does.
CASES = {"1 MB": (MEGABYTE, 8, 40), "64 MB": (64 * MEGABYTE, 2, 4)}
ACTIONS = ("push", "pull")
BASE = "all C++"
COMBINATIONS = {
    BASE: ("mxnet", "mxnet"),
    "all hpcps": ("hpcps", "hpcps"),
    "hpcps servers, C++ workers": ("hpcps", "mxnet"),
    "C++ servers, hpcps workers": ("mxnet", "hpcps"),
}
WORKERS = 2
TIMEOUT = 150.0
"""The time limit of a combination, in seconds; the slowest takes a tenth of it."""

Speeds = dict[str, float]  # action -> GB/s
Found = dict[tuple[str, str], dict[int, Speeds]]  # (case, combination) -> repeat -> speeds


def measure(
    pythons: Mapping[str, str], servers: str, workers: str, size: int, keys: int, rounds: int, timeout: float = TIMEOUT
) -> Speeds:
    """Return the mean speeds of push and pull per worker, in GB/s.

    Args:
        pythons: the Python of each kind of node.
        servers: the kind of the scheduler and the server.
        workers: the kind of the workers.
        size: the size of a key's value, in bytes.
        keys: the number of keys that are pushed and pulled together.
        rounds: the number of measured rounds.
        timeout: the time limit, in seconds.

    Raises:
        MeasurementError: a node failed, or the time limit was exceeded.
    """

    def attempt() -> Speeds:
        with tempfile.TemporaryDirectory(prefix="hpcps-pslite-") as folder:
            results = [Path(folder) / f"worker-{number}.json" for number in range(WORKERS)]
            numbers = [str(number) for number in (size, keys, rounds)]
            problem = run_together(_nodes(pythons, servers, workers, numbers, results), Path(folder) / "logs", timeout)
            if problem:
                raise MeasurementError(problem)
            speeds = [json.loads(result.read_text()) for result in results]
        return {action: statistics.mean(each[action] for each in speeds) for action in ACTIONS}

    return on_free_ports(attempt)


def _nodes(
    pythons: Mapping[str, str], servers: str, workers: str, numbers: list[str], results: list[Path]
) -> list[Command]:
    variables = {
        "PYTHONPATH": str(ROOT),
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": str(len(results)),
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
    }
    node = [pythons[servers], *{"mxnet": ["-c", "import mxnet"], "hpcps": ["-m", "hpcps.kvstore"]}[servers]]
    worker = [pythons[workers], str(ROOT / "benchmarks/pslite_worker.py"), workers, *numbers]
    nodes = [Command(node, variables | {"DMLC_ROLE": role}, f"{servers} {role}") for role in ("scheduler", "server")]
    role = {"DMLC_ROLE": "worker"}
    return [*nodes, *(Command([*worker, str(file)], variables | role, f"{workers} {file.stem}") for file in results)]


def measure_all(pythons: Mapping[str, str], repeats: int, output: Path | None) -> list[str]:
    """Measure all combinations in turn, and write the report after each turn; return the failures and their reasons."""
    found: Found = {}
    problems: dict[str, str] = {}
    for repeat in range(repeats):
        for case, numbers in CASES.items():
            for name, (servers, workers) in COMBINATIONS.items():
                try:
                    speeds = measure(pythons, servers, workers, *numbers)
                except MeasurementError as error:
                    problems[f"{name}, {case}"] = str(error)
                    print(repeat, case, name, f"failed: {error}", flush=True)
                    continue
                found.setdefault((case, name), {})[repeat] = speeds
                print(repeat, case, name, {key: round(value, 2) for key, value in speeds.items()}, flush=True)
        if output and found:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(report(found, problems))
            write(output.parent, "pslite", bars(found))
    print(report(found, problems))
    return [f"{what}: {why}" for what, why in problems.items()]


def ratio(found: Found, case: str, action: str, name: str) -> float | None:
    """Return the ratio of the speed to that of C++ nodes: the median over the turns that have both."""
    ours, base = found.get((case, name), {}), found.get((case, BASE), {})
    ratios = [speeds[action] / base[repeat][action] for repeat, speeds in ours.items() if repeat in base]
    return statistics.median(ratios) if ratios else None


def bars(found: Found) -> list[Bar]:
    """Return the bars: the throughput of C++ nodes."""
    measured = [(case, action, ratio(found, case, action, "all hpcps")) for case in CASES for action in ACTIONS]
    return [
        Bar.at_least(f"ps-lite {action} of {case}: all hpcps / all C++", value, 1.0)
        for case, action, value in measured
        if value is not None
    ]


def report(found: Found, problems: Mapping[str, str]) -> str:
    """Return the table and the failures."""
    repeats = max((len(turns) for turns in found.values()), default=0)
    lines = [
        "# Push and pull over ps-lite",
        "",
        "Two workers and one server on loopback, sync mode; GB/s per worker, medians of "
        f"{repeats} runs; in brackets the ratio to all C++, median of the runs' ratios.",
        f"{description()}. Written by `benchmarks/pslite.py`.",
        "",
        "| | " + " | ".join(f"{case} {action}" for case in CASES for action in ACTIONS) + " |",
        "|---|" + "---|" * len(ACTIONS) * len(CASES),
    ]
    for name in COMBINATIONS:
        cells = [_cell(found, case, action, name) for case in CASES for action in ACTIONS]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    if problems:
        lines += ["", "Failed:", "", *(f"- {what}: {why}" for what, why in problems.items())]
    return "\n".join(lines) + "\n"


def _cell(found: Found, case: str, action: str, name: str) -> str:
    turns = found.get((case, name))
    if not turns:
        return "–"
    relative = ratio(found, case, action, name)
    speed = statistics.median(speeds[action] for speeds in turns.values())
    return f"{speed:.2f} ({relative:.2f})" if relative is not None else f"{speed:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--mxnet", default=str(ROOT / ".venv-mxnet/bin/python"), help="a Python that has MXNet")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    clean_up_on_sigterm()
    if not Path(args.mxnet).exists():
        parser.error(f"there is no {args.mxnet}: make .venv-mxnet/.ready")
    failed = measure_all({"hpcps": sys.executable, "mxnet": args.mxnet}, args.repeats, args.output)
    for line in failed:
        print("failed:", line, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
