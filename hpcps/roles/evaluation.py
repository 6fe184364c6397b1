"""When the coordinator evaluates a model, in the background and one at a time, or has the evaluator do it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from hpcps.numerics.layout import Allocate, Vector
from hpcps.protocol.messages import EvaluationRecorded, Flag, Message, Peer, Statistics
from hpcps.protocol.received import Malformed, Received
from hpcps.protocol.roster import EVALUATOR, SERVER_0, Roster
from hpcps.protocol.schedule import OpenSchedule, Schedule
from hpcps.roles.checks import rejection, wrong_size
from hpcps.roles.evaluation_job import EvaluationJob, evaluating
from hpcps.roles.evaluator import EvaluatorClient
from hpcps.roles.events import AwaitBackground, Compute, Effect, Finish, Send, SetDeadline
from hpcps.spec.schema import Run
from hpcps.training.evaluation import Evaluation
from hpcps.training.trainer import Trainer

Continuation = Callable[[], Iterator[Effect]]


class StatisticsInbox:
    """Gathers the workers' BatchNorm statistics of a round's model and averages them in worker order."""

    def __init__(self, workers: tuple[Peer, ...], size: int) -> None:
        self._workers = workers
        self._size = size
        self._values: dict[int, dict[Peer, Vector | None]] = {}

    def waiting_for(self, round: int) -> tuple[Peer, ...]:
        """Return the workers whose statistics of a round's model have not come."""
        there = self._values.get(round, {})
        return tuple(peer for peer in self._workers if peer not in there)

    def put(self, source: Peer, message: Statistics) -> Iterator[Effect]:
        """Take the statistics of a worker; those that are unusable are recorded and left out of the mean."""
        values = message.values
        reason = wrong_size(values, self._size)
        if reason is None and not np.isfinite(values).all():
            reason = "its statistics are not finite"
        if reason:
            yield rejection(source, reason)
        self._values.setdefault(message.round, {})[source] = None if reason else values.copy()

    def refuse(self, source: Peer, round: int) -> None:
        """Leave out a worker that sent a bad message."""
        self._values.setdefault(round, {})[source] = None

    def take(self, round: int, own: Vector | None) -> Vector | None:
        """Return a round's mean `[k]` with `own` first, None if no statistics are usable; drop all up to that round."""
        usable = [own] if own is not None else []
        values = self._values.get(round, {})
        self._values = {later: found for later, found in self._values.items() if later > round}
        usable += [found for peer in self._workers if (found := values[peer]) is not None]
        return np.mean(usable, axis=0, dtype=np.float32) if usable else None


