"""How the chief measures a model: which parameters, with which BatchNorm statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np

from hpcps.layout import Vector
from hpcps.messages import Message, Peer
from hpcps.roles.checks import rejection, wrong_size
from hpcps.roles.events import Effect, Record
from hpcps.training.learner import Evaluation, Learner


def examine(
    learner: Learner,
    batchnorm: Literal["validator", "averaged", "reestimated"],
    model: Vector | None = None,
    averaged: Vector | None = None,
) -> Evaluation:
    """Measure a model and leave the learner as it was.

    Args:
        learner: the chief's.
        batchnorm: whose statistics to use; see the experiment file's `validation.batchnorm`.
        model: the parameters to measure `[d]`; the learner's own if None.
        averaged: the workers' mean statistics `[k]`, for `averaged`.
    """
    statistics = learner.statistics
    own: Vector | None = None
    if model is not None:
        own = np.empty_like(model)
        learner.copy_to(own)
        learner.copy_from(model)
    if statistics.size and batchnorm == "averaged" and averaged is not None:
        learner.load_statistics(averaged)
    elif statistics.size and batchnorm == "reestimated":
        learner.reestimate_statistics()
    result = learner.evaluate()
    if statistics.size and batchnorm != "validator":
        learner.load_statistics(statistics)
    if own is not None:
        learner.copy_from(own)
    return result


def evaluation_records(
    epochs: tuple[int, ...], evaluation: Evaluation, learner: Learner, more: Callable[[], dict[str, object]]
) -> Iterator[Record]:
    """Record a measurement, with what the role adds; a round longer than an epoch can end several, which share it."""
    fields: dict[str, object] = {
        "step": learner.steps_done,
        "accuracy": evaluation.accuracy,
        "loss": evaluation.loss,
        "samples": evaluation.samples,
        "learning_rate": learner.learning_rate,
    }
    for epoch in epochs:
        yield Record("evaluation", {"epoch": epoch, **fields, **more()})
    if not evaluation.finite:
        yield Record("diverged", {"epoch": epochs[-1], "what": "outputs on the test set are not finite"})


class StatisticsInbox:
    """Gathers the workers' BatchNorm statistics for one evaluation and averages them in worker order."""

    def __init__(self, workers: tuple[Peer, ...], size: int) -> None:
        self._workers = workers
        self._size = size
        self._values: dict[Peer, Vector | None] = {}

    @property
    def waiting_for(self) -> tuple[Peer, ...]:
        """The workers whose statistics have not come."""
        return tuple(peer for peer in self._workers if peer not in self._values)

    def put(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Take a STATISTICS message; one that is unusable is recorded and left out of the mean."""
        reason = wrong_size(message, self._size)
        values = message.payload if message.payload is not None else np.zeros(0, np.float32)
        if reason is None and not np.isfinite(values).all():
            reason = "its statistics are not finite"
        if reason:
            yield rejection(source, reason)
        self._values[source] = None if reason else values.copy()

    def refuse(self, source: Peer) -> None:
        """Go on without a worker whose message was no message."""
        self._values[source] = None

    def take(self, own: Vector | None) -> Vector | None:
        """Return the mean `[k]` with the gatherer's `own` first (None if nobody's were usable), and begin anew."""
        usable = [own] if own is not None else []
        usable += [values for peer in self._workers if (values := self._values[peer]) is not None]
        self._values = {}
        return np.mean(usable, axis=0, dtype=np.float32) if usable else None
