"""How the coordinator evaluates a model: with which parameters and which BatchNorm statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hpcps.numerics.layout import Vector
from hpcps.protocol.messages import Message, Peer
from hpcps.roles.checks import rejection, wrong_size
from hpcps.roles.events import Effect, Record
from hpcps.training.trainer import Evaluation, Evaluator, Trainer


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
