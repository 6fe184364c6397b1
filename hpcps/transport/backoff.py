"""Backoff: wait without using the core that another process of this host needs for computing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Backoff:
    """Allows polls at full speed for a moment, then at growing intervals.

    A blocking MPI call spins: seventeen spinning processes slow one computing process on the same host down tenfold.
    Every wait is therefore a loop of polls with a backoff between them. This adds a delay of up to one interval.
    """

    def __init__(
        self,
        polls: int = 50,
        first: float = 20e-6,
        growth: float = 1.5,
        longest: float = 1e-3,
        sleep: Callable[[float], bool | None] = time.sleep,
        hurry: Callable[[], bool] = lambda: True,
    ) -> None:
        """Configure the backoff.

        Args:
            polls: number of polls before the first pause.
            first: seconds of the first pause.
            growth: factor from one pause to the next.
            longest: seconds of the longest pause.
            sleep: pauses for a number of seconds; it may return early, with True, if there is a reason to poll.
            hurry: returns whether to poll at full speed at all.
        """
        self._polls, self._first, self._growth, self._longest = polls, first, growth, longest
        self._sleep, self._hurry = sleep, hurry
        self.reset()

    def reset(self) -> None:
        """Return to full speed after an event."""
        self._left = self._polls
        self._interval = self._first

    def wait(self, most: float = math.inf) -> None:
        """Release the core for a while after a poll without an event, for at most `most` seconds."""
        if self._left > 0 and self._hurry():
            self._left -= 1
            return
        if self._sleep(min(self._interval, most)):
            self.reset()  # an announced message may arrive only after a few polls
        else:
            self._interval = min(self._interval * self._growth, self._longest)

    @property
    def longest(self) -> float:
        """The longest interval, in seconds."""
        return self._longest

    @property
    def quick_polls(self) -> int:
        """The number of polls before the interval reaches its maximum."""
        return self._polls + math.ceil(math.log(self._longest / self._first, self._growth))

    def interval_after(self, slept: float) -> float:
        """Return the seconds between two polls, `slept` seconds after the last poll at full speed."""
        return min(self._longest, self._first + slept * (self._growth - 1.0))
