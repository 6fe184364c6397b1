"""The file by which a launch is asked to stop.

A file, because it reaches the ranks on all hosts, whatever their launcher does with signals.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

PATIENCE = 30
"""Seconds that a run gets to reach its next checkpoint, once a person or a signal wants it to stop."""

_AT_ONCE = "at once"


class StopFile:
    """Beside the plan of a launch: its presence asks the run to stop at its next checkpoint."""

    def __init__(self, plan_file: Path) -> None:
        """Name it; it need not be there."""
        self.path = plan_file.with_name(f"{plan_file.name}.stop")

    def requested(self) -> bool:
        """Whether somebody wants the launch to stop."""
        return self.path.exists()

    def ask(self, *, at_once: bool = False) -> None:
        """Ask it to stop at the next checkpoint, or, with the signal that follows, at once."""
        with suppress(OSError):  # on a full disk, say: the signal has to do
            if at_once:
                self.path.write_text(_AT_ONCE)
            else:
                self.path.touch()

    def clear(self) -> None:
        """Take the request back."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def listener(self, stop: Callable[[int], None]) -> Callable[[int, FrameType | None], None]:
        """Return a handler of INT, TERM and ALRM for a rank.

        A batch system sends TERM to every process when it wants a job's end: the first one asks for a checkpoint.

        Args:
            stop: called with the signal's number when it is time to stop at once.
        """

        def hear(number: int, frame: FrameType | None) -> None:
            if number == signal.SIGTERM and not self._at_once():
                if not signal.getitimer(signal.ITIMER_REAL)[0]:
                    self.ask()
                    signal.alarm(PATIENCE)
                return
            stop(signal.SIGTERM if number == signal.SIGALRM else number)

        return hear

    def _at_once(self) -> bool:
        try:
            return self.path.read_text() == _AT_ONCE
        except OSError:
            return False
