"""Measure the goodput of a run over ps-lite that loses a worker every few seconds, beside the same run undisturbed.

    .venv/bin/python benchmarks/survival.py --seconds 600 --every 15 --output benchmarks/results

Eight workers, a validator and a server on this machine; a round takes about half a second, most of which is an imposed
step time (`heterogeneity.classes.seconds`), so that ten processes fit few cores. `kill -9` ends a random worker every
`--every` seconds. Goodput is the number of combined updates in `--seconds`, divided by that of the undisturbed run; the
two take turns, `--repeats` times each. A recovery is the time from a kill to the end of the next round.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bars import Bar, write
from machine import Others, description
from processes import ROOT, clean_up_on_sigterm

from hpcps.records.files import read_lines
from hpcps.records.goodput import goodput
from hpcps.records.run_directory import RunDirectory

WORKERS = 8
EXPERIMENT = f"""
name = "survival"
[topology]
servers = 1
validators = 1
workers = {WORKERS}
[model]
name = "cnn"
[data]
name = "digits"
resize = 64
[train]
epochs = 100_000
batch_size = 8
local_steps = 1
[[heterogeneity.classes]]
name = "timed"
workers = {WORKERS}
seconds = 0.45
[transport]
kind = "pslite"
[survive]
workers = true
"""
GOODPUT, RECOVERY = 0.85, 1.0
"""What is wanted: at least so much goodput, and at most so many seconds of the median recovery."""


@dataclass(frozen=True)
class Measured:
    """One run.

    Attributes:
        updates: the updates that were combined in the time.
        kills: the workers that were killed in it.
        recoveries: seconds from the end of a process to the end of the next round.
        round: the median seconds of a round.
    """

    updates: int
    kills: int
    recoveries: tuple[float, ...]
    round: float


def workers_of(launch: int) -> list[int]:
    """Return the processes of the workers of a launch, without their guards."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            mine = f"SURVIVAL={launch}".encode() in (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mine and b"hpcps.execution" in words and words[-2:-1] == [b"worker"]:
            found.append(int(entry.name))
    return sorted(found)


def measure(folder: Path, seconds: float, every: float | None, seed: int) -> Measured:
    """Execute the run for some seconds from its first round on, and kill a worker every few seconds."""
    file = folder / "survival.toml"
    file.write_text(EXPERIMENT)
    mark = random.Random(f"{seed} {every}").randrange(1 << 30)
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcps", "run", str(file), "--results", str(folder)],
        env={**os.environ, "SURVIVAL": str(mark)},
        stdout=subprocess.DEVNULL,
        stderr=(folder / "errors.txt").open("wb"),
    )
    try:
        record = first_round(folder, process)
        stream, kills, began = random.Random(seed), 0, time.monotonic()
        start = read_lines(record).lines[-1]["time"]
        while (passed := time.monotonic() - began) < seconds:
            if every is not None and passed > (kills + 1) * every and (there := workers_of(mark)):
                os.kill(stream.choice(there), signal.SIGKILL)
                kills += 1
            time.sleep(0.05)
            if process.poll() is not None:
                raise SystemExit(f"the run has ended:\n{(folder / 'errors.txt').read_text()}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    found = goodput(RunDirectory(record.parents[1]))
    assert found is not None, "rounds may close without a worker"
    inside = (found.times > start) & (found.times <= start + seconds)
    updates = np.diff(found.updates, prepend=0)[inside]
    return Measured(int(updates.sum()), kills, found.recoveries, float(np.median(np.diff(found.times[inside]))))


def first_round(folder: Path, process: subprocess.Popen[bytes]) -> Path:
    """Wait for the first round of the validator; return its record."""
    while process.poll() is None:
        for record in folder.glob("survival/runs/*/records/validator-0.jsonl"):
            if any(line["event"] == "round" for line in read_lines(record).lines):
                return record
        time.sleep(0.05)
    raise SystemExit(f"the run has ended:\n{(folder / 'errors.txt').read_text()}")


def report(undisturbed: list[Measured], killed: list[Measured], seconds: float, every: float, others: float) -> str:
    """Return the table."""
    ratios, recoveries = ratios_of(undisturbed, killed), recoveries_of(killed)
    each = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    turns = "" if len(ratios) == 1 else f", {len(ratios)} times"
    lines = [
        "# Workers that are killed",
        "",
        f"{WORKERS} workers, a validator and a server over ps-lite on one machine; `kill -9` of a random worker every "
        f"{every:g} s, for {seconds:g} s{turns}, after the same run undisturbed.",
        f"{description()}; other programs used {others:.1f} cores. Written by `benchmarks/survival.py`.",
        "",
        "| | undisturbed | killed |",
        "|---|---:|---:|",
        f"| combined updates | {total(undisturbed)} | {total(killed)} |",
        f"| kills | 0 | {sum(each.kills for each in killed)} |",
        f"| median seconds of a round | {middle(undisturbed):.2f} | {middle(killed):.2f} |",
        "",
        f"Goodput: {statistics.mean(ratios):.3f} ({each}; bar {GOODPUT}). Seconds from the end of a process to the end "
        f"of the next round: median {statistics.median(recoveries):.2f} (bar {RECOVERY:g}), largest "
        f"{recoveries[-1]:.2f}.",
    ]
    return "\n".join(lines) + "\n"


def ratios_of(undisturbed: list[Measured], killed: list[Measured]) -> list[float]:
    """Return the goodput of each pair of runs."""
    return [k.updates / u.updates for u, k in zip(undisturbed, killed, strict=True)]


def recoveries_of(killed: list[Measured]) -> list[float]:
    """Return all recoveries, the shortest first."""
    return sorted(recovery for each in killed for recovery in each.recoveries)


def bars_of(undisturbed: list[Measured], killed: list[Measured], every: float) -> list[Bar]:
    """Return the goodput and the median recovery."""
    what, goodput = f"a worker is killed every {every:g} s", statistics.mean(ratios_of(undisturbed, killed))
    recovery = statistics.median(recoveries_of(killed))
    return [
        Bar.at_least(f"{what}: updates over those of an undisturbed run", goodput, GOODPUT),
        Bar.at_most(f"{what}: seconds until the next round ends, median", recovery, RECOVERY),
    ]


def total(runs: list[Measured]) -> int:
    return sum(each.updates for each in runs)


def middle(runs: list[Measured]) -> float:
    return statistics.median(each.round for each in runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="the length of each run (default: 600)")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two kills (default: 15)")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results", help="the folder of results")
    args = parser.parse_args()
    clean_up_on_sigterm()
    others = Others()
    undisturbed: list[Measured] = []
    killed: list[Measured] = []
    (ROOT / "build").mkdir(exist_ok=True)
    for repeat in range(args.repeats):
        for runs, every in ((undisturbed, None), (killed, args.every)):
            with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
                runs.append(measure(Path(folder), args.seconds, every, repeat))
            print(f"{'killed' if every else 'undisturbed'}: {runs[-1]}", flush=True)
    text = report(undisturbed, killed, args.seconds, args.every, others.cores())
    print(text)
    (args.output / "survival.md").write_text(text)
    write(args.output, "survival", bars_of(undisturbed, killed, args.every))
    return 0


if __name__ == "__main__":
    sys.exit(main())
