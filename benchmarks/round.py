"""Measure a synchronous round of hpcps and its peers: n workers send M bytes of float32, and all get the new model.

    .venv/bin/python benchmarks/round.py [--quick] [--peers none] [--ranks 4 16] [--output benchmarks/results]

Time runs from the moment at which all updates are in their buffers until the last worker has the result. The buffer of
an update of hpcps is the shared memory in which packing writes it, and a peer copies its buffer within the measured
time; so hpcps is measured from before packing, too. hpcps runs its launcher, roles and transport without training
(`hpcps_rank.py`), and adds the mean to the model. A peer computes the sum in place. All are measured in turn, several
times, so that other load on the machine affects all of them; copies are measured likewise. Without `--output` the
report is only printed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bars import write
from exchanges import OTHER_PEERS, OURS, Exchange, yardstick
from launches import Case, Measured
from machine import Others
from processes import TOO_LARGE, MeasurementError, NotHereError, clean_up_on_sigterm
from round_report import ADOPTED, PACKED, Findings, Found, Table, bars, draw, report

ROUNDS = {1: 80, 4: 60, 16: 24, 64: 14, 256: 6}
"""The maximum number of rounds of a launch, by MB; a slow peer runs fewer."""


def cases(megabytes: Sequence[int], ranks: int, seconds: float) -> list[Case]:
    """Return the cases, with fewer rounds for many ranks and large updates."""
    most = {size: min(rounds for limit, rounds in ROUNDS.items() if limit <= size) for size in megabytes}
    return [Case(size << 18, max(3, most[size] // (1 + ranks // 8)), seconds) for size in megabytes]


def measure(args: argparse.Namespace, exchanges: Sequence[Exchange]) -> Iterator[Findings]:
    """Measure all exchanges in turn; yield the results so far after each turn."""
    findings = Findings()
    found = findings.found
    for repeat in range(args.repeats):
        for ranks in args.ranks:
            asked = cases(args.sizes, ranks, args.seconds)
            copies = [(yardstick(ranks), processes, f"copy-{processes}") for processes in (1, 2)]
            names = [(e, f"{e.name}{end}") for e in exchanges for end in (("", PACKED) if e.ours else ("",))]
            for exchange, processes, name in [*((e, ranks, name) for e, name in names), *copies]:
                here = [case for case in asked if ranks * case.megabytes <= exchange.limit]
                here = [replace(case, packs=name.endswith(PACKED)) for case in here]
                if len(here) < len(asked):
                    too_slow = f"more than {exchange.limit / 1024:g} GB in all: too slow"
                    findings.absent[f"{exchange.title}, {ranks} ranks"] = too_slow
                began = time.monotonic()
                try:
                    measured, absent = exchange.measure(processes, here, args.timeout), False
                except MeasurementError as error:
                    measured, absent = Measured([], str(error)), isinstance(error, NotHereError)
                problem, rounds = measured.problem, measured.rounds
                if problem:
                    kept = findings.absent if absent or problem == TOO_LARGE else findings.failed
                    kept[f"{exchange.title}, {ranks} ranks"] = problem
                if name.endswith(PACKED):
                    rounds = measured.adopted
                _add(found, name, ranks, here, rounds)
                if name == exchange.name and exchange.ours:
                    _add(found, f"{name}{ADOPTED}", ranks, here, measured.adopted)
                told = " ".join(f"{statistics.median(s) * 1e3:.1f}" if s else "-" for s in rounds)
                print(
                    f"{repeat}: {name}, {ranks} ranks: {told} ms {problem} ({time.monotonic() - began:.0f} s)",
                    flush=True,
                )
        findings.repeats = repeat + 1
        yield findings


def _add(found: Found, name: str, ranks: int, here: Sequence[Case], rounds: Sequence[Sequence[float]]) -> None:
    for case, seconds in zip(here, rounds, strict=False):
        if seconds:
            key = ranks, int(case.megabytes)
            found.setdefault(name, {}).setdefault(key, []).append(statistics.median(seconds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="4 ranks, 1, 16 and 64 MB, one launch each")
    parser.add_argument("--peers", nargs="*", help="names of peers (none: hpcps alone); default: all")
    parser.add_argument("--ranks", nargs="*", type=int, default=[4, 16])
    parser.add_argument("--sizes", nargs="*", type=int, default=[1, 4, 16, 64, 256], help="MB of an update")
    parser.add_argument("--repeats", type=int, default=3, help="launches of each")
    parser.add_argument("--seconds", type=float, default=1.5, help="how long a peer measures a size, about")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for a launch")
    parser.add_argument("--output", type=Path, help="the folder for round.md and round.png")
    args = parser.parse_args()
    clean_up_on_sigterm()
    if args.quick:
        args.ranks, args.sizes, args.repeats, args.seconds = [4], [1, 16, 64], 1, 0.5
    known = {exchange.name: exchange for exchange in OTHER_PEERS}
    names = list(known) if args.peers is None else [name for name in args.peers if name != "none"]
    if unknown := [name for name in names if name not in known]:
        parser.error(f"unknown peers {', '.join(unknown)}; there are {', '.join(known)}")
    exchanges = [*OURS, *(known[name] for name in names)]
    others = Others()
    text, findings = "", Findings()
    for findings in measure(args, exchanges):
        table = Table(findings.found, exchanges)
        text = report(table, findings, others.cores())
        # The results so far are written, whatever a later turn does.
        if args.output and table.cases:
            args.output.mkdir(parents=True, exist_ok=True)
            (args.output / "round.md").write_text(text, encoding="utf-8")
            write(args.output, "round", bars(table.verdicts()))
            draw(table, args.output / "round.png")
    print(text)
    for name, how in findings.failed.items():
        print(f"failed: {name}: {how}", flush=True)
    return 1 if findings.failed else 0


if __name__ == "__main__":
    sys.exit(main())
