"""What happens when in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

Action = Callable[[], None]


class Agenda:
    """A clock that jumps from one appointment to the next; those of one moment keep the order they were made in."""

    def __init__(self) -> None:
        self._now = 0.0
        self._heap: list[tuple[float, int, Action]] = []
        self._order = count()

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self._now

    def at(self, moment: float, action: Action) -> None:
        """Make an appointment; one for a moment that has passed is for now."""
        heapq.heappush(self._heap, (max(moment, self._now), next(self._order), action))

    def step(self) -> bool:
        """Go to the next appointment and keep it; say whether there was one."""
        if not self._heap:
            return False
        self._now, _, action = heapq.heappop(self._heap)
        action()
        return True
