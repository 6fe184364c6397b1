"""What of a sweep is left to play, what is tried again, and what is given up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcps.campaign.batch import Ending
from hpcps.launch.prepare import launch_kind
from hpcps.spec.load import Point


@dataclass(frozen=True)
class Lost:
    """A point that is given up.

    Attributes:
        attempts: how many times it was tried.
        cause: the first line of what was said of the last one.
    """

    point: Point
    attempts: int
    cause: str


class Agenda:
    """Hands out points and takes note of what became of them.

    A run that fails is tried again, then given up; either way the others go on.
    """

    def __init__(self, points: Sequence[Point], retry: int) -> None:
        """Plan to play the points in their order.

        Args:
            points: what to play.
            retry: how many times a run that failed is tried again.
        """
        self.left = list(points)
        self.lost: list[Lost] = []
        self._retry = retry
        self._attempts: Counter[str] = Counter()

    def take(self, jobs: int) -> tuple[Point, ...]:
        """Take points that can be played back to back, the next one first.

        Starting processes costs more than many a small run, so one launch takes all that it can; of several at a time
        each takes a part of what is left, smaller ones towards the end, so that they end together.
        """
        kind = launch_kind(self.left[0].run)
        alike = [point for point in self.left if launch_kind(point.run) == kind]
        taken = alike if jobs == 1 else alike[: max(1, -(-len(alike) // (2 * jobs)))]
        self.left = [point for point in self.left if point not in taken]
        return tuple(taken)

    def settle(self, points: Sequence[Point], ending: Ending, done: Callable[[Point], bool]) -> str:
        """Take note of how points ended; return what is to be said of those that have not."""
        missing = [point for point in points if not done(point)]
        if ending.over or not missing:
            self.left = missing + self.left
            return ""
        # Where no run has begun, it was the launch that failed, and any other launch of these points would.
        blamed = [point for point in missing if ending.failed in (None, point.run_id)]
        others = [point for point in missing if point not in blamed]
        again, said = [], []
        for point in blamed:
            self._attempts[point.run_id] += 1
            attempts = self._attempts[point.run_id]
            if attempts <= self._retry:
                again.append(point)
            else:
                self.lost.append(Lost(point, attempts, ending.text.partition("\n")[0]))
        if again:
            names = ", ".join(point.run_id for point in again)
            said.append(f"{names}: tried again, {attempts} of {self._retry} times")
        self.left = again + others + self.left
        if self.left and not again:
            said.append(f"going on with {len(self.left)} more run{'s' * (len(self.left) > 1)}")
        return "; ".join(said)

    def report(self) -> str:
        """List what was given up, the point's place in the sweep first."""
        lines = []
        for lost in sorted(self.lost, key=lambda lost: lost.point.index):
            tries = f"in {lost.attempts} attempts: " if lost.attempts > 1 else ""
            cause = lost.cause.removeprefix(f"run {lost.point.run_id} ({lost.point.label}): ")
            lines.append(f"  {lost.point.run_id}  {lost.point.label}: {tries}{cause}")
        return "\n".join(lines)
