"""The queue of a sweep: the points that are left, repeated attempts, and failed points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcps.execution.sweep.batch import Ending
from hpcps.launch.prepare import launch_kind
from hpcps.spec.load import Point


@dataclass(frozen=True)
class FailedPoint:
    """A point that failed in every attempt.

    Attributes:
        attempts: the number of attempts.
        cause: the first line of the error of the last attempt.
    """

    point: Point
    attempts: int
    cause: str


class PointQueue:
    """Returns points to run and records their outcomes.

    A run that fails is repeated up to `retry` times. The other points run in any case.
    """

    def __init__(self, points: Sequence[Point], retry: int) -> None:
        """Queue the points in their order.

        Args:
            points: the points to run.
            retry: the number of times that a failed run is repeated.
        """
        self.left = list(points)
        self.failed: list[FailedPoint] = []
        self._retry = retry
        self._attempts: Counter[str] = Counter()

    def take(self, jobs: int) -> tuple[Point, ...]:
        """Take points that can run back to back, starting with the next one.

        Starting the processes takes longer than many small runs, so a single launch takes all possible points. If
        several launches run at a time, each takes a part of the remaining points. The parts become smaller, so that all
        launches end at about the same time.
        """
        kind = launch_kind(self.left[0].run)
        alike = [point for point in self.left if launch_kind(point.run) == kind]
        taken = alike if jobs == 1 else alike[: max(1, -(-len(alike) // (2 * jobs)))]
        self.left = [point for point in self.left if point not in taken]
        return tuple(taken)

    def end_batch(self, points: Sequence[Point], ending: Ending, done: Callable[[Point], bool]) -> str:
        """Record the outcome of points; return a message about those that are not done."""
        missing = [point for point in points if not done(point)]
        if ending.over or not missing:
            self.left = missing + self.left
            # If points of this batch are missing, its own message says so.
            more = len(self.left) if ending.over and not missing else 0
            return f"run it again for {more} more run{'s' * (more > 1)}" if more else ""
        # If no run had started, the launch failed, and another launch of these points would fail too.
        blamed = [point for point in missing if ending.failed in (None, point.run_id)]
        others = [point for point in missing if point not in blamed]
        again, messages = [], []
        for point in blamed:
            self._attempts[point.run_id] += 1
            attempts = self._attempts[point.run_id]
            if attempts <= self._retry:
                again.append(point)
            else:
                self.failed.append(FailedPoint(point, attempts, ending.text.partition("\n")[0]))
        if again:
            names = ", ".join(point.run_id for point in again)
            messages.append(f"{names}: tried again, {attempts} of {self._retry} times")
        self.left = again + others + self.left
        if self.left and not again:
            messages.append(f"continuing with {len(self.left)} more run{'s' * (len(self.left) > 1)}")
        return "; ".join(messages)

    def report(self) -> str:
        """Return a list of the failed points, in the order of the sweep."""
        lines = []
        for failed in sorted(self.failed, key=lambda failed: failed.point.index):
            tries = f"in {failed.attempts} attempts: " if failed.attempts > 1 else ""
            cause = failed.cause.removeprefix(f"run {failed.point.run_id} ({failed.point.label}): ")
            lines.append(f"  {failed.point.run_id}  {failed.point.label}: {tries}{cause}")
        return "\n".join(lines)
