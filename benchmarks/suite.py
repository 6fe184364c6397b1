"""Run all benchmarks, one after another, and write the front page of their results.

    make bench          all of it, about 45 minutes on 2 cores
    make bench-quick    a little of everything, to see that it works; written to a folder of its own

Wants a machine that does nothing else. A benchmark that fails does not keep the others from being run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import bars

from hpcps.records.provenance import gpus

HERE = Path(__file__).parent
ROOT = HERE.parent


@dataclass(frozen=True)
class Benchmark:
    """One program of this folder.

    Attributes:
        name: its name, and of its report.
        title: what it measures.
        minutes: how long it takes, about.
        arguments: for the whole of it; `{results}` is the folder of results.
        quick: for a little of it; None to leave it out then.
        needs: an environment to be made first.
        gpu: whether it is left out where there is no GPU.
    """

    name: str
    title: str
    minutes: float
    arguments: Sequence[str] = ("--output", "{results}")
    quick: Sequence[str] | None = ("--quick", "--output", "{results}")
    needs: str = ".venv"
    gpu: bool = False


SUITE = [
    Benchmark("rules", "Rules, beside a read pass over the data and ByzFL", 6),
    Benchmark("round", "A synchronous round, beside Allreduce, gloo, torch RPC and MXNet", 14),
    Benchmark("growth", "How a round and its memory grow, on one machine and between hosts", 10),
    Benchmark("training", "CPU training, beside plain PyTorch loops", 4),
    Benchmark("tracing", "What a trace costs", 5),
    Benchmark(
        "pslite",
        "Push and pull over ps-lite, beside MXNet's C++ nodes",
        3,
        ("--output", "{results}/pslite.md"),
        ("--repeats", "1", "--output", "{results}/pslite.md"),
        ".venv-mxnet",
    ),
    Benchmark("gpu", "Figure 3's sixteen workers on one GPU", 4, gpu=True),
    Benchmark("simulation", "Predicted and measured time per round of topologies", 4, quick=None),
]


def run(benchmark: Benchmark, results: Path, quick: bool) -> str:
    """Run one; return why it failed or was left out, or nothing."""
    program = HERE / f"{benchmark.name}.py"
    arguments = benchmark.quick if quick else benchmark.arguments
    if not program.exists():
        return f"there is no {program.relative_to(ROOT)}"
    if arguments is None:
        return "left out of the quick run"
    if benchmark.gpu and not gpus():
        return "left out: there is no GPU here"
    if not (ROOT / benchmark.needs / ".ready").exists():
        subprocess.run(["make", "-C", str(ROOT), f"{benchmark.needs}/.ready"])
    # What it leaves is to be of this run, or not there.
    (results / bars.FOLDER / f"{benchmark.name}.json").unlink(missing_ok=True)
    words = [argument.format(results=results) for argument in arguments]
    # This tree is measured, wherever the environment's hpcps comes from.
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}
    status = subprocess.run([sys.executable, str(program), *words], cwd=ROOT, env=environment).returncode
    return f"it ended with status {status}" if status else ""


def front_page(results: Path, problems: dict[str, str]) -> str:
    """Write what was to be reached and what was measured, of all benchmarks that have left something."""
    lines = [
        "# Benchmarks",
        "",
        "`make bench` runs them all. Each report says on which machine, when and how it was measured.",
        "",
        "| Benchmark | |",
        "|---|---|",
    ]
    for benchmark in SUITE:
        report = f"[{benchmark.name}]({benchmark.name}.md)" if (results / f"{benchmark.name}.md").exists() else "–"
        note = f" ({problems[benchmark.name]})" if problems.get(benchmark.name) else ""
        lines.append(f"| {report} | {benchmark.title}{note} |")
    lines += ["", "## What was to be reached", "", "| | Wanted | Measured | |", "|---|---|---|---|"]
    for benchmark in SUITE:
        for bar in bars.read(results, benchmark.name):
            lines.append(f"| {bar.what} | {bar.wanted} | {bar.measured} | {'✓' if bar.holds else '**missed**'} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a little of each")
    parser.add_argument("--only", nargs="*", choices=[benchmark.name for benchmark in SUITE], help="these alone")
    parser.add_argument("--page", action="store_true", help="write the front page from what is there, run nothing")
    parser.add_argument("--output", type=Path, default=HERE / "results", help="default: benchmarks/results")
    args = parser.parse_args()
    results = args.output.absolute()
    results.mkdir(parents=True, exist_ok=True)
    chosen = [b for b in SUITE if not args.page and (not args.only or b.name in args.only)]
    problems = {}
    for number, benchmark in enumerate(chosen, 1):
        about = "" if args.quick else f", about {benchmark.minutes:g} minutes"
        print(f"== {number} of {len(chosen)}: {benchmark.name}{about} ==", flush=True)
        began = time.monotonic()
        problems[benchmark.name] = run(benchmark, results, args.quick)
        told = problems[benchmark.name] or "done"
        print(f"== {benchmark.name}: {told}, {(time.monotonic() - began) / 60:.1f} minutes ==", flush=True)
    (results / "README.md").write_text(front_page(results, problems), encoding="utf-8")
    print(f"wrote {results / 'README.md'}")
    return 1 if any(problem.startswith("it ended") for problem in problems.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
