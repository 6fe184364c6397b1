"""Measure the exchange of people's own scripts (`hpcps.torch`): many small tensors beside a large one.

    .venv/bin/python benchmarks/own_script.py [--quick] [--output benchmarks/results]

Four processes exchange one tensor of 800 KB, and 200 of 4 KB, in turn in one launch. Time runs until the last process
has the result. On a busy machine, compare the seconds of computing: the sum over all processes. Without `--output` the
report is only printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bars import Bar, write
from machine import Others, description

PROCESSES = 4
TARGET = 1.5
"""The highest ratio of 200 tensors of 4 KB to one of 800 KB."""


def measure(what: str, turns: int, timeout: float = 300.0) -> dict[str, list[list[float]]]:
    """Launch `own_script_rank.py`; return its results."""
    program = Path(__file__).with_name("own_script_rank.py")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "seconds.json")
        command = [sys.executable, "-m", "hpcps", "launch", "-n", str(PROCESSES)]
        command += [sys.executable, str(program), what, str(turns), str(file)]
        subprocess.run(command, cwd=folder, check=True, timeout=timeout, stdout=subprocess.DEVNULL)
        found: dict[str, list[list[float]]] = json.loads(file.read_text())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--output", type=Path, help="the folder for own_script.md")
    args = parser.parse_args()
    others = Others()
    found = measure("small", 20 if args.quick else args.turns)
    lines = [
        "# Own scripts",
        "",
        f"{PROCESSES} processes on one host; {description()}; other processes used {others.cores():.1f} cores.",
        "Medians and minima over the turns, in ms. Computing is the CPU time of all processes.",
        "",
        "| | Time | Minimum | Computing | Minimum |",
        "|---|---|---|---|---|",
    ]
    for name, columns in found.items():
        cells = [f"{1e3 * of(column):.2f}" for column in columns for of in (statistics.median, min)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    verdicts = []
    for kind in ("push_pull", "optimizer"):
        one, many = (found[f"{kind}, {which}"][0] for which in ("one", "many"))
        ratio = statistics.median(many) / statistics.median(one)
        verdicts.append(Bar.at_most(f"200 tensors of 4 KB beside one of 800 KB, {kind}", ratio, TARGET))
    lines += ["", *(f"- {bar.what}: {bar.measured} (wanted: {bar.wanted})" for bar in verdicts)]
    text = "\n".join(lines) + "\n"
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "own_script.md").write_text(text, encoding="utf-8")
        write(args.output, "own_script", verdicts)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
