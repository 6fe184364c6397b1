"""Displays the progress of runs in a terminal, or as plain lines in a log."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from typing import Protocol, TextIO

from hpcps.records.forecast import time_left
from hpcps.records.status import RunStatus
from hpcps.spec.tree import Tree

PLAIN_INTERVAL = 30.0
"""Seconds between two lines about a current run where they cannot be updated in place."""


class RunSource(Protocol):
    """Knows the status of some runs."""

    def __len__(self) -> int:
        """Return the number of runs."""

    def poll(self) -> list[RunStatus]:
        """Return the present status of each run."""


class ProgressDisplay:
    """Prints a line for every finished run, and the progress of the current run.

    In a terminal the current line is updated in place; elsewhere (a batch job's output) it is printed at intervals.
    """

    def __init__(
        self, runs: RunSource, stream: TextIO, points: Sequence[tuple[str, Tree]] = (), *, alone: bool = False
    ) -> None:
        """Follow runs.

        Args:
            runs: the runs.
            stream: where to print.
            points: the label and the values of the keys of each run, for the estimate of the remaining time.
            alone: whether each run is one process.
        """
        self._runs = runs
        self._points = points
        self._stream = stream
        self._alone = alone
        self._live = stream.isatty()
        self._count = len(runs)
        self._ended: set[str] = set()
        self._started = self._printed = time.monotonic()
        self._open_line = False

    def __enter__(self) -> ProgressDisplay:
        how = f", {'each ' * (self._count > 1)}in one process ..." if self._alone else "; starting the processes ..."
        self.say(f"{self._count} run{'s' * (self._count > 1)} to execute{how}")
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def say(self, text: str) -> None:
        """Print a separate line."""
        self._clear()
        print(text, file=self._stream, flush=True)

    def update(self) -> None:
        """Read the status of the runs and print changes."""
        runs = self._runs.poll()
        if self._points:
            runs = [run.planned(*point) for run, point in zip(runs, self._points, strict=True)]
        current = []
        for run in runs:
            if run.state == "done" and run.run_id not in self._ended:
                self._ended.add(run.run_id)
                self.say(f"[{len(self._ended):{len(str(self._count))}}/{self._count}] {self._line(run)}")
            elif run.state in ("running", "silent") and run.epochs:
                current.append(run)
        now = time.monotonic()
        if not current or (not self._live and now - self._printed < PLAIN_INTERVAL):
            return
        self._printed = now
        left = time_left(runs)
        rest = f"  {left}" if left is not None else ""
        if len(current) == 1:
            text = f"      {self._line(current[0])}{rest}"
        else:
            each = ", ".join(f"{run.label} {run.epoch:.1f}/{run.epochs}" for run in current)
            text = f"      {len(current)} at a time: {each}{rest}"
        if self._live:
            # A line that wraps cannot be updated in place.
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\033[K{text[:width]}", end="", file=self._stream, flush=True)
            self._open_line = True
        else:
            print(text, file=self._stream, flush=True)

    def _line(self, run: RunStatus) -> str:
        seconds = int(time.monotonic() - self._started)
        parts = [f"{run.label:<24}", f"epoch {run.epoch:5.1f}/{run.epochs}"]
        if run.accuracy is not None:
            parts.append(f"accuracy {100 * run.accuracy:5.1f} %")
        if run.perplexity is not None:
            parts.append(f"perplexity {run.perplexity:6.2f}")
        if run.acceptance.rate is not None:
            parts.append(f"accepted {100 * run.acceptance.rate:5.1f} %")
        elif run.acceptance.accepted is None:
            parts.append("accepted unknown")
        if run.diverged:
            parts.append("diverged")
        if run.stalled:
            parts.append("stalled")
        parts.append(f"{seconds // 60}:{seconds % 60:02}")
        return "  ".join(parts)

    def _clear(self) -> None:
        if self._open_line:
            print("\r\033[K", end="", file=self._stream)
            self._open_line = False
