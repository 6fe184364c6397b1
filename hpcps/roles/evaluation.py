"""How and when the coordinator evaluates a model: in the background, one model at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from hpcps.numerics.layout import Vector
from hpcps.protocol.messages import Kind, Malformed, Message, Peer, Received
from hpcps.protocol.roster import Roster
from hpcps.protocol.schedule import OpenSchedule, Schedule
from hpcps.roles.checks import rejection, wrong_size
from hpcps.roles.events import AwaitBackground, Compute, Effect, InBackground, Record, SetDeadline
from hpcps.spec.schema import Run
from hpcps.training.evaluation import Evaluation, Evaluator
from hpcps.training.trainer import Trainer

Continuation = Callable[[], Iterator[Effect]]


@dataclass(frozen=True)
class EvaluationJob:
    """A model to evaluate, as it was at one moment; training may go on.

    Attributes:
        round: the round that began with the model, or in which it was made.
        epochs: the epochs that ended there; a round longer than an epoch can end several, which share the evaluation.
        fields: the other fields of the record of each epoch.
        model: its parameters `[d]`, a copy.
        statistics: the BatchNorm statistics to evaluate it with `[k]`, a copy.
    """

    round: int
    epochs: tuple[int, ...]
    fields: tuple[dict[str, object], ...]
    model: Vector
    statistics: Vector

    @classmethod
    def of(
        cls,
        trainer: Trainer,
        round: int,
        time: float,
        epochs: tuple[int, ...],
        more: Callable[[], dict[str, object]] = dict,
        model: Vector | None = None,
    ) -> EvaluationJob:
        """Return a job for the model of this moment.

        Args:
            trainer: gives the statistics, the step and the learning rate.
            round: the round.
            time: now, in seconds since the record began.
            epochs: the epochs that ended.
            more: returns what the role adds to the record of each epoch.
            model: the parameters `[d]`, which nobody else changes; None for those of the trainer.
        """
        if model is None:
            model = np.empty(trainer.layout.size, np.float32)
            trainer.copy_to(model)
        now = {"round": round, "time": time, "step": trainer.steps_done, "learning_rate": trainer.learning_rate}
        fields = tuple({"epoch": epoch, **now, **more()} for epoch in epochs)
        return cls(round, epochs, fields, model, trainer.statistics)

    def records(self, evaluation: Evaluation) -> Iterator[Record]:
        """Return the records of the evaluation."""
        measured: dict[str, object] = {
            "accuracy": evaluation.accuracy,
            "loss": evaluation.loss,
            "samples": evaluation.samples,
        }
        for fields in self.fields:
            yield Record("evaluation", fields | measured, lambda: self.model)
        if not evaluation.finite:
            last = {key: self.fields[-1][key] for key in ("epoch", "round", "time")}
            yield Record("diverged", {**last, "what": "outputs on the test set are not finite"})


def evaluate_with(evaluator: Evaluator | Trainer, job: EvaluationJob, *, reestimate: bool) -> Evaluation:
    """Evaluate a model; afterwards the evaluator holds it.

    Args:
        evaluator: evaluates.
        job: the model.
        reestimate: whether to use statistics of one pass over the shard in place of those of the job.
    """
    evaluator.copy_from(job.model)
    if reestimate and job.statistics.size:
        evaluator.reestimate_statistics()
    elif job.statistics.size:
        evaluator.load_statistics(job.statistics)
    return evaluator.evaluate()


def evaluate_with_trainer(trainer: Trainer, job: EvaluationJob, *, reestimate: bool) -> Evaluation:
    """Evaluate a model with the trainer itself, between two steps, and put the trainer back as it was."""
    own, statistics = np.empty_like(job.model), trainer.statistics
    trainer.copy_to(own)
    result = evaluate_with(trainer, job, reestimate=reestimate)
    trainer.copy_from(own)
    if statistics.size:
        trainer.load_statistics(statistics)
    return result


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

    def put(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Take a STATISTICS message; one that is unusable is recorded and left out of the mean."""
        reason = wrong_size(message, self._size)
        values = message.payload if message.payload is not None else np.zeros(0, np.float32)
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
    """

    def __init__(
        self,
        peer: Peer,
        run: Run,
        trainer: Trainer,
        schedule: Schedule | OpenSchedule,
        fields: Callable[[], dict[str, object]],
    ) -> None:
        """Prepare the evaluations of a training role; only the coordinator has any.

        Args:
            peer: the role.
            run: the run.
            trainer: the trainer of the role.
            schedule: the schedule of the run.
            fields: returns what the role adds to the record of an evaluation.
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
        self._lacking: EvaluationJob | None = None
        self._held: Continuation | None = None
        self._then: Continuation | None = None

    def due(self, round: int) -> tuple[int, ...]:
        """Return the epochs to evaluate on the model with which a round or cycle of the coordinator begins."""
        if self._synchronous and isinstance(self._schedule, Schedule):
            return self._schedule.epochs_before(round)
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
        if isinstance(event, Malformed):
            return self.owed_by(event.source, coming) is not None
        if not self._gathers_statistics or event.message.kind is not Kind.STATISTICS:
            return False
        of, lacking = event.message.round, round if self._lacking is None else self._lacking.round
        return of in (lacking, round, round + 1) and event.source in self._statistics.waiting_for(of)

    def refuse(self, bad: Malformed, coming: int | None) -> Iterator[Effect]:
        """Go on without the statistics that a worker owes: it sent a bad message instead."""
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
        """Take a worker's statistics; begin the evaluation that waits for them if they were the last."""
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
        """Evaluate in the background of `then`; or before `then`, if the trainer itself evaluates."""
        evaluator = self._trainer.evaluator
        if evaluator is None:
            self._then = then
            in_between = partial(evaluate_with_trainer, self._trainer, job, reestimate=self._reestimate)
            yield Compute("evaluate", lambda: (job, in_between()))
            return
        in_background = partial(evaluate_with, evaluator, job, reestimate=self._reestimate)
        yield InBackground("evaluate", lambda: (job, in_background()), evaluator.cancel)
        if then is not None:
            yield from then()
