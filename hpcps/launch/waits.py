"""How long a run has been waiting for replacements, as `hpcps run` sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcps.launch.plan import Plan
from hpcps.records.files import Tail
from hpcps.records.run_directory import RunDirectory
from hpcps.records.waits import described, wait_in

_MOST_BYTES = 1 << 30
_LONGEST_LOOK = 5.0
"""Seconds between two looks that count at most: in a longer time, this process was suspended, and so were others."""


@dataclass
class _Wait:
    """What the record of a combiner says since the launch began.

    Attributes:
        tail: its new lines.
        line: the line with which its wait began; None if it does not wait.
        seconds: how long it has been waiting.
    """

    tail: Tail
    line: Mapping[str, Any] | None = None
    seconds: float = 0.0

    def look(self, passed: float) -> None:
        """Read the new lines; so many seconds have passed."""
        before, self.line = self.line, wait_in(self.tail.read(), self.line)
        self.seconds = 0.0 if before is None or self.line is None else self.seconds + passed


class Waits:
    """Notices that a round of a launch has been waiting for longer than `survive.wait`."""

    def __init__(self, plan: Plan, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin to observe the runs of a plan, before its processes start; `clock` returns seconds."""
        self._longest, self._clock = plan.longest_wait, clock
        self._looked = clock()
        self._waits: dict[Path, _Wait] = {}
        for run in plan.runs if self._longest is not None else ():
            for record in RunDirectory(Path(run.directory)).records:  # of earlier attempts
                self._waits[record] = _Wait(Tail(record, 0))
                self._waits[record].tail.read()

    def too_long(self, run: RunDirectory | None) -> str:
        """Return who has been waiting for too long in the present run; empty if nobody has."""
        now = self._clock()
        passed, self._looked = min(now - self._looked, _LONGEST_LOOK), now
        if self._longest is None or run is None:
            return ""
        for record in run.records:
            if record.stem == "server-0" or record.stem.startswith("validator-"):
                wait = self._waits.setdefault(record, _Wait(Tail(record, _MOST_BYTES)))
                wait.look(passed)
                if wait.line is not None and wait.seconds >= self._longest:
                    return described(wait.line)
        return ""
