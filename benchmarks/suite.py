"""Run all benchmarks, one after another, and write the front page of their results.

    make bench          the complete suite, about two hours on 2 cores
    make bench-quick    a short version of each benchmark, to test it; the results go to another folder

It needs an otherwise idle machine. If a benchmark fails or hangs, the others still run, and its earlier results stay:
the front page has the date of every number.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import bars
from exchanges import make
from processes import NotHereError, clean_up_on_sigterm, end

from hpcps.records.provenance import gpus

HERE = Path(__file__).parent
ROOT = HERE.parent
TIMEOUT_FACTOR = 3.0
"""A benchmark is ended after this multiple of its usual time plus `SLACK`."""
SLACK = 600.0
"""Additional seconds for every benchmark, because it may have to create an environment."""
GRACE = 60.0
"""Seconds that a benchmark has to end its processes after its time limit."""


@dataclass(frozen=True)
class Benchmark:
    """One program of this folder.

    Attributes:
        name: its name and that of its report.
        title: what it measures.
        minutes: its approximate duration.
        arguments: the arguments for the complete benchmark; `{results}` is the folder of results.
        quick: the arguments for the short version; None: it has none.
        needs: the environment that must exist.
        gpu: whether it needs a GPU, and is skipped without one.
    """

    name: str
    title: str
    minutes: float
    arguments: Sequence[str] = ("--output", "{results}")
    quick: Sequence[str] | None = ("--quick", "--output", "{results}")
    needs: str = ".venv"
    gpu: bool = False

    @property
    def deadline(self) -> float:
        """The time limit, in seconds."""
        return TIMEOUT_FACTOR * 60 * self.minutes + SLACK


@dataclass(frozen=True)
class Outcome:
    """The outcome of a benchmark.

    Attributes:
        note: why it failed or was skipped; empty if it succeeded.
        failed: whether it failed.
    """

    note: str = ""
    failed: bool = False


SUITE = [
    Benchmark("rules", "Rules, beside a read pass over the data and ByzFL", 6),
    Benchmark("round", "A synchronous round, beside Allreduce, gloo, torch RPC and MXNet", 23),
    Benchmark("growth", "How a round and its memory grow, on one machine and between hosts", 10),
    Benchmark("compressors", "Compressors, beside plain torch, and between hosts", 6),
    Benchmark("own_script", "Scripts of people's own, beside DistributedDataParallel and between hosts", 4),
    Benchmark("scheduling", "Priorities and the cross barrier of scripts, between hosts", 4),
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
    Benchmark(
        "survival",
        "Processes that are killed, beside torchft and runs that are restarted",
        43,
        ("--parts", "workers", "any", "--output", "{results}"),
        ("--parts", "workers", "any", "--seconds", "30", "--every", "8", "--output", "{results}"),
    ),
    Benchmark("audits", "What audits of workers cost", 15),
    Benchmark("gpu", "Figure 3's sixteen workers on one GPU", 4, gpu=True),
    Benchmark("simulation", "Predicted and measured time per round of topologies", 4, quick=None),
]


def run(benchmark: Benchmark, results: Path, quick: bool) -> Outcome:
    """Run a benchmark within its time limit."""
    program = HERE / f"{benchmark.name}.py"
    arguments = benchmark.quick if quick else benchmark.arguments
    if not program.exists():
        return Outcome(f"there is no {program.name}", failed=True)
    if arguments is None:
        return Outcome("left out of the quick run")
    if benchmark.gpu and not gpus():
        return Outcome("left out: there is no GPU here")
    try:
        make(benchmark.needs)
    except NotHereError as error:
        return Outcome(f"left out: {error}")
    words = [argument.format(results=results) for argument in arguments]
    # The hpcps of this tree is measured, even if the environment has another one.
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}
    process = subprocess.Popen(
        [sys.executable, str(program), *words], cwd=ROOT, env=environment, start_new_session=True
    )
    try:
        status = process.wait(benchmark.deadline)
    except subprocess.TimeoutExpired:
        return Outcome(f"it was ended after {benchmark.deadline / 60:.0f} minutes", failed=True)
    finally:
        end([process], GRACE)
    return Outcome(f"it ended with status {status}", failed=True) if status else Outcome()


def run_all(chosen: Sequence[Benchmark], results: Path, quick: bool) -> dict[str, Outcome]:
    """Run benchmarks one after another, print the progress, and write the front page after each of them."""
    outcomes: dict[str, Outcome] = {}
    began = time.monotonic()
    for number, benchmark in enumerate(chosen, 1):
        left = sum(each.minutes for each in chosen[number - 1 :])
        usual = "" if quick else f"; it takes {benchmark.minutes:g} minutes, and all that is left {left:g}"
        so_far = f"{(time.monotonic() - began) / 60:.1f} minutes so far"
        print(f"== {number} of {len(chosen)}: {benchmark.name}: {benchmark.title}; {so_far}{usual} ==", flush=True)
        start = time.monotonic()
        outcome = outcomes[benchmark.name] = run(benchmark, results, quick)
        print(
            f"== {benchmark.name}: {outcome.note or 'done'}, {(time.monotonic() - start) / 60:.1f} minutes ==",
            flush=True,
        )
        (results / "README.md").write_text(front_page(results, outcomes), encoding="utf-8")
    return outcomes


def front_page(results: Path, outcomes: Mapping[str, Outcome]) -> str:
    """Return the page of targets and measured values of all benchmarks that have written bars."""
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
        note = outcomes.get(benchmark.name, Outcome()).note
        lines.append(f"| {report} | {benchmark.title}{f' ({note})' if note else ''} |")
    lines += ["", "## What was to be reached", "", "| | Wanted | Measured | | On |", "|---|---|---|---|---|"]
    for benchmark in SUITE:
        for bar in bars.read(results, benchmark.name):
            verdict = "✓" if bar.holds else "**missed**"
            lines.append(f"| {bar.what} | {bar.wanted} | {bar.measured} | {verdict} | {bar.date or '–'} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="run a short version of each benchmark")
    parser.add_argument("--only", nargs="*", choices=[benchmark.name for benchmark in SUITE], help="run only these")
    parser.add_argument("--page", action="store_true", help="write the front page from existing results, run nothing")
    parser.add_argument("--output", type=Path, default=HERE / "results", help="default: benchmarks/results")
    args = parser.parse_args()
    clean_up_on_sigterm()
    results = args.output.absolute()
    results.mkdir(parents=True, exist_ok=True)
    chosen = [b for b in SUITE if not args.page and (not args.only or b.name in args.only)]
    outcomes = run_all(chosen, results, args.quick)
    (results / "README.md").write_text(front_page(results, outcomes), encoding="utf-8")
    print(f"wrote {results / 'README.md'}")
    failed = {name: outcome.note for name, outcome in outcomes.items() if outcome.failed}
    for name, note in failed.items():
        print(f"failed: {name}: {note}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
