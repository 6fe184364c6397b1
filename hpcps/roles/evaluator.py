"""When the coordinator evaluates a model: in the background, one model at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from hpcps.protocol.messages import Message, Peer
from hpcps.roles.evaluation import EvaluationJob, StatisticsInbox, examine, examine_in_between
from hpcps.roles.events import Compute, Effect, InBackground, SetDeadline, Settle
from hpcps.training.learner import Evaluation, Learner

Continuation = Callable[[], Iterator[Effect]]


class Evaluator:
    """Runs the coordinator's evaluations, and puts off what must come after them.

    With averaged BatchNorm statistics the evaluation of a model waits for the messages with the statistics of the
    workers, while the coordinator takes its steps. The next evaluation, a checkpoint and the end of the run come after
    the evaluation under way, so that a resumed run has every evaluation once.
    """

    def __init__(self, learner: Learner, workers: tuple[Peer, ...], own: bool, reestimate: bool) -> None:
        """Prepare the evaluations.

        Args:
            learner: the learner of the coordinator.
            workers: the workers whose statistics are averaged.
            own: whether the mean includes the statistics of the learner.
            reestimate: whether to use statistics of one pass over the shard.
        """
        self._learner = learner
        self._statistics = StatisticsInbox(workers, learner.statistics.size)
        self._own = own
        self._reestimate = reestimate
        self._lacking: EvaluationJob | None = None
        self._held: Continuation | None = None
        self._then: Continuation | None = None

    def owed_by(self, source: Peer, coming: int | None) -> int | None:
        """Return the round whose statistics the next message of a worker holds; None if the worker owes none.

        Args:
            source: the worker.
            coming: the round whose model is on its way and will be evaluated; None if there is no such round.
        """
        rounds = (None if self._lacking is None else self._lacking.round, coming)
        return next((r for r in rounds if r is not None and source in self._statistics.waiting_for(r)), None)

    def takes(self, source: Peer, of: int, round: int) -> bool:
        """Return whether to take a worker's statistics of the model of round `of` in the coordinator's round `round`.

        A worker may have the next round's model before the coordinator does.
        """
        lacking = round if self._lacking is None else self._lacking.round
        return of in (lacking, round, round + 1) and source in self._statistics.waiting_for(of)

    def put(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Take a worker's statistics; begin the evaluation that waits for them if they were the last."""
        yield from self._statistics.put(source, message)
        yield from self._begin_if_ready()

    def refuse(self, source: Peer, round: int) -> Iterator[Effect]:
        """Go on without the statistics that a worker owes for a round: it sent a bad message instead."""
        self._statistics.refuse(source, round)
        yield from self._begin_if_ready()

    def begin(self, job: EvaluationJob, then: Continuation, *, average: bool = False) -> Iterator[Effect]:
        """Begin to evaluate a model, with averaged statistics once they have come, and go on with `then`."""
        if not average:
            yield from self._measure(job, then)
            return
        self._lacking = job
        yield from self._begin_if_ready(then)
        if self._lacking is not None:
            yield from then()

    def when_over(self, then: Continuation) -> Iterator[Effect]:
        """Go on with `then` once no evaluation is under way or waits for statistics."""
        if self._lacking is not None:
            self._held = then
            yield SetDeadline(self._statistics.waiting_for(self._lacking.round))
        else:
            yield Settle()
            yield from then()

    def measured(self, job: EvaluationJob, evaluation: Evaluation) -> Iterator[Effect]:
        """Record an evaluation; go on with what was put off until its end."""
        yield from job.records(evaluation)
        then, self._then = self._then, None
        if then is not None:
            yield from then()

    def _begin_if_ready(self, then: Continuation | None = None) -> Iterator[Effect]:
        job = self._lacking
        if job is None or self._statistics.waiting_for(job.round):
            return
        self._lacking = None
        average = self._statistics.take(job.round, job.statistics if self._own else None)
        if average is not None:
            job = replace(job, statistics=average)
        held, self._held = self._held, None
        yield from self._measure(job, then if held is None else partial(self.when_over, held))

    def _measure(self, job: EvaluationJob, then: Continuation | None) -> Iterator[Effect]:
        """Evaluate in the background of `then`; or before `then`, if the learner itself evaluates."""
        examiner = self._learner.examiner
        if examiner is None:
            self._then = then
            in_between = partial(examine_in_between, self._learner, job, reestimate=self._reestimate)
            yield Compute("evaluate", lambda: (job, in_between()))
            return
        in_background = partial(examine, examiner, job, reestimate=self._reestimate)
        yield InBackground("evaluate", lambda: (job, in_background()), examiner.cancel)
        if then is not None:
            yield from then()
