"""Repeat the shape of ByzFL's sample benchmark with ByzFL and with hpcps, side by side: `make byzfl-benchmark`.

`python benchmarks/byzfl_benchmark.py [--hours H] [--data DATA] [--steps N] [--seeds N] [--output FOLDER]`. Both train
each cell with the same samples, the same split among honest workers and the same initial weights, one after another,
each in a process of its own with one thread. A learning rate is chosen once for each rule on held-out samples. Killed
or out of time, it goes on where it was when it is started again. It writes `byzfl.jsonl`, the results, and the page
`byzfl.md` with its figures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from byzfl_peer import environment
from byzfl_report import write
from byzfl_results import Results, Training
from byzfl_study import CELLS, MODELS, NAMES, SEEDS, SIDES, Cell, Settings, Side, cells, searched_cells
from exchanges import PEERS
from machine import description
from processes import ROOT, AnsweringProcess, MeasurementError, clean_up_on_sigterm

import hpcps
from hpcps.errors import HpcpsError

TIMEOUT = 3600.0
"""The time limit of a training, in seconds."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")


class TrainingProcess:
    """A process that trains for each line of its input."""

    def __init__(self, side: Side, python: Path, program: Path) -> None:
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = ONE_THREAD | {"PYTHONPATH": paths}
        self._process = AnsweringProcess(NAMES[side], [python, program], TIMEOUT, variables)

    def train(self, request: dict[str, Any]) -> Training:
        """Train once.

        Raises:
            MeasurementError: the process ended, or did not answer in time.
        """
        return Training(**json.loads(self._process.ask(json.dumps(request))))

    def close(self) -> None:
        """End it."""
        self._process.close()


class Pair:
    """Both libraries, each in its process.

    Attributes:
        apart: the largest difference of two final parameters of the last cell; it tests the two.
    """

    apart: float

    def __init__(self, settings: Settings, byzfl: TrainingProcess, ours: TrainingProcess) -> None:
        self._settings, self._processes = settings, {"byzfl": byzfl, "hpcps": ours}

    def train(self, cell: Cell) -> dict[Side, Training]:
        """Train a cell with ByzFL, then with hpcps."""
        described = self._settings.experiment(cell)
        with tempfile.TemporaryDirectory(prefix="hpcps-byzfl-") as temporary:
            folder = Path(temporary)
            requests = {
                "byzfl": self._settings.request(cell, hpcps.load(described), folder),
                "hpcps": {"experiment": described},
            }
            models = {side: folder / f"{side}.npy" for side in SIDES}
            found = {side: self._processes[side].train(requests[side] | {"model": str(models[side])}) for side in SIDES}
            final = [np.load(file) for file in models.values()]
        self.apart = float(np.abs(final[0] - final[1]).max())
        return found


@contextmanager
def pair_of(settings: Settings) -> Iterator[Pair]:
    """Start both libraries, and end them afterwards.

    Raises:
        NotHereError: ByzFL's environment cannot be created on this machine.
    """
    python = environment()
    with ExitStack() as stack:
        byzfl = TrainingProcess("byzfl", python, PEERS / "byzfl_training.py")
        stack.callback(byzfl.close)
        ours = TrainingProcess("hpcps", Path(sys.executable), ROOT / "benchmarks/hpcps_training.py")
        stack.callback(ours.close)
        yield Pair(settings, byzfl, ours)


def train_all(results: Results, seeds: Sequence[int], until: float) -> bool:
    """Train the cells that have no result yet, until the time is over; return whether none is left.

    Args:
        results: the results so far; a cell is added when both libraries have trained it.
        seeds: the seeds.
        until: the time of `time.monotonic` after which no cell begins.

    Raises:
        MeasurementError: a training failed.
        HpcpsError: the settings are wrong.
    """
    searched = [*searched_cells()]
    total, began, trained = len(searched) + len(seeds) * CELLS, time.monotonic(), 0
    with pair_of(results.settings) as pair:
        for stage in (lambda: searched, lambda: [*cells(results.rates(), seeds)]):
            for cell in stage():
                if cell in results.found:
                    continue
                if time.monotonic() >= until:
                    return False
                found = pair.train(cell)
                results.add(cell, found)
                trained += 1
                each = "; ".join(
                    f"{NAMES[side]} {100 * one.accuracy:.1f} % in {one.cpu:.1f} CPU s" for side, one in found.items()
                )
                left = (total - len(results.found)) * (time.monotonic() - began) / trained / 3600
                print(f"{len(results.found)} of {total}: {cell.label}: {each}; {left:.1f} h left", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=4.0, help="begin no training after so many hours (default: 4)")
    parser.add_argument("--data", choices=sorted(MODELS), default="digits", help="the data set (default: digits)")
    parser.add_argument("--dir", help="the folder of its files (default: $HPCPS_DATA)")
    parser.add_argument("--limit", type=int, help="training samples in use (default: all)")
    parser.add_argument("--steps", type=int, default=Settings.steps, help="steps of a training (default: 240)")
    parser.add_argument(
        "--seeds",
        type=int,
        choices=range(1, len(SEEDS) + 1),
        default=len(SEEDS),
        help="the number of seeds (default: 3)",
    )
    parser.add_argument("--output", type=Path, default=ROOT / "build/byzfl", help="default: build/byzfl")
    args = parser.parse_args()
    clean_up_on_sigterm()
    settings = Settings(args.data, args.steps, args.limit, folder=args.dir)
    try:
        results = Results.begin(args.output / "byzfl.jsonl", settings)
        results.begin_on(description())
        finished = train_all(results, SEEDS[: args.seeds], time.monotonic() + 3600 * args.hours)
    except (MeasurementError, HpcpsError) as error:
        print(error)
        return 1
    write(results, args.output)
    print(f"wrote {args.output / 'byzfl.md'}" + ("" if finished else "; the same command goes on with the cells left"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
