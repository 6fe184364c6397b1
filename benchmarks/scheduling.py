"""Measure priorities and the cross barrier of people's own scripts (`hpcps.torch`) between hosts.

    .venv/bin/python benchmarks/scheduling.py [--quick] [--only tensors model small_model] [--output benchmarks/results]

Each of four workers and four servers is on a host of its own (a network namespace). Links have 1 Gbit/s:

- `tensors`: 20 tensors of 64 MB in all, the last layer's begun first: when the first layer's result is there in all
  processes, and when all results are, with priorities and without them and without a bound of the bytes on their way;
- `model`: a step of a network with as many parameters in each layer as VGG 16, whose last layers are large, with
  CrossBarrier, with DistributedOptimizer, and with DistributedDataParallel over gloo. Computing is a timed wait in each
  layer; together they take as long as an exchange of all gradients;
- `small_model`: the same with a ninth of the parameters, so that what each tensor and each message takes weighs more.

Without `--output` the report is only printed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from bars import Bar, write
from hosts import Network
from machine import Others, description
from own_script import PROCESSES, SERVERS, Columns, measure
from processes import MeasurementError, NotHereError, clean_up_on_sigterm
from scheduling_rank import CONNECTED, CONVOLUTIONS, SMALL, WITHIN

GIGABITS = 1.0
"""The speed of links."""
FIRST, WHOLE = 0.5, 1.05
"""The highest ratios of the time of the first layer's result, and of all, with priorities to that without."""
STEP, PEER = 0.87, 0.7
"""The highest ratios of a step with the cross barrier to one with DistributedOptimizer, and with gloo."""
PROGRAM = Path(__file__).with_name("scheduling_rank.py")


def _measured(what: str, turns: int) -> Columns:
    with Network(PROCESSES + SERVERS, GIGABITS) as network:
        return measure(what, turns, SERVERS, network, PROGRAM)


def tensors(turns: int) -> tuple[Columns, list[Bar]]:
    """20 tensors, the last layer's begun first."""
    found = _measured("tensors", turns)
    begun = max(max(found[f"begun, {mode} priorities"][0]) for mode in ("with", "without"))
    if begun > WITHIN:
        print(f"the tensors were begun within {1e3 * begun:.1f} ms, and not {1e3 * WITHIN:g}: the machine is busy")
    where = f"20 tensors of 64 MB, {PROCESSES} workers, {SERVERS} servers, {GIGABITS:g} Gbit/s"
    return found, [
        Bar.at_most(f"{what} with priorities beside that without, {where}", _ratio(found, kind), limit)
        for what, kind, limit in (("the first layer's result", "first layer", FIRST), ("the whole", "whole", WHOLE))
    ]


def _ratio(found: Columns, what: str) -> float:
    """Return the ratio of the times with and without priorities."""
    return _median(found, f"{what}, with priorities") / _median(found, f"{what}, without priorities")


def model(turns: int) -> tuple[Columns, list[Bar]]:
    """A step of a network as large as VGG 16."""
    return _steps("model", turns, 1)


def small_model(turns: int) -> tuple[Columns, list[Bar]]:
    """A step of a network with a ninth of the parameters of VGG 16."""
    return _steps("small_model", turns, SMALL)


def _steps(what: str, turns: int, smaller: int) -> tuple[Columns, list[Bar]]:
    found = _measured(what, turns)
    megabytes = sum(elements // smaller for elements in (*CONVOLUTIONS, *CONNECTED)) * 4e-6
    where = f"a network like VGG 16 of {megabytes:.0f} MB, {PROCESSES} workers, {SERVERS} servers, {GIGABITS:g} Gbit/s"
    return found, [
        Bar.at_most(
            f"a step with CrossBarrier beside {peer}, {where}",
            _median(found, "CrossBarrier") / _median(found, peer),
            limit,
        )
        for peer, limit in (("DistributedOptimizer", STEP), ("DDP with gloo", PEER))
    ]


PARTS: dict[str, tuple[Callable[[int], tuple[Columns, list[Bar]]], int]] = {
    "tensors": (tensors, 7),
    "model": (model, 3),
    "small_model": (small_model, 3),
}
"""The parts, and the number of turns of each."""


def _median(found: Columns, name: str) -> float:
    return statistics.median(found[name][0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one turn")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="these parts")
    parser.add_argument("--output", type=Path, help="the folder for scheduling.md")
    args = parser.parse_args()
    clean_up_on_sigterm()
    others = Others()
    lines, bars, failed = list[str](), list[Bar](), False
    for name in args.only:
        part, turns = PARTS[name]
        text = [f"## {(part.__doc__ or name).rstrip('.')}", ""]
        try:
            columns, found = part(1 if args.quick else turns)
            rows = [
                f"| {what} | {1e3 * statistics.median(times):.0f} | {1e3 * min(times):.0f} |"
                for what, (times,) in columns.items()
            ]
            text += ["| | Time | Minimum |", "|---|---|---|", *rows]
            bars += found
            text += ["", *(f"- {bar.what}: {bar.measured} (wanted: {bar.wanted})" for bar in found)]
        except MeasurementError as error:
            text.append(f"{name}: {error}")
            failed |= not isinstance(error, NotHereError)
        lines += ["", *text]
        print("\n".join(["", *text]), flush=True)
    about = f"{description()}; other processes used {others.cores():.1f} cores."
    print(f"\n{about}")
    if args.output:
        times = "Medians and minima over the turns, in ms, of the process that is last."
        args.output.mkdir(parents=True, exist_ok=True)
        page = ["# Priorities and the cross barrier", "", about, times, *lines]
        (args.output / "scheduling.md").write_text("\n".join(page) + "\n", encoding="utf-8")
        write(args.output, "scheduling", bars)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
