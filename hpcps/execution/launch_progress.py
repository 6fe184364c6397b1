"""The progress of a launch that no `hpcps run` supervises, such as an `mpirun` typed by hand."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcps.inputs import finite
from hpcps.launch.plan import Plan, PlannedRun
from hpcps.records.display import PLAIN_INTERVAL, ProgressDisplay
from hpcps.records.files import decode_all
from hpcps.records.status import RunStatus, State, SweepProgress


class LaunchProgress:
    """Prints the progress of the runs of a plan, from the lines that the coordinator writes to its records."""

    def __init__(self, plan: Plan) -> None:
        """Print the number of runs."""
        self._plan = plan
        self._runs = [_status(run) for run in plan.runs]
        self._followed = SweepProgress([])
        self._current = -1
        self._lines: dict[str, bytes] = {}
        self._printed = time.monotonic()
        self._display = ProgressDisplay(self, sys.stdout)
        self._display.say(f"hpcps: {len(self)} run{'s' * (len(self) > 1)} to execute")

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._runs)

    def poll(self) -> list[RunStatus]:
        """Return the status of each run."""
        return self._runs

    def begin(self) -> None:
        """Begin with the next run."""
        self._current += 1
        self._lines = {}
        self._followed = SweepProgress([Path(self._plan.runs[self._current].directory)])

    def take(self, event: str, line: bytes) -> None:
        """Take a line of the coordinator's record; print the progress from time to time."""
        self._lines.setdefault(f"first {event}", line)
        self._lines[event] = line
        if time.monotonic() - self._printed > PLAIN_INTERVAL:
            self._print("running")

    def finish(self) -> None:
        """Print that the current run is done."""
        self._print("done")

    def _print(self, state: State) -> None:
        self._printed = time.monotonic()
        first, last, evaluation = (self._line(event) for event in ("first round", "round", "evaluation"))
        run = self._runs[self._current]
        epochs, took = (finite(last.get(name)) - finite(first.get(name)) for name in ("epoch", "time"))
        epoch = min(max(finite(last.get("epoch")), finite(evaluation.get("epoch"))), run.epochs)
        pace = took / epochs if epochs > 0 else None
        self._runs[self._current] = replace(
            run,
            state=state,
            epoch=epoch,
            pace=pace,
            left=(run.epochs - epoch) * pace if pace is not None else None,
            accuracy=finite(evaluation.get("accuracy")) if evaluation else None,
            acceptance=self._followed.poll()[0].acceptance,
            diverged="diverged" in self._lines,
        )
        self._display.update()

    def _line(self, event: str) -> dict[str, Any]:
        """Return the values of a line; none if the coordinator has written no such line."""
        return next(iter(decode_all(self._lines.get(event, b"")).lines), {})


def _status(run: PlannedRun) -> RunStatus:
    return RunStatus(Path(run.directory), run.run_id, "", "not started").planned(run.label, run.spec["run"])
