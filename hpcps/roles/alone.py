"""One process that trains by itself: what the others are compared with (ZenoPS's "validation only")."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from hpcps.layout import Vector
from hpcps.messages import Malformed, Peer, Received
from hpcps.roles.checks import rejection
from hpcps.roles.events import Compute, Computed, Effect, Event, Finish, Record, Save, Start
from hpcps.roles.examination import evaluation_records, examine
from hpcps.roles.training import training_fields
from hpcps.spec.schema import Run
from hpcps.training.learner import Evaluation, Learner, Progress


class Alone:
    """Validator 0 without servers and workers: takes steps on the held-out shard and evaluates after each epoch.

    There is nothing to exchange; a round is H local steps, after which the record says how far it is. It ends with the
    last step of the last epoch.
    """

    def __init__(self, peer: Peer, run: Run, run_id: str, learner: Learner) -> None:
        self.peer = peer
        self.round = 0
        self._run = run
        self._learner = learner
        self._last = run.train.epochs * learner.steps_per_epoch
        self._seen: list[Progress] = []

    @property
    def device(self) -> str:
        """Where it computes."""
        return self._learner.device

    def handle(self, event: Event) -> Iterator[Effect]:
        """React to an event."""
        match event:
            case Start():
                yield from self._train()
            case Computed("train", progress):
                self._seen.append(progress)
                yield from self._trained()
            case Computed("evaluate", evaluation):
                yield from self._evaluated(evaluation)
            case Received(source, _) | Malformed(source, _):
                yield rejection(source, f"{self.peer} trains alone and gets no messages")

    def _train(self) -> Iterator[Effect]:
        """Go on to where the round or the epoch ends."""
        done = self._learner.steps_done
        ends = ((done // length + 1) * length for length in (self._run.train.local_steps, self._epoch))
        steps = min(*ends, self._last) - done
        yield Compute("train", partial(self._learner.train, steps), steps=steps)

    @property
    def _epoch(self) -> int:
        return self._learner.steps_per_epoch

    def _trained(self) -> Iterator[Effect]:
        done = self._learner.steps_done
        if done % self._run.train.local_steps == 0 or done == self._last:
            yield Record("round", training_fields(self._learner, self._seen))
            self._seen = []
            self.round += 1
        if done % self._epoch == 0:
            yield Compute("evaluate", partial(examine, self._learner, self._run.validation.batchnorm))
        else:
            yield from self._train()

    def _evaluated(self, evaluation: Evaluation) -> Iterator[Effect]:
        done = self._learner.steps_done
        yield from evaluation_records((done // self._epoch,), evaluation, self._learner, dict)
        if done < self._last:
            yield from self._train()
            return
        model: Vector = np.empty(self._learner.layout.size, np.float32)
        self._learner.copy_to(model)
        yield Save(f"final/{self.peer}", model)
        yield Finish()
