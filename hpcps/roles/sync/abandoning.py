"""Local steps that a late worker leaves when its round has closed without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hpcps.protocol.messages import Abandon, Peer
from hpcps.roles.evaluation import Continuation
from hpcps.roles.events import Compute, Drain, Effect


class AbandonableSteps:
    """Takes the local steps of a round one by one, until all are taken or the combiner says that the round is closed.

    A step is never interrupted.

    Attributes:
        sources: the combiners that may say so.
        kind: the class of their message.
        abandoned: the steps after which the worker left the round; None if it took all.
    """

    kind = Abandon

    def __init__(
        self, sources: tuple[Peer, ...], steps: int, train: Callable[[int], Compute], after_steps: Continuation
    ) -> None:
        """Prepare the local steps of one worker.

        Args:
            sources: the combiners of the worker.
            steps: the local steps of a round.
            train: returns the computation of so many steps.
            after_steps: goes on once the local steps of a round are done.
        """
        self.sources = sources
        self.abandoned: int | None = None
        self._steps = steps
        self._train = train
        self._after_steps = after_steps
        self._round = -1
        self._taken = 0
        self._closed = False

    def begin(self, round: int) -> Iterator[Effect]:
        """Begin a round."""
        self._round, self._taken, self._closed, self.abandoned = round, 0, False, None
        yield self._train(1)

    def stepped(self, steps: int, seconds: float) -> Iterator[Effect]:
        """Note steps; go on once the messages that have come are handled."""
        self._taken += steps
        if self._taken < self._steps:
            yield Drain()
        else:
            yield from self._end()

    def take(self, message: Abandon) -> Iterator[Effect]:
        """Take the message that a round is closed; it has no effect after the steps of the round."""
        self._closed |= message.round == self._round
        yield from ()

    def go_on(self) -> Iterator[Effect]:
        """Take the next step, or abandon the round."""
        if self._closed:
            self.abandoned = self._taken
            yield from self._end()
        else:
            yield self._train(1)

    def _end(self) -> Iterator[Effect]:
        self._round = -1
        yield from self._after_steps()

    def fields(self) -> dict[str, object]:
        """Return the fields of the record of the round."""
        return {"abandoned": self.abandoned}
