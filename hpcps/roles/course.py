"""How local steps, rounds, epochs and evaluations follow one another in a synchronous run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Segment:
    """Local steps without a break.

    Attributes:
        stop: the step count at which it ends.
        epoch: the epoch that ends there and is evaluated, if any.
    """

    stop: int
    epoch: int | None = None


@dataclass(frozen=True)
class Course:
    """The plan of a run, counted in the local steps of the chief (validator 0, or worker 0 without validators).

    Attributes:
        epochs: epochs to run.
        steps_per_epoch: the chief's batches in an epoch.
        local_steps: steps between two synchronisations, H; the count runs on across epochs.
        inside_rounds: whether an epoch that ends inside a round is evaluated there, on the chief's own network.
    """

    epochs: int
    steps_per_epoch: int
    local_steps: int
    inside_rounds: bool

    @property
    def rounds(self) -> int:
        """How many rounds bring the chief to the end of its epochs."""
        return -(-self.epochs * self.steps_per_epoch // self.local_steps)

    def stop(self, round: int) -> int:
        """The step count at which a round's local steps end."""
        return (round + 1) * self.local_steps

    def segments(self, round: int) -> list[Segment]:
        """Cut the chief's local steps of a round where an epoch is evaluated inside it."""
        start, stop = round * self.local_steps, self.stop(round)
        inside = []
        if self.inside_rounds:
            ends = [(epoch * self.steps_per_epoch, epoch) for epoch in range(1, self.epochs + 1)]
            inside = [Segment(end, epoch) for end, epoch in ends if start < end < stop]
        return [*inside, Segment(stop)]

    def epochs_before(self, round: int) -> tuple[int, ...]:
        """The epochs to evaluate on the model with which a round begins.

        Those that ended with the round before are; those that ended inside it only if they were not evaluated there.
        """
        steps = round * self.local_steps
        ended = min(self.epochs, steps // self.steps_per_epoch)
        if self.inside_rounds:
            return (ended,) if ended and steps == ended * self.steps_per_epoch else ()
        already = min(self.epochs, max(0, steps - self.local_steps) // self.steps_per_epoch)
        return tuple(range(already + 1, ended + 1))
