"""Events that a role gets at a later time: the ends of pauses and of slowed computations."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import replace

from hpcps.roles.events import Computed, Event


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
        return replace(event, seconds=event.seconds + self._clock() - until) if isinstance(event, Computed) else event