class Evaluations:
    """Runs the coordinator's evaluations, and puts off what must come after them.

    With averaged BatchNorm statistics the evaluation of a model waits for the messages with the statistics of the
    workers, while the coordinator takes its steps. The next evaluation, a checkpoint and the end of the run come after
    the evaluation under way, so that a resumed run has every evaluation once.

    Attributes:
        averages: whether the workers' statistics are averaged.
        last: the last epoch whose evaluation has begun.
        client: gives the models to the evaluator; None if this role evaluates them.
    """

    def __init__(
        self,
        peer: Peer,
        run: Run,
        trainer: Trainer,
        schedule: Schedule | OpenSchedule,
        fields: Callable[[], dict[str, object]],
        allocate: Allocate,
    ) -> None:
        """Prepare the evaluations of a training role; only the coordinator has any.

        Args:
            peer: the role.
            run: the run.
            trainer: the trainer of the role.
            schedule: the schedule of the run.
            fields: returns what the role adds to the record of an evaluation.
            allocate: allocates the memory of the models for the evaluator.
        """
        roster, batchnorm = Roster.of(run), run.validation.batchnorm
        others = tuple(p for p in roster.readers() if p.role == "worker" and p != peer)
        self.averages = bool(batchnorm == "averaged" and trainer.statistics.size)
        self.last = 0
        self._schedule = schedule
        self._fields = fields
        self._trainer = trainer
        self._synchronous = run.train.mode == "sync"
        self._epochs = run.train.epochs
        self._statistics = StatisticsInbox(others, trainer.statistics.size)
        self._gathers_statistics = self.averages and peer == roster.coordinator
        self._own = peer.role == "worker"
        self._of_own_model = run.validation.evaluate == "validator_model"
        self._reestimate = batchnorm == "reestimated"
        remote = run.topology.evaluators and peer == roster.coordinator
        # Who tells the replacement of a lost coordinator what is recorded.
        self._told = (SERVER_0,) if run.survives_coordinator else ()
        self.client = EvaluatorClient(peer, allocate, self._told) if remote else None
        self._lacking: EvaluationJob | None = None
        self._held: Continuation | None = None
        self._then: Continuation | None = None

    def due(self, round: int) -> tuple[int, ...]:
        """Return the epochs to evaluate on the model with which a round or cycle of the coordinator begins."""
        done = self._trainer.steps_done // self._trainer.steps_per_epoch
        if self._synchronous:
            done = self._schedule.ended(round)
        return tuple(range(self.last + 1, min(self._epochs, done) + 1))

    def owed_by(self, worker: Peer, coming: int | None) -> int | None:
        """Return the round whose statistics the next message of a worker holds; None if it holds no statistics.

        A worker sends the statistics of a model before its update. It may have the next model before this role does.

        Args:
            worker: the worker.
            coming: the round that begins with the model that is on its way; None if no model is.
        """
        if not self._gathers_statistics:
            return None
        due = coming is not None and self._schedule.epochs_before(coming)
        rounds = (None if self._lacking is None else self._lacking.round, coming if due else None)
        return next((r for r in rounds if r is not None and worker in self._statistics.waiting_for(r)), None)

    def takes(self, event: Received | Malformed, round: int, coming: int | None) -> bool:
        """Return whether a message holds statistics for an evaluation, or came in place of some.

        Args:
            event: the message.
            round: the round of the coordinator; a worker may have the model of the next round already.
            coming: see `owed_by`.
        """
        if event.source == EVALUATOR:
            return self.client is not None
        if isinstance(event, Malformed):
            return self.owed_by(event.source, coming) is not None
        if not self._gathers_statistics or not isinstance(event.message, Statistics):
            return False
        of, lacking = event.message.round, round if self._lacking is None else self._lacking.round
        return of in (lacking, round, round + 1) and event.source in self._statistics.waiting_for(of)

    def refuse(self, bad: Malformed, coming: int | None) -> Iterator[Effect]:
        """Go on without the statistics that a worker owes: it sent a bad message instead.

        Raises:
            RunError: the evaluator sent it.
        """
        if bad.source == EVALUATOR:
            assert self.client is not None, "the run has an evaluator"
            raise self.client.unusable(bad.reason)
        round = self.owed_by(bad.source, coming)
        assert round is not None, "the message has been taken for statistics"
        yield rejection(bad.source, bad.reason)
        self._statistics.refuse(bad.source, round)
        yield from self._begin_if_ready()

    def evaluate(
        self, epochs: tuple[int, ...], round: int, time: float, model: Callable[[], Vector], then: Continuation,
        *, average: bool
    ) -> Iterator[Effect]:  # fmt: skip
        """Evaluate the model with which a round begins, once the evaluation before it is over; go on with `then`.

        Args:
            epochs: the epochs that the evaluation is of.
            round: the round.
            time: now, in seconds since the record began.
            model: returns the parameters `[d]`, which nobody changes; not called to evaluate the own ones.
            then: what comes next.
            average: whether to average the workers' statistics of this model.
        """

        def begin() -> Iterator[Effect]:
            values = None if self._of_own_model else model()
            yield from self._begin(self._job(epochs, round, time, values), then, average=average)

        yield from self.when_over(begin)

    def evaluate_own(self, epoch: int, round: int, time: float, then: Continuation) -> Iterator[Effect]:
        """Evaluate the coordinator's own network where an epoch ends inside a round, and go on with `then`."""

        def begin() -> Iterator[Effect]:
            yield from self._begin(self._job((epoch,), round, time), then, average=False)

        yield from self.when_over(begin)

    def _job(self, epochs: tuple[int, ...], round: int, time: float, model: Vector | None = None) -> EvaluationJob:
        self.last = epochs[-1]
        return EvaluationJob.of(self._trainer, round, time, epochs, self._fields, model)

    def put(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Take an evaluation, or a worker's statistics.

        An evaluation that waits for statistics begins once the last of them have come.
        """
        if source == EVALUATOR and self.client is not None:
            yield from self.client.take(message)
            return
        assert isinstance(message, Statistics), "the message has been taken for statistics"
        yield from self._statistics.put(source, message)
        yield from self._begin_if_ready()

    def _begin(self, job: EvaluationJob, then: Continuation, *, average: bool) -> Iterator[Effect]:
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
            yield AwaitBackground()
            yield from then()

    def go_on(self) -> Iterator[Effect]:
        """Have the evaluator go on after a resume, if there is one."""
        if self.client is not None:
            yield from self.client.send()

    def before_snapshot(self, flags: Flag) -> Iterator[Effect]:
        """Wait for the evaluation under way, unless it is that of the evaluator, which ends if the run is suspended."""
        if self.client is not None and flags & Flag.SUSPEND:
            yield from self.client.release(Flag.SUSPEND)
        yield AwaitBackground()

    def finish(self) -> Iterator[Effect]:
        """End the role once all evaluations are over."""
        if self.client is not None:
            yield from self.client.finish()
        else:
            yield Finish()

    def measured(self, job: EvaluationJob, evaluation: Evaluation) -> Iterator[Effect]:
        """Record an evaluation; go on with what was put off until its end."""
        yield from job.records(evaluation.fields(), finite=evaluation.finite)
        for server in self._told:
            yield Send(server, EvaluationRecorded(epoch=job.epochs[-1]))
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
        """Begin to evaluate, and go on with `then`; if the trainer itself evaluates, evaluate before."""
        if self.client is not None:
            yield from self.client.submit(job)
        else:
            effect = evaluating(self._trainer, job, reestimate=self._reestimate)
            if isinstance(effect, Compute):
                self._then, then = then, None
            yield effect
        if then is not None:
            yield from then()
