"""When the chief measures a model: beside its steps, so that nobody waits for it, and one model at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from hpcps.messages import Message, Peer
from hpcps.roles.events import Aside, Compute, Effect, SetDeadline, Settle
from hpcps.roles.examination import Candidate, StatisticsInbox, examine, examine_in_between
from hpcps.training.learner import Evaluation, Learner

Continuation = Callable[[], Iterator[Effect]]


class Measuring:
    """What the chief has measured, and puts off until it is.

    With averaged BatchNorm statistics a model waits for those of the workers first, which come by message: the chief
    takes its steps meanwhile. The next measurement, a checkpoint and the end of the run come after what is under way,
    so that a run that goes on from a checkpoint has every evaluation once.
    """

    def __init__(self, learner: Learner, workers: tuple[Peer, ...], own: bool, reestimate: bool) -> None:
        """Begin with nothing to measure.

        Args:
            learner: the chief's.
            workers: whose statistics are averaged, where they are.
            own: whether the learner's statistics belong into that mean.
            reestimate: whether to measure with statistics of one pass over the shard.
        """
        self._learner = learner
        self._statistics = StatisticsInbox(workers, learner.statistics.size)
        self._own = own
        self._reestimate = reestimate
        self._lacking: Candidate | None = None
        self._held: Continuation | None = None
        self._then: Continuation | None = None

    @property
    def holds(self) -> bool:
        """Whether something is put off until statistics have come."""
        return self._held is not None

    def lacks(self, source: Peer) -> bool:
        """Whether a model waits for the statistics of this worker."""
        return self._lacking is not None and source in self._statistics.waiting_for(self._lacking.round)

    def takes(self, source: Peer, of: int, round: int) -> bool:
        """Whether a worker's statistics of one round's model have a use in another, or the same, round.

        A worker may have the next round's model before the chief does.
        """
        lacking = round if self._lacking is None else self._lacking.round
        return of in (lacking, round, round + 1) and source in self._statistics.waiting_for(of)

    def put(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Take a worker's statistics; measure the model that lacked them if they were the last."""
        yield from self._statistics.put(source, message)
        yield from self._begin_if_ready()

    def refuse(self, source: Peer) -> Iterator[Effect]:
        """Go on without those of a worker whose message was no message."""
        assert self._lacking is not None, "a model lacks them"
        self._statistics.refuse(source, self._lacking.round)
        yield from self._begin_if_ready()

    def begin(self, candidate: Candidate, then: Continuation, *, average: bool = False) -> Iterator[Effect]:
        """Have a model measured, with averaged statistics once they are there, beside what comes `then`."""
        if not average:
            yield from self._measure(candidate, then)
            return
        self._lacking = candidate
        yield from self._begin_if_ready(then)
        if self._lacking is not None:
            yield from then()

    def when_over(self, then: Continuation) -> Iterator[Effect]:
        """Go on once no model is being measured, or waits for that."""
        if self._lacking is not None:
            self._held = then
            yield SetDeadline(self._statistics.waiting_for(self._lacking.round))
        else:
            yield Settle()
            yield from then()

    def measured(self, candidate: Candidate, evaluation: Evaluation) -> Iterator[Effect]:
        """Record what was measured; go on with what could not come before."""
        yield from candidate.records(evaluation)
        then, self._then = self._then, None
        if then is not None:
            yield from then()

    def _begin_if_ready(self, then: Continuation | None = None) -> Iterator[Effect]:
        candidate = self._lacking
        if candidate is None or self._statistics.waiting_for(candidate.round):
            return
        self._lacking = None
        average = self._statistics.take(candidate.round, candidate.statistics if self._own else None)
        if average is not None:
            candidate = replace(candidate, statistics=average)
        held, self._held = self._held, None
        yield from self._measure(candidate, then if held is None else partial(self.when_over, held))

    def _measure(self, candidate: Candidate, then: Continuation | None) -> Iterator[Effect]:
        """Measure beside what comes `then`; before it, if that takes the learner itself."""
        examiner = self._learner.examiner
        if examiner is None:
            self._then = then
            alone = partial(examine_in_between, self._learner, candidate, reestimate=self._reestimate)
            yield Compute("evaluate", lambda: (candidate, alone()))
            return
        beside = partial(examine, examiner, candidate, reestimate=self._reestimate)
        yield Aside("evaluate", lambda: (candidate, beside()), examiner.cancel)
        if then is not None:
            yield from then()
