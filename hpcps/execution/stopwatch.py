"""The times of a role: a stopwatch for each kind of task, and the events that it gets later."""

from __future__ import annotations

import time
from bisect import insort
from collections import defaultdict
from collections.abc import Callable

from hpcps.roles.events import Computed, Event

# The column of the record to which the time of each task is added.
_COLUMN = {
    "train": "compute",
    "evaluate": "evaluate",
    "combine": "combine",
    "apply": "combine",
    "craft": "combine",
    "audit": "combine",
    "pack": "exchange",
    "adopt": "exchange",
}


class Stopwatch:
    """Splits wall time into compute, evaluate, combine, exchange and wait, and CPU seconds by task.

    Background work counts when it has finished; the sum of the columns can then exceed the elapsed time.

    Attributes:
        alone: whether this is the only role of the process.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], float] = time.process_time,
        *,
        alone: bool = False,
    ) -> None:
        """Start measuring.

        Args:
            clock: returns seconds.
            cpu: returns CPU seconds, without those of background work.
            alone: whether this is the only role of the process, so that `cpu` counts this role only.
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
        """Start a turn of the role, if the process has several roles; the time since its last turn counts as `task`."""
        if not self.alone:
            self._cpu_mark = self._cpu_clock()
            self._charge_clock(task)

    def rest(self, task: str) -> None:
        """End the turn because the role has no event; the time until its next event counts as `task`."""
        if not self.alone:
            self.charge(task)
        elif task != self._resting:
            # Reading clocks has a measurable cost: read them once when the role starts to wait, not on every poll.
            self.work()
            self.charge("exchange")
            self._resting = task

    def work(self) -> None:
        """End the wait because the role has an event."""
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
        """Add the time of background work, which neither clock has counted."""
        self._spent[_COLUMN.get(task, task)] += seconds
        self._cpu += cpu
        self._cpu_by_task[task] += cpu

    def _charge_clock(self, task: str) -> None:
        now = self._clock()
        self._spent[_COLUMN.get(task, task)] += now - self._mark
        self._mark = now

    def take(self) -> dict[str, float]:
        """Return the seconds per column since the last call, and reset them.

        `cpu` holds the CPU seconds of the role without its waits, if it is the only role of the process; else those of
        its turns. `cpu_<task>` holds the CPU seconds of a task: `train`, `evaluate`, `combine`, `apply`, `craft`,
        `pack`, `adopt`, `exchange` (messages and records) and `wait` (polls).
        """
        taken = {column: round(seconds, 6) for column, seconds in self._spent.items()}
        taken["cpu"] = round(self._cpu, 6)
        taken |= {f"cpu_{task}": round(seconds, 6) for task, seconds in self._cpu_by_task.items() if seconds}
        self._cpu = 0.0
        self._cpu_by_task.clear()
        self._spent = dict.fromkeys(self._spent, 0.0)
        return taken


class Alarms:
    """The events, in order of their times."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Set none; `clock` returns seconds."""
        self._clock = clock
        self._set: list[tuple[float, Event]] = []

    def set(self, time: float, event: Event) -> None:
        """Set an event for a time."""
        insort(self._set, (time, event), key=lambda alarm: alarm[0])

    @property
    def next(self) -> float | None:
        """The time of the first event; None if there is none."""
        return self._set[0][0] if self._set else None

    @property
    def left(self) -> tuple[tuple[float, Event], ...]:
        """The seconds until each event, and the events."""
        now = self._clock()
        return tuple((until - now, event) for until, event in self._set)

    @property
    def kind(self) -> str:
        """What the role does until then: `train` if a computation is slowed, `pause`, or `wait` without an event."""
        slowed = any(isinstance(event, Computed) for _, event in self._set)
        return "train" if slowed else "pause" if self._set else "wait"

    def due(self) -> Event | None:
        """Return the first event if its time has come; a slowed computation has taken until now."""
        return self.pop() if self._set and self._clock() >= self._set[0][0] else None

    def pop(self) -> Event | None:
        """Return the first event, as if its time had come; None if there is none."""
        if not self._set:
            return None
        until, event = self._set.pop(0)
        return event._replace(seconds=event.seconds + self._clock() - until) if isinstance(event, Computed) else event
