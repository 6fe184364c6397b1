"""What a simulated process does beside its role's own work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcps.runtime.sideline import Finished


class Beside:
    """Computes at once what it is given, and has it over when the simulation says so."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Begin with nothing; `clock` is the simulation's."""
        self._clock = clock
        self._under_way: tuple[str, int, Any, Exception | None, float] | None = None
        self._finished: Finished | None = None

    @property
    def busy(self) -> bool:
        """See `Sideline.busy`."""
        return self.under_way or self._finished is not None

    @property
    def under_way(self) -> bool:
        """Whether what was begun is not over."""
        return self._under_way is not None

    def begin(self, task: str, round: int, work: Callable[[], Any], cancel: Callable[[], None]) -> None:
        """See `Sideline.begin`."""
        assert not self.busy, "one thing at a time"
        result = error = None
        try:
            result = work()
        except Exception as raised:
            error = raised
        self._under_way = (task, round, result, error, self._clock())

    def end(self, cpu: float) -> None:
        """What was begun is over, and took so many CPU seconds."""
        assert self._under_way is not None, "it was begun"
        self._finished, self._under_way = Finished(*self._under_way, self._clock(), cpu), None

    def wait(self) -> None:
        """The simulation has let the time pass."""

    def take(self) -> Finished | None:
        """See `Sideline.take`."""
        finished, self._finished = self._finished, None
        return finished
