"""The progress of runs in this process: a bar in a notebook or a terminal, lines in a log, or nothing."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from hpcps.records.display import StatusLine
from hpcps.records.forecast import duration, time_left
from hpcps.records.status import RunStatus
from hpcps.spec.point import Point

_INTERVAL = 0.1
_WIDTH = 24


def shell() -> Any:
    """Return IPython's shell, in which this code runs in a notebook or an IPython terminal; else None."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def is_interactive() -> bool:
    """Tell whether a person types the code, in a notebook or at a prompt."""
    return hasattr(sys, "ps1") or shell() is not None


class ProgressBar:
    """Shows the runs of an experiment one after another; without a stream and outside of notebooks it shows nothing."""

    def __init__(self, points: Sequence[Point], done: int, stream: TextIO | None) -> None:
        """Show nothing yet.

        Args:
            points: the runs to execute.
            done: the number of runs that were done before.
            stream: where to show progress if there is no notebook; None for no progress at all.
        """
        self._line = None if stream is None else StatusLine(stream)
        self._count, self._done = len(points) + done, done
        self._epochs = sum(point.run.train.epochs for point in points)
        self._runs = {point.run_id: _waiting(point) for point in points}
        self._finished = 0.0
        self._point: Point | None = None
        self._epoch, self._accuracy = 0.0, None
        self._began = self._run_began = time.monotonic()
        self._shown = 0.0
        self._handle: Any = None

    _accuracy: float | None

    def begin(self, point: Point) -> None:
        """Show a run as the current one."""
        self._point, self._epoch, self._accuracy = point, 0.0, None
        self._run_began = time.monotonic()
        self._show(now=True)

    def update(self, epoch: float, accuracy: float | None) -> None:
        """Take the finished epochs of the current run, and its test accuracy if it has just been measured."""
        self._epoch = max(self._epoch, epoch)  # an evaluation may end after the next round has begun
        if accuracy is not None:
            self._accuracy = accuracy
        self._show()

    def end(self, state: str) -> None:
        """Show that the current run has ended."""
        if self._point is None:
            return
        took, epochs = time.monotonic() - self._run_began, self._point.run.train.epochs
        if state == "done":
            self._follow(state="done", epoch=float(epochs), pace=took / epochs, left=None)
            self._done += 1
            self._finished += epochs
        else:
            self._follow(state="failed")
        line = f"[{self._done}/{self._count}] {self._run(self._point)}  {state}"
        self._point, self._epoch = None, 0.0
        if self._line is not None and shell_kernel() is None:
            self._line.say(line)

    def note(self, text: str) -> None:
        """Show a line of text."""
        if self._line is not None:
            self._line.say(text)

    def close(self) -> None:
        """Show the final state."""
        self._point = None
        if self._handle is not None:
            self._show(now=True)

    def _show(self, *, now: bool = False) -> None:
        time_now = time.monotonic()
        if self._line is None or (not now and time_now - self._shown < _INTERVAL):
            return
        self._shown = time_now
        if shell_kernel() is not None:
            self._show_in_notebook()
        elif self._line.in_place:
            filled = round(_WIDTH * self._share)
            bar = "#" * filled + "-" * (_WIDTH - filled)
            self._line.show(f"{bar} {self._text()}")

    def _show_in_notebook(self) -> None:
        text = self._text()
        bar = f'<progress value="{self._share:.4f}" max="1" style="width: 16em; vertical-align: middle"></progress>'
        content = {"text/plain": text, "text/html": f"<div>{bar} {html.escape(text)}</div>"}
        if self._handle is None:
            display = sys.modules["IPython"].display.display
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    @property
    def _share(self) -> float:
        return min(1.0, (self._finished + self._epoch) / self._epochs) if self._epochs else 1.0

    def _text(self) -> str:
        took = time.monotonic() - self._began
        if self._point is None:
            return f"{self._done} of {self._count} runs done, {duration(took)}"
        self._follow(state="running", epoch=self._epoch)
        if self._epoch:
            pace = (time.monotonic() - self._run_began) / self._epoch
            self._follow(pace=pace, left=max(0.0, self._point.run.train.epochs - self._epoch) * pace)
        left = time_left([*self._runs.values()])
        return f"[{self._done + 1}/{self._count}] {self._run(self._point)}{f'  {left}' if left else ''}"

    def _follow(self, **changes: Any) -> None:
        """Change the status of the current run."""
        assert self._point is not None
        run_id = self._point.run_id
        self._runs[run_id] = replace(self._runs[run_id], **changes)

    def _run(self, point: Point) -> str:
        accuracy = f"  accuracy {100 * self._accuracy:.1f} %" if self._accuracy is not None else ""
        epoch = f"  epoch {self._epoch:.1f}/{point.run.train.epochs}" if self._epoch else ""
        return f"{point.label}{epoch}{accuracy}"


def _waiting(point: Point) -> RunStatus:
    return RunStatus(Path(), point.run_id, "", "not started").planned(point.label, point.run.model_dump(mode="json"))


def shell_kernel() -> Any:
    """Return the kernel of the notebook in which this code runs; None outside of notebooks."""
    return getattr(shell(), "kernel", None)
