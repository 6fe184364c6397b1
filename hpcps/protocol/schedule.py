"""The order of local steps, rounds, epochs and evaluations in a synchronous run."""

from __future__ import annotations

from dataclasses import dataclass

from hpcps.spec.schema import Run


@dataclass(frozen=True)
class Segment:
    """Consecutive local steps without an evaluation between them.

    Attributes:
        stop: the step count at which the segment ends.
        epoch: the epoch that ends there and is evaluated, if any.
    """

    stop: int
    epoch: int | None = None


@dataclass(frozen=True)
class Schedule:
    """The schedule of a run, in local steps of the coordinator (validator 0, or worker 0 without validators).

    Attributes:
        epochs: the number of epochs of the run.
        steps_per_epoch: the coordinator's batches in an epoch.
        local_steps: steps between two synchronisations, H; the count does not restart at an epoch.
        inside_rounds: whether an epoch that ends inside a round is evaluated there, on the coordinator's own network.
        origin: the round at which an epoch begins with the present number of workers, and the epochs before it. The
            steps of epochs are counted as if the number had always been this one.
    """

    epochs: int
    steps_per_epoch: int
    local_steps: int
    inside_rounds: bool
    origin: tuple[int, int] = (0, 0)

    @property
    def rounds(self) -> int:
        """The number of rounds after which the coordinator has finished its epochs."""
        begun, before = self.origin
        return begun - ((before - self.epochs) * self.steps_per_epoch // self.local_steps)

    def start(self, round: int) -> int:
        """Return the step count at which a round's local steps begin."""
        begun, before = self.origin
        return before * self.steps_per_epoch + (round - begun) * self.local_steps

    def over(self, round: int) -> bool:
        """Return whether the model of a round is the last: no round begins with it."""
        return round >= self.rounds

    def ended(self, round: int) -> int:
        """Return the number of epochs that have ended when a round begins."""
        return min(self.epochs, self.start(round) // self.steps_per_epoch)

    def stop(self, round: int) -> int:
        """Return the step count at which a round's local steps end."""
        return self.start(round + 1)

    def segments(self, round: int) -> list[Segment]:
        """Divide the coordinator's local steps of a round at each epoch that is evaluated inside the round."""
        start, stop = self.start(round), self.stop(round)
        inside = []
        if self.inside_rounds:
            ends = [(epoch * self.steps_per_epoch, epoch) for epoch in range(1, self.epochs + 1)]
            inside = [Segment(end, epoch) for end, epoch in ends if start < end < stop]
        return [*inside, Segment(stop)]

    def epochs_before(self, round: int) -> tuple[int, ...]:
        """Return the epochs to evaluate on the model with which a round begins.

        These are the epochs that ended with the previous round, and those that ended inside it and were not evaluated
        there.
        """
        steps = self.start(round)
        ended = min(self.epochs, steps // self.steps_per_epoch)
        if self.inside_rounds:
            return (ended,) if ended and steps == ended * self.steps_per_epoch else ()
        already = min(self.epochs, max(0, steps - self.local_steps) // self.steps_per_epoch)
        return tuple(range(already + 1, ended + 1))


class OpenSchedule:
    """The schedule of a run with a policy of local steps: the number of steps of a round is known only at its end.

    An epoch is over when all workers together have taken as many steps as the coordinator's epoch has for each of them.
    Server 0 counts them, and states the number of epochs that have ended with each model.
    """

    def __init__(self, epochs: int) -> None:
        """Begin a run of so many epochs."""
        self._epochs = epochs
        self._known: dict[int, int] = {}

    def learn(self, round: int, ended: int) -> None:
        """Note how many epochs had ended when a round began."""
        before = max((known for known in self._known if known < round), default=None)
        self._known = ({} if before is None else {before: self._known[before]}) | {round: min(ended, self._epochs)}

    def ended(self, round: int) -> int:
        """Return the number of epochs that had ended when a round began, as far as it is known."""
        return max((ended for known, ended in self._known.items() if known <= round), default=0)

    def over(self, round: int) -> bool:
        """Return whether the model of a round is known to be the last: no round begins with it."""
        return self.ended(round) >= self._epochs

    def epochs_before(self, round: int) -> tuple[int, ...]:
        """Return the epochs to evaluate on the model with which a round begins: those that the round before ended."""
        return tuple(range(self.ended(round - 1) + 1, self.ended(round) + 1))


def schedule_of_rounds(run: Run, steps_per_epoch: int) -> Schedule | OpenSchedule:
    """Return the schedule of a run in which an epoch has so many batches of the coordinator."""
    train = run.train
    if train.policy is not None:
        return OpenSchedule(train.epochs)
    inside = run.validation.evaluate == "validator_model"
    since = run.members[-1]
    begun = since.position
    if train.mode == "async":  # each role counts its own cycles
        begun = since.epoch * steps_per_epoch // train.steps_per_round
    return Schedule(train.epochs, steps_per_epoch, train.steps_per_round, inside, (begun, since.epoch))
