"""The progress of a launch that no `hpcps run` supervises, such as an `mpirun` typed by hand."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

from hpcps.launch.plan import Plan
from hpcps.records.display import PLAIN_INTERVAL, ProgressDisplay
from hpcps.records.status import RunStatus, SweepProgress


class LaunchProgress:
    """Prints the progress of the runs of a plan, which it reads from their files as `hpcps run` does."""

    def __init__(self, plan: Plan) -> None:
        """Print the number of runs."""
        self._followed = SweepProgress([Path(run.directory) for run in plan.runs])
        self._finished: set[str] = set()
        self._printed = time.monotonic()
        self._display = ProgressDisplay(self, sys.stdout, [(run.label, run.spec["run"]) for run in plan.runs])
        self._display.say(f"hpcps: {len(self)} run{'s' * (len(self) > 1)} to execute")

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._followed)

    def poll(self) -> list[RunStatus]:
        """Return the status of each run."""
        # A shared file system may show the last files of a run to this host only later.
        return [
            replace(run, state="done", epoch=float(run.epochs)) if run.run_id in self._finished else run
            for run in self._followed.poll()
        ]

    def update(self) -> None:
        """Print the progress if the last time was a while ago."""
        if time.monotonic() - self._printed > PLAIN_INTERVAL:
            self._printed = time.monotonic()
            self._display.update()

    def finish(self, run_id: str) -> None:
        """Print that a run is done."""
        self._finished.add(run_id)
        self._display.update()
