"""The single-process baseline (ZenoPS's "validation only")."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

import numpy as np

from hpcps.numerics.layout import Vector
from hpcps.numerics.state import State
from hpcps.protocol.messages import Peer
from hpcps.protocol.received import Malformed, Received
from hpcps.protocol.roster import Roster
from hpcps.roles.checkpointing import CheckpointParts
from hpcps.roles.checks import rejection
from hpcps.roles.evaluation_job import EvaluationJob, evaluate_with_trainer
from hpcps.roles.events import (
    Compute,
    Computed,
    Effect,
    Event,
    Finish,
    Record,
    Save,
    Snapped,
    Snapshot,
    Start,
    StopRequested,
)
from hpcps.spec.schema import Run
from hpcps.training.evaluation import Progress
from hpcps.training.trainer import Trainer, training_fields


class SingleProcess:
    """Validator 0 without servers and workers: takes steps on the held-out shard and evaluates after each epoch.

    A round is H local steps and ends with a record. The run ends with the last step of the last epoch.
    """

    def __init__(self, peer: Peer, run: Run, trainer: Trainer) -> None:
        self.peer = peer
        self.round = 0
        self._run, self.run_id = run, run.id
        self._trainer = trainer
        self._last = run.train.epochs * trainer.steps_per_epoch
        self._seen: list[Progress] = []
        self._lost = False
        self._checkpoint = CheckpointParts(Roster(0, 1, 0))

    @property
    def device(self) -> str:
        """Where it computes."""
        return self._trainer.device

    def handle(self, event: Event) -> Iterator[Effect]:
        """React to an event."""
        match event:
            case Start():
                yield from self._train()
            case Computed("train", progress, time):
                self._seen.append(progress)
                if self._run.train.stop_when_diverged and not np.isfinite(progress.loss):
                    self._lost = bool(np.isnan(self._model()).any())
                yield from self._trained(time)
            case Computed("evaluate", (job, evaluation)):
                yield from job.records(evaluation.fields(), finite=evaluation.finite)
                yield from self._evaluated()
            case StopRequested():
                self._checkpoint.wanted = True
            case Snapped(position, checksum):
                yield from self._checkpoint.enter(self.peer, position, checksum)
                if not self._checkpoint.suspending:
                    yield from self._train()
            case Received(source, _) | Malformed(source, _):
                yield rejection(source, f"{self.peer} trains alone and gets no messages")

    @property
    def keeps_checkpoints(self) -> bool:
        """It is the only process."""
        return True

    def state(self) -> State:
        """Return its state between two steps."""
        facts = {"round": self.round, "seen": [asdict(progress) for progress in self._seen]}
        return State(facts=facts).having(trainer=self._trainer.state())

    def restore(self, state: State) -> None:
        """Restore that state."""
        self._trainer.restore(state.part("trainer"))
        self.round = state.facts["round"]
        self._seen = [Progress(**progress) for progress in state.facts["seen"]]

    def _go_on(self, rounds: tuple[int, int], epochs: tuple[int, int]) -> Iterator[Effect]:
        """Train on; write a checkpoint first if the finished rounds or epochs make one due, or the run is to stop."""
        if self._checkpoint.is_due(self._run.checkpoint, rounds, epochs) or self._checkpoint.wanted:
            self._checkpoint.begin(self._trainer.steps_done)
            yield Snapshot(self._trainer.steps_done, self.state())
        else:
            yield from self._train()

    def _train(self) -> Iterator[Effect]:
        """Train to the end of the round or the epoch, whichever comes first."""
        done = self._trainer.steps_done
        ends = ((done // length + 1) * length for length in (self._run.train.steps_per_round, self._epoch))
        steps = min(*ends, self._last) - done
        take = self._trainer.skip if self._lost else self._trainer.train
        yield Compute("train", partial(take, steps), steps=steps)

    @property
    def _epoch(self) -> int:
        return self._trainer.steps_per_epoch

    def _trained(self, time: float) -> Iterator[Effect]:
        done = self._trainer.steps_done
        before = self.round
        if done % self._run.train.steps_per_round == 0 or done == self._last:
            yield Record("round", training_fields(self._trainer, self._seen), self._model)
            self._seen = []
            self.round += 1
        if done % self._epoch == 0:
            # No other process waits for it.
            job = EvaluationJob.of(self._trainer, self.round, time, (done // self._epoch,))
            again = self._run.validation.batchnorm == "reestimated"
            measure = partial(evaluate_with_trainer, self._trainer, job, reestimate=again)
            yield Compute("evaluate", lambda: (job, measure()))
        else:
            yield from self._go_on((before, self.round), (0, 0))

    def _evaluated(self) -> Iterator[Effect]:
        done = self._trainer.steps_done
        if done < self._last:
            epoch, ended = done // self._epoch, done % self._run.train.steps_per_round == 0
            yield from self._go_on((self.round - ended, self.round), (epoch - 1, epoch))
            return
        yield Save(f"final/{self.peer}", self._model())
        yield Finish()

    def _model(self) -> Vector:
        """Return a copy of the model, `[d]`."""
        model: Vector = np.empty(self._trainer.layout.size, np.float32)
        self._trainer.copy_to(model)
        return model
