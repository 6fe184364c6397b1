"""Waiting without burning the core that another process of this host computes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Patience:
    """Polls at full speed for a moment, then at growing intervals.

    A blocked MPI call spins: seventeen of them beside one computing process slow that one down tenfold. So every wait
    is a loop of polls with this between them; it costs an idle wait up to one interval of delay.
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
        """Set the pace.

        Args:
            polls: how many there are before the first pause.
            first: seconds of the first pause.
            growth: how much longer each pause is than the one before.
            longest: seconds of the longest.
            sleep: pauses for so many seconds; it may return early, with True, if there is a reason to poll.
            hurry: whether to poll at full speed at all.
        """
        self._polls, self._first, self._growth, self._longest = polls, first, growth, longest
        self._sleep, self._hurry = sleep, hurry
        self.reset()

    def reset(self) -> None:
        """Something came: be quick again."""
        self._left = self._polls
        self._interval = self._first

    def wait(self, most: float = math.inf) -> None:
        """Nothing came: give the core away for a while, so many seconds at most."""
        if self._left > 0 and self._hurry():
            self._left -= 1
            return
        if self._sleep(min(self._interval, most)):
            self.reset()  # what was announced may take a few polls to show
        else:
            self._interval = min(self._interval * self._growth, self._longest)

    @property
    def longest(self) -> float:
        """The longest interval, in seconds."""
        return self._longest

    @property
    def quick_polls(self) -> int:
        """How many polls there are before the intervals are at their longest."""
        return self._polls + math.ceil(math.log(self._longest / self._first, self._growth))

    def interval_after(self, slept: float) -> float:
        """Return the seconds between two polls once the polls at full speed are over since so many seconds."""
        return min(self._longest, self._first + slept * (self._growth - 1.0))
