"""Where a role's time goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

# Tasks of roles, and the column of the record that their time is added to.
_COLUMN = {
    "train": "compute",
    "evaluate": "evaluate",
    "combine": "combine",
    "apply": "combine",
    "pack": "exchange",
    "adopt": "exchange",
}


class Stopwatch:
    """Splits wall time into compute, evaluate, combine, exchange and wait, and CPU seconds by task.

    What runs beside the role counts too, once it is over: then the columns are more than the time that has passed.

    Attributes:
        alone: whether there is nobody to take turns with.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], float] = time.process_time,
        *,
        alone: bool = False,
    ) -> None:
        """Begin.

        Args:
            clock: seconds.
            cpu: CPU seconds, without those of what runs beside the role.
            alone: whether `cpu` counts this role only, and there is nobody to take turns with.
        """
        self._clock = clock
        self._cpu_clock = cpu
        self.alone = alone
        self._spent = dict.fromkeys(("compute", "evaluate", "combine", "exchange", "wait"), 0.0)
        self._mark = clock()
        self._cpu = 0.0
        self._cpu_by_task: defaultdict[str, float] = defaultdict(float)
        self._cpu_mark = cpu()
        self._resting = ""

    def enter(self, task: str = "wait") -> None:
        """Begin a turn of the role, if others had theirs: time since its last one goes to a task."""
        if not self.alone:
            self._cpu_mark = self._cpu_clock()
            self._charge_clock(task)

    def rest(self, task: str) -> None:
        """There is nothing to do: end the turn; time until there is goes to a task."""
        if not self.alone:
            self.charge(task)
        elif task != self._resting:
            # What clocks cost is felt: they are looked at as the role goes to rest, not as often as it polls.
            self.work()
            self.charge("exchange")
            self._resting = task

    def work(self) -> None:
        """There is something to do."""
        if self._resting:
            self._charge_clock(self._resting)
            now = self._cpu_clock()
            self._cpu_by_task["wait"] += now - self._cpu_mark
            self._cpu_mark, self._resting = now, ""

    def leave(self) -> None:
        """End the turn."""
        if not self.alone:
            self.charge("exchange")

    def charge(self, task: str) -> None:
        """Add the time since the last charge to a task (`wait` and `exchange` are their own columns)."""
        self._charge_clock(task)
        now = self._cpu_clock()
        self._cpu += now - self._cpu_mark
        self._cpu_by_task[task] += now - self._cpu_mark
        self._cpu_mark = now

    def add(self, task: str, seconds: float, cpu: float) -> None:
        """Add what ran beside the role, which neither clock here has counted."""
        self._spent[_COLUMN.get(task, task)] += seconds
        self._cpu += cpu
        self._cpu_by_task[task] += cpu

    def _charge_clock(self, task: str) -> None:
        now = self._clock()
        self._spent[_COLUMN.get(task, task)] += now - self._mark
        self._mark = now

    def take(self) -> dict[str, float]:
        """Return the seconds per column since the last take, and begin anew.

        `cpu` holds the CPU seconds of all the role did but wait, where it is alone; else those of its turns.
        `cpu_<task>` are those of a task: `train`, `evaluate`, `combine`, `apply`, `pack`, `adopt`, `exchange` (messages
        and records) and `wait` (polls).
        """
        taken = {column: round(seconds, 6) for column, seconds in self._spent.items()}
        taken["cpu"] = round(self._cpu, 6)
        taken |= {f"cpu_{task}": round(seconds, 6) for task, seconds in self._cpu_by_task.items() if seconds}
        self._cpu = 0.0
        self._cpu_by_task.clear()
        self._spent = dict.fromkeys(self._spent, 0.0)
        return taken
