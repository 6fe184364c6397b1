"""How the chief measures a model: which parameters, with which BatchNorm statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hpcps.layout import Vector
from hpcps.messages import Message, Peer
from hpcps.roles.checks import rejection, wrong_size
from hpcps.roles.events import Effect, Record
from hpcps.training.learner import Evaluation, Examiner, Learner


@dataclass(frozen=True)
class Candidate:
    """A model to be measured, as it was at one moment: training may go on.

    Attributes:
        round: the round that began with it, or in which it was made.
        epochs: those that ended there; a round longer than an epoch can end several, which share the measurement.
        fields: what the record of each of them says beside what is measured.
        model: its parameters `[d]`, a copy.
        statistics: the BatchNorm statistics to measure it with `[k]`, a copy.
    """

    round: int
    epochs: tuple[int, ...]
    fields: tuple[dict[str, object], ...]
    model: Vector
    statistics: Vector

    @classmethod
    def of(
        cls,
        learner: Learner,
        round: int,
        time: float,
        epochs: tuple[int, ...],
        more: Callable[[], dict[str, object]] = dict,
        model: Vector | None = None,
    ) -> Candidate:
        """Take the model of this moment.

        Args:
            learner: whose statistics, step and learning rate count.
            round: the round.
            time: now, in seconds since the record began.
            epochs: the epochs that ended.
            more: what the role adds to the record of each of them.
            model: the parameters `[d]`, which nobody else changes; the learner's own if None.
        """
        if model is None:
            model = np.empty(learner.layout.size, np.float32)
            learner.copy_to(model)
        now = {"round": round, "time": time, "step": learner.steps_done, "learning_rate": learner.learning_rate}
        fields = tuple({"epoch": epoch, **now, **more()} for epoch in epochs)
        return cls(round, epochs, fields, model, learner.statistics)

    def records(self, evaluation: Evaluation) -> Iterator[Record]:
        """Record what was measured of it."""
        measured: dict[str, object] = {
            "accuracy": evaluation.accuracy,
            "loss": evaluation.loss,
            "samples": evaluation.samples,
        }
        for fields in self.fields:
            yield Record("evaluation", fields | measured)
        if not evaluation.finite:
            last = {key: self.fields[-1][key] for key in ("epoch", "round", "time")}
            yield Record("diverged", {**last, "what": "outputs on the test set are not finite"})


def examine(examiner: Examiner | Learner, candidate: Candidate, *, reestimate: bool) -> Evaluation:
    """Measure a model; what measures is left with it.

    Args:
        examiner: what measures.
        candidate: the model.
        reestimate: whether to measure with statistics of one pass over the shard, not with those of the candidate.
    """
    examiner.copy_from(candidate.model)
    if reestimate and candidate.statistics.size:
        examiner.reestimate_statistics()
    elif candidate.statistics.size:
        examiner.load_statistics(candidate.statistics)
    return examiner.evaluate()


def examine_in_between(learner: Learner, candidate: Candidate, *, reestimate: bool) -> Evaluation:
    """Measure a model with what trains, between two steps, and leave it as it was."""
    own, statistics = np.empty_like(candidate.model), learner.statistics
    learner.copy_to(own)
    result = examine(learner, candidate, reestimate=reestimate)
    learner.copy_from(own)
    if statistics.size:
        learner.load_statistics(statistics)
    return result


class StatisticsInbox:
    """Gathers the workers' BatchNorm statistics of a round's model and averages them in worker order."""

    def __init__(self, workers: tuple[Peer, ...], size: int) -> None:
        self._workers = workers
        self._size = size
        self._values: dict[int, dict[Peer, Vector | None]] = {}

    def waiting_for(self, round: int) -> tuple[Peer, ...]:
        """The workers whose statistics of a round's model have not come."""
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
        """Go on without a worker whose message was no message."""
        self._values.setdefault(round, {})[source] = None

    def take(self, round: int, own: Vector | None) -> Vector | None:
        """Return a round's mean `[k]` with the gatherer's `own` first, if any are usable; forget those before it."""
        usable = [own] if own is not None else []
        values = self._values.get(round, {})
        self._values = {later: found for later, found in self._values.items() if later > round}
        usable += [found for peer in self._workers if (found := values[peer]) is not None]
        return np.mean(usable, axis=0, dtype=np.float32) if usable else None
