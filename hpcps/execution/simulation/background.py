"""The background executor of a simulated process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcps.execution.background import Finished


class SimulatedBackground:
    """Computes a task immediately, and reports it as finished when the simulation calls `end`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Create the executor; `clock` is the clock of the simulation."""
        self._clock = clock
        self._under_way: tuple[str, int, Any, Exception | None, float] | None = None
        self._finished: Finished | None = None

    @property
    def busy(self) -> bool:
        """See `BackgroundExecutor.busy`."""
        return self.under_way or self._finished is not None

    @property
    def under_way(self) -> bool:
        """Whether a task is running in virtual time."""
        return self._under_way is not None

    def begin(self, task: str, round: int, work: Callable[[], Any], cancel: Callable[[], None]) -> None:
        """See `BackgroundExecutor.begin`."""
        assert not self.busy, "one task at a time"
        result = error = None
        try:
            result = work()
        except Exception as raised:
            error = raised
        self._under_way = (task, round, result, error, self._clock())

    def end(self, cpu: float) -> None:
        """End the task, which took so many CPU seconds."""
        assert self._under_way is not None, "a task must have started"
        self._finished, self._under_way = Finished(*self._under_way, self._clock(), cpu), None

    def wait(self) -> None:
        """Return at once: the simulation has already advanced the time."""

    def take(self) -> Finished | None:
        """See `BackgroundExecutor.take`."""
        finished, self._finished = self._finished, None
        return finished
