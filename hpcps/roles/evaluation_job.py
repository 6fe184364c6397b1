"""A model to evaluate, and its evaluation."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from hpcps.numerics.layout import Vector
from hpcps.roles.events import Compute, InBackground, Record
from hpcps.training.evaluation import CancelledError, Evaluation, Evaluator
from hpcps.training.trainer import Trainer


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

    def records(self, measured: Mapping[str, Any], *, finite: bool) -> Iterator[Record]:
        """Return the records of the evaluation.

        Args:
            measured: its fields, such as `Evaluation.fields`.
            finite: whether all outputs were finite.
        """
        for fields in self.fields:
            yield Record("evaluation", {**fields, **measured}, lambda: self.model)
        if not finite:
            last = {key: self.fields[-1][key] for key in ("epoch", "round", "time")}
            yield Record("diverged", {**last, "what": "outputs on the test set are not finite"})

    def omission(self, reason: str) -> Iterator[Record]:
        """Return the records of epochs that are not evaluated, for this reason."""
        for fields in self.fields:
            yield Record(
                "not_evaluated", {**{key: fields[key] for key in ("epoch", "round", "time")}, "reason": reason}
            )


@dataclass(frozen=True)
class Died:
    """The end of the process that evaluated a model, before it had finished.

    Attributes:
        pid: the process.
        how: how it ended, such as `was killed by signal 9 (SIGKILL)`.
    """

    pid: int
    how: str


class ModelEvaluations(Protocol):
    """Evaluates the models of a run for the evaluator.

    Attributes:
        pid: the process that does it.
        device: where it computes.
        parameters: the number of parameters of a model.
        statistics: the number of its BatchNorm statistics.
    """

    pid: int
    device: str
    parameters: int
    statistics: int

    def evaluating(self, job: EvaluationJob) -> Compute | InBackground:
        """Return the effect that evaluates a model; `Computed` gets the job, and its evaluation; None if cancelled."""

    def restart(self) -> None:
        """Start the process again after it has `Died`."""

    def cancel(self) -> None:
        """Cancel the evaluation under way."""


class TrainerEvaluations(ModelEvaluations):
    """Evaluates with a trainer that does not train, in the process of the role."""

    def __init__(self, trainer: Trainer, *, reestimate: bool) -> None:
        """Take a trainer; see `evaluate_with`."""
        self.pid, self.device = os.getpid(), trainer.device
        self.parameters, self.statistics = trainer.layout.size, trainer.statistics.size
        self._trainer, self._reestimate = trainer, reestimate

    def evaluating(self, job: EvaluationJob) -> Compute | InBackground:
        return evaluating(self._trainer, job, reestimate=self._reestimate)

    def restart(self) -> None:
        raise AssertionError("it ends with the role")

    def cancel(self) -> None:
        if self._trainer.evaluator is not None:
            self._trainer.evaluator.cancel()


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


def evaluating(trainer: Trainer, job: EvaluationJob, *, reestimate: bool) -> Compute | InBackground:
    """Return the effect that evaluates a model; `Computed` gets the job, and its evaluation or None if cancelled.

    It is done in the background, or by the trainer itself if it has no background evaluator.
    """
    evaluator = trainer.evaluator
    if evaluator is None:
        in_between = partial(evaluate_with_trainer, trainer, job, reestimate=reestimate)
        return Compute("evaluate", lambda: (job, in_between()))

    def work() -> tuple[EvaluationJob, Evaluation | None]:
        try:
            return job, evaluate_with(evaluator, job, reestimate=reestimate)
        except CancelledError:
            return job, None

    return InBackground("evaluate", work, evaluator.cancel)
