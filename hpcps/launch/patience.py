"""How long a run has been waiting for replacements, as `hpcps run` sees it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from hpcps.launch.plan import Plan
from hpcps.records.files import Tail
from hpcps.records.run_directory import RunDirectory
from hpcps.records.waits import Waits, described

_MOST_BYTES = 1 << 30
_LONGEST_LOOK = 5.0
"""Seconds between two looks that count at most: in a longer time, this process was suspended, and so were others."""


class Patience:
    """Notices that a round of a launch has been waiting for longer than `survive.wait`."""

    def __init__(self, plan: Plan, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin to observe the runs of a plan, before its processes start; `clock` returns seconds."""
        self._longest, self._clock = plan.longest_wait, clock
        self._looked = clock()
        self._tails: dict[Path, Tail] = {}
        self._waits: dict[Path, Waits] = {}
        # The seconds that each combiner has been waiting in a round, by its record and the round.
        self._waited: dict[tuple[str, object], float] = {}
        for run in plan.runs if self._longest is not None else ():
            for record in RunDirectory(Path(run.directory)).records:  # of earlier attempts
                self._tails[record] = Tail(record, 0)
                self._tails[record].read()

    def is_over(self, run: RunDirectory | None) -> str:
        """Return who has been waiting for too long in the present run; empty if nobody has."""
        now = self._clock()
        passed, self._looked = min(now - self._looked, _LONGEST_LOOK), now
        if self._longest is None or run is None:
            return ""
        waits = self._waits.setdefault(run.path, Waits())
        for record in run.records:
            if record.stem == "server-0" or record.stem.startswith("validator-"):
                tail = self._tails.setdefault(record, Tail(record, _MOST_BYTES))
                waits.read(record.stem, tail.read())
        before, self._waited = self._waited, {}
        for process, line in waits.lines.items():
            place = process, line.get("round")
            self._waited[place] = before[place] + passed if place in before else 0.0
            if self._waited[place] >= self._longest:
                return described(line)
        return ""
