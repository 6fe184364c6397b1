"""Displays the progress of runs in a terminal, or as plain lines in a log."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
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


class StatusLine:
    """A line that is updated in place if the stream is a terminal; other lines are printed above it."""

    def __init__(self, stream: TextIO) -> None:
        """Show nothing yet."""
        self._stream = stream
        self.in_place = stream.isatty()
        self._open = False

    def show(self, text: str) -> None:
        """Replace the line in a terminal, and cut it to its width: one that wraps cannot be updated in place."""
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\033[K{text[:width]}", end="", file=self._stream, flush=True)
        self._open = True

    def say(self, text: str) -> None:
        """Print a separate line, in place of the one that is shown."""
        self.clear()
        print(text, file=self._stream, flush=True)

    def clear(self) -> None:
        """Remove the line."""
        if self._open:
            print("\r\033[K", end="", file=self._stream)
            self._open = False


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
        self._line = StatusLine(stream)
        self._alone = alone
        self._count = len(runs)
        self._finished: set[str] = set()
        self._ended: set[str] = set()
        self._started = self._printed = self._read = time.monotonic()

    def __enter__(self) -> ProgressDisplay:
        how = f", {'each ' * (self._count > 1)}in one process ..." if self._alone else "; starting the processes ..."
        self.say(f"{self._count} run{'s' * (self._count > 1)} to execute{how}")
        return self

    def __exit__(self, *_: object) -> None:
        self._line.clear()

    def say(self, text: str) -> None:
        """Print a separate line."""
        self._line.say(text)

    def finish(self, run_id: str) -> None:
        """Print that a run is done, whose last files another host may see only later."""
        self._finished.add(run_id)
        self.update()

    def update_seldom(self) -> None:
        """Read the status of the runs if the last time was a while ago: it costs a process of a run some time."""
        if time.monotonic() - self._read > PLAIN_INTERVAL:
            self.update()

    def update(self) -> None:
        """Read the status of the runs and print changes."""
        self._read = time.monotonic()
        runs = [
            replace(run, state="done", epoch=float(run.epochs)) if run.run_id in self._finished else run
            for run in self._runs.poll()
        ]
        if self._points:
            runs = [run.planned(*point) for run, point in zip(runs, self._points, strict=True)]
        current = []
        for run in runs:
            if run.state == "done" and run.run_id not in self._ended:
                self._ended.add(run.run_id)
                self.say(f"[{len(self._ended):{len(str(self._count))}}/{self._count}] {self._described(run)}")
            elif run.state in ("running", "silent") and run.epochs:
                current.append(run)
        now = time.monotonic()
        if not current or (not self._line.in_place and now - self._printed < PLAIN_INTERVAL):
            return
        self._printed = now
        left = time_left(runs)
        rest = f"  {left}" if left is not None else ""
        if len(current) == 1:
            text = f"      {self._described(current[0])}{rest}"
        else:
            each = ", ".join(f"{run.label} {run.epoch:.1f}/{run.epochs}" for run in current)
            text = f"      {len(current)} at a time: {each}{rest}"
        if self._line.in_place:
            self._line.show(text)
        else:
            self._line.say(text)

    def _described(self, run: RunStatus) -> str:
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
        if run.lost:
            parts.append(f"{len(run.lost)} process{'es' * (len(run.lost) > 1)} lost")
        if run.excluded:
            parts.append(f"{len(run.excluded)} worker{'s' * (len(run.excluded) > 1)} excluded")
        parts.append(f"{seconds // 60}:{seconds % 60:02}")
        return "  ".join(parts)
