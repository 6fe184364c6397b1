"""The event queue of virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

Action = Callable[[], None]


class EventQueue:
    """A clock that advances from one scheduled action to the next; simultaneous actions run in order of scheduling."""

    def __init__(self) -> None:
        self._now = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._order = count()

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self._now

    def at(self, moment: float, action: Action) -> None:
        """Schedule an action; a time in the past means now."""
        heapq.heappush(self._heap, (max(moment, self._now), next(self._order), action))

    def advance(self, to: float) -> None:
        """Advance to a time, or to the next action if it is earlier."""
        self.at(to, lambda: None)
        self.step()

    def step(self) -> bool:
        """Advance to the next action and execute it; return whether there was one."""
        if not self._heap:
            return False
        self._now, _, action = heapq.heappop(self._heap)
        action()
        return True
