"""Where a role's time goes."""

from __future__ import annotations

import time

# Tasks of roles, and the column of the record that their time is added to.
_COLUMN = {"train": "compute", "evaluate": "evaluate", "combine": "combine", "pack": "exchange", "adopt": "exchange"}


class Stopwatch:
    """Splits wall time into compute, evaluate, combine, exchange and wait; counts the CPU seconds of a role's turns."""

    def __init__(self) -> None:
        self._spent = dict.fromkeys(("compute", "evaluate", "combine", "exchange", "wait"), 0.0)
        self._mark = time.perf_counter()
        self._cpu = 0.0
        self._cpu_mark = time.process_time()

    def enter(self) -> None:
        """Begin a turn of the role: what passed since its last one was waiting, and other roles' CPU time."""
        self.charge("wait")
        self._cpu_mark = time.process_time()

    def leave(self, task: str) -> None:
        """End the turn."""
        self.charge(task)
        self._count_cpu()

    def _count_cpu(self) -> None:
        now = time.process_time()
        self._cpu += now - self._cpu_mark
        self._cpu_mark = now

    def charge(self, task: str) -> None:
        """Add the time since the last charge to a task (`wait` and `exchange` are their own columns)."""
        now = time.perf_counter()
        self._spent[_COLUMN.get(task, task)] += now - self._mark
        self._mark = now

    def take(self) -> dict[str, float]:
        """Return the seconds per column since the last take, and begin anew."""
        self._count_cpu()
        taken = {column: round(seconds, 6) for column, seconds in self._spent.items()}
        taken["cpu"] = round(self._cpu, 6)
        self._cpu = 0.0
        self._spent = dict.fromkeys(self._spent, 0.0)
        return taken
