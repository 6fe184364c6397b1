"""How long a run has been waiting for replacements, as `hpcps run` sees it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hpcps.launch.plan import Plan
from hpcps.records.files import Tail
from hpcps.records.run_directory import RunDirectory
from hpcps.records.waits import described, wait_in

_LAST_BYTES = 65536


class Waits:
    """Notices that a round has been waiting for longer than `survive.wait`, by records that have not changed since."""

    def __init__(self, plan: Plan, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin to observe the runs of a plan; `clock` returns seconds."""
        self._longest, self._clock = plan.longest_wait, clock
        self._since: dict[Path, tuple[int, float]] = {}

    def too_long(self, run: RunDirectory | None) -> str:
        """Return who has been waiting for too long in the present run; empty if nobody has."""
        if self._longest is None or run is None:
            return ""
        for record in run.records:
            if record.stem == "server-0" or record.stem.startswith("validator-"):
                with suppress(OSError):
                    size, now = record.stat().st_size, self._clock()
                    before, since = self._since.get(record, (-1, now))
                    self._since[record] = size, since if before == size else now
                    if before == size and now - since >= self._longest:
                        wait = wait_in(Tail(record, _LAST_BYTES).read())
                        if wait is not None:
                            return described(wait)
        return ""
